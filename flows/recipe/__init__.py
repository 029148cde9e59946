"""Recipes: from a name or a path to validated stages."""

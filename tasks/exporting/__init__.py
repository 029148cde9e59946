"""Exporting: a model in the formats of others, its proof and its card, and pushing to the hub."""

"""Rows: where they lie, how they are read, cleaned, split and described."""

"""Rows: where they lie, how they are read, described, and turned into tokens."""

"""Routing: which domain a prompt belongs to, and how hard it looks."""

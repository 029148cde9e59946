"""Contracts that cross a boundary: pydantic and the standard library only."""

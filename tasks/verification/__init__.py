"""Verification: whether a completion is a well-formed trace whose answer agrees with its prompt."""

"""Exporting: the proof of an export, and its model card."""

"""Gemma: its decoder, and its weights from where they lie."""

"""Reward models: the pairs they learn from, their scores, and what these are worth."""

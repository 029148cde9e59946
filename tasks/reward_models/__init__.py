"""Reward models: their training pairs, their scores, and the scores' reliability."""

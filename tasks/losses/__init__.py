"""Losses: pure functions of a model and a batch, a file each. Each stage kind imports its own."""

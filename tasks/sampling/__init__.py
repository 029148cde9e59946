"""Sampling: compiled generation, continuous batching, rollouts, streamed answers."""

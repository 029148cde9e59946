"""Training: the trainers, their loop, checkpoints, optimizers, and preference pairs."""

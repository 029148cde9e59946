"""Training: the trainer, its loop, checkpoints, optimizers, and preference pairs."""

"""`python -m tasks.worker`: one job on one machine."""

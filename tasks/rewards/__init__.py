"""Rewards: what a response is worth, a file each (`tasks.contract.reward`)."""

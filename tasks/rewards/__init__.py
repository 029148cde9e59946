"""Rewards of responses, a file each (`tasks.contract.reward`)."""

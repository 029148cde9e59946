"""A recipe of two real stages that need no JAX and take a second."""

TINY = """
name = "tiny"
model = "gemma3-tiny"

[stages.distill]
kind = "distill"
[[stages.distill.config.teachers]]
name = "procedural"
rows = { summarization = 60 }
grounded = {}

[stages.rebalance]
kind = "rebalance"
inputs = { examples = "distill" }
[stages.rebalance.config]
near_duplicates = false
[stages.rebalance.config.quotas]
summarization = { train = 20, validation = 1, heldout = 2 }
"""

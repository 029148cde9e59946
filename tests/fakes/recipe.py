"""A recipe of two real stages that need no JAX and take a second, and what others have more."""

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

READS = TINY.replace(
    'name = "procedural"\nrows = { summarization = 60 }\ngrounded = {}\n',
    """\
name = "dataset"
sources = [{ path = "rows.jsonl", domain = "math", prompt = "q", reasoning = "q", answer = "a" }]
""",
)
"""It teaches from a file of the data directory."""

TRAINED = """
[stages.sft]
kind = "sft"
inputs = { examples = "rebalance" }
config = { steps = 2, batch_size = 4, sequence_length = 256, optimizer.learning_rate = 1e-3 }
"""
EVALUATED = """
[stages.sft_eval]
kind = "reasoning_eval"
inputs = { prompts = "rebalance", policy = "sft" }
config = { prompt_length = 64, response_length = 64, batch_size = 16, min_items = 2 }
"""
REWARDED = """
[stages.grpo]
kind = "grpo"
inputs = {{ policy = "sft", prompts = "rebalance"{inputs} }}
[stages.grpo.config]
steps = 2
batch_size = 8
prompt_length = 64
response_length = {response}
optimizer.learning_rate = 1e-3
rewards = [{{ {reward} }}]
"""
"""To be formatted: further inputs, tokens of a response, and the reward's table."""

"""A recipe with teachers and judges behind endpoints, on two files of its own: what tests of
rehearsals share."""

from pathlib import Path

from tasks.contract.job import write_jsonl

RECIPE = """
name = "sums"
model = "gemma3-1b-it"
seed = 0

[stages.distill]
kind = "distill"
[[stages.distill.config.teachers]]
name = "openai_compatible"
provider = "vllm"
model = "openai/gpt-oss-120b"
samples = 4
max_usd = 5.0
input_usd_per_million = 0.1
output_usd_per_million = 0.5
[[stages.distill.config.teachers.prompts]]
name = "dataset"
[[stages.distill.config.teachers.prompts.sources]]
path = "sums.jsonl"
domain = "math"
prompt = "question"
answer = "answer"
check = "numeric"

[stages.rebalance]
kind = "rebalance"
inputs = { examples = "distill" }
[stages.rebalance.config]
near_duplicates = false
contamination = false
max_prompt_tokens = 512
max_response_tokens = 512
[stages.rebalance.config.quotas]
math = { train = 5000, validation = 32, heldout = 100 }

[stages.sft]
kind = "sft"
inputs = { examples = "rebalance" }
[stages.sft.config]
steps = 300
batch_size = 64
sequence_length = 1024
lora = { rank = 32, alpha = 64.0 }
optimizer = { learning_rate = 1e-4 }

[stages.grpo]
kind = "grpo"
inputs = { policy = "sft", prompts = "rebalance" }
[stages.grpo.config]
steps = 300
batch_size = 256
group_size = 4
rollout_lag = 1
prompt_length = 512
response_length = 512
optimizer = { learning_rate = 3e-6 }
[[stages.grpo.config.rewards]]
name = "format"
weight = 0.3
[[stages.grpo.config.rewards]]
name = "exact_answer"
[[stages.grpo.config.rewards]]
name = "llm_judge"
judge = { name = "endpoint", provider = "gemini", model = "gemini-9" }

[stages.grpo_eval]
kind = "reasoning_eval"
inputs = { prompts = "rebalance", policy = "grpo" }
[stages.grpo_eval.config]
prompt_length = 512
response_length = 512
min_items = 300
[[stages.grpo_eval.config.suites]]
name = "dataset"
label = "exam"
path = "exam.jsonl"
expected = 20
domain = "math"
prompt = "question"
answer = "answer"
check = "numeric"
"""


def sums(first: int, count: int) -> list[dict[str, str]]:
    return [
        {
            "question": f"A farmer has {i} hens and buys {2 * i} more of them on market day {i}."
            " How many hens has he then?",
            "reasoning": f"He had {i} hens, and {i} and {2 * i} make {3 * i}.",
            "answer": str(3 * i),
        }
        for i in range(first, first + count)
    ]


def write(directory: Path, recipe: str = RECIPE) -> Path:
    """The recipe's file; its data lie in `data` beside it."""
    data = directory / "data"
    data.mkdir(exist_ok=True)
    for name, rows in (("sums", sums(1, 200)), ("exam", sums(1001, 20))):
        write_jsonl(data / f"{name}.jsonl", rows)
    path = directory / "sums.toml"
    path.write_text(recipe, encoding="utf-8")
    return path

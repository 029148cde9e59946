"""One GRPO step of `gemma3-tiny` on this CPU (rollout, rewards, update): ours beside TRL's GRPOTrainer on the same weights.

    TRL_PYTHON=/path/to/venv/bin/python python -m benchmarks.grpo_speed

`TRL_PYTHON` has trl, torch and this project's packages. Each side is a process of its own; they take turns, and the best round counts for
each. Both sample 8 responses to each of 8 prompts at temperature 1, of 48 tokens (random weights hardly ever end a turn), score them with
our `format` reward, and take one AdamW step with the KL to a reference: GRPO as in the paper. Ours is the whole stage, journal and ledger
included.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROUNDS, STEPS, WARM_UP = 2, 12, 2
PROMPTS, GROUP_SIZE, PROMPT_LENGTH, RESPONSE_LENGTH = 8, 8, 24, 48
RATE, BETA = 1e-6, 0.04
ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    peer = os.environ.get("TRL_PYTHON")
    if not peer:
        raise SystemExit("set TRL_PYTHON to a Python that has trl and torch, and this project's packages")
    found: dict[str, list[dict[str, Any]]] = {"ours": [], "TRL": []}
    with tempfile.TemporaryDirectory() as name:
        python = {"ours": sys.executable, "TRL": peer}
        measure(sys.executable, "prepare", name)
        for _ in range(ROUNDS):
            for side, measurements in found.items():
                measurements.append(measure(python[side], side, name))
    print(
        f"{PROMPTS} prompts x {GROUP_SIZE} responses of {RESPONSE_LENGTH} tokens; mean of {STEPS - WARM_UP} steps, best of {ROUNDS} rounds"
    )
    best = {side: min(measurements, key=lambda one: one["seconds"]) for side, measurements in found.items()}
    for side, one in best.items():
        ratio = best["TRL"]["seconds"] / one["seconds"]
        print(f"{side:6}{one['seconds']:8.3f} s a step{ratio:8.2f} x{one['tokens']:8.1f} tokens a response   {one['versions']}")


def measure(python: str, side: str, directory: str) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "TOKENIZERS_PARALLELISM": "false"}
    command = [python, __file__, side, directory]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{side} failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def questions() -> list[str]:
    return [f"What is {number} + 1?" for number in range(PROMPTS)]


def mean_step(ends: list[float]) -> float:
    """Seconds of a step after those that compile."""
    return (ends[-1] - ends[WARM_UP - 1]) / (len(ends) - WARM_UP)


def prepare(directory: Path) -> dict[str, Any]:
    """A policy that both sides read, and the prompts."""
    from schemas.examples import Domain, Prompt, prompt_id
    from tasks.job import write_jsonl
    from tasks.models.hf_tokenizer import write_tokenizer
    from tasks.models.loading import base_model, save_model

    (directory / "policy").mkdir()
    loaded = base_model("gemma3-tiny", 0)
    save_model(loaded, directory / "policy")
    write_tokenizer(directory / "policy", loaded.tokenizer)
    rows = [Prompt(id=prompt_id(text), prompt=text, domain=Domain.MATH, check="none") for text in questions()]
    return {"prompts": write_jsonl(directory / "prompts.jsonl", rows)}


def ours(directory: Path) -> dict[str, Any]:
    import jax

    from infra.store import open_store
    from infra.workspace import Workspace
    from tasks import grpo
    from tasks.job import Job, read_rows

    table = {"steps": STEPS, "batch_size": PROMPTS * GROUP_SIZE, "group_size": GROUP_SIZE, "rewards": [{"name": "format"}], "beta": BETA}
    table |= {"prompt_length": PROMPT_LENGTH, "response_length": RESPONSE_LENGTH, "optimizer": {"learning_rate": RATE}}
    ends: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "out").mkdir()
        grpo.run(
            Job(
                grpo.Config.parse(table),
                {"policy": directory / "policy", "prompts": directory},
                Path(name) / "out",
                Workspace(open_store(f"{name}/store"), "key", "1"),
                checkpoint_seconds=1e9,
                report=lambda _: ends.append(time.perf_counter()),
            )
        )
        last = list(read_rows(Path(name) / "out" / "curves.jsonl"))[-1]
    return {"seconds": mean_step(ends), "tokens": last["completion_tokens"], "versions": f"jax {jax.__version__}"}


def trl(directory: Path) -> dict[str, Any]:
    import torch
    import transformers
    import trl
    from datasets import Dataset

    from schemas.examples import Prompt
    from tasks.job import read_jsonl
    from tasks.rewarding import Response
    from tasks.rewards import format as format_reward

    rows = {row.prompt: row for row in read_jsonl(directory / "prompts.jsonl", Prompt)}
    ends: list[float] = []

    class Clock(transformers.TrainerCallback):
        def on_step_end(self, *_: object, **__: object) -> None:
            ends.append(time.perf_counter())

    def reward(prompts: list[list[dict[str, str]]], completions: list[list[dict[str, str]]], **_: object) -> list[Any]:
        asked = [rows[prompt[-1]["content"]] for prompt in prompts]
        return format_reward.score(format_reward.Config(), asked, [Response(one[0]["content"]) for one in completions])

    policy = str(directory / "policy")
    with tempfile.TemporaryDirectory() as name:
        config = trl.GRPOConfig(
            output_dir=name,
            max_steps=STEPS,
            per_device_train_batch_size=PROMPTS * GROUP_SIZE,
            num_generations=GROUP_SIZE,
            max_completion_length=RESPONSE_LENGTH,
            temperature=1.0,
            beta=BETA,
            loss_type="grpo",
            learning_rate=RATE,
            bf16=False,
            use_cpu=True,
            gradient_checkpointing=False,
            save_strategy="no",
            report_to="none",
            logging_steps=STEPS,
            disable_tqdm=True,
        )
        model = transformers.AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
        trainer = trl.GRPOTrainer(
            model=model,
            reward_funcs=reward,
            args=config,
            train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": text}]} for text in rows]),
            processing_class=transformers.AutoTokenizer.from_pretrained(policy),
            callbacks=[Clock()],
        )
        trainer.train()
        lengths = [row["completions/mean_length"] for row in trainer.state.log_history if "completions/mean_length" in row]
    versions = f"trl {trl.__version__}, torch {torch.__version__}"
    return {"seconds": mean_step(ends), "tokens": lengths[-1], "versions": versions}


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        print(json.dumps({"prepare": prepare, "ours": ours, "TRL": trl}[sys.argv[1]](Path(sys.argv[2]))))

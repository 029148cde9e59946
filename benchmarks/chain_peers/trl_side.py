"""TRL's side of `benchmarks.chain`: SFTTrainer, CPOTrainer with the loss "simpo", GRPOTrainer; in
TRL's own environment.

Of this project it imports the rewards, which need no JAX.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
import transformers
import trl
from datasets import Dataset

from benchmarks.chain_peers.settings import Clock, Settings, main


class Ticks(transformers.TrainerCallback):
    """Tells the clock of every step that ended."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_step_end(self, *_: object, **__: object) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.clock.tick()


def options(stage: str, settings: Settings, out: Path) -> dict[str, Any]:
    """Arguments that the three configs share: the same optimizer, schedule, precision and seed as
    the other side; nothing saved between steps."""
    gpu = torch.cuda.is_available() and not settings.cpu
    steps = settings.steps(stage)
    return {
        "output_dir": str(out),
        "max_steps": steps,
        "learning_rate": settings.rate(stage),
        # like tasks.training.optimizers: no step at rate 0
        "warmup_steps": (max(1, round(steps * settings.warmup)) + 1),
        "lr_scheduler_type": "cosine_warmup_with_min_lr",
        "lr_scheduler_kwargs": {"min_lr_rate": settings.final},
        "adam_beta2": settings.b2,
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "gradient_checkpointing": False,
        "bf16": gpu or bool(settings.lora),
        "use_cpu": settings.cpu,
        "seed": settings.seed,
        "save_strategy": "no",
        "report_to": "none",
        "logging_steps": 1,
        "disable_tqdm": True,
    }


def batch(stage: str, settings: Settings, size: int) -> dict[str, int]:
    """A step of so many, all at once or the settings' number at a time."""
    at_once = settings.micro.get(stage, size)
    return {
        "per_device_train_batch_size": at_once,
        "gradient_accumulation_steps": round(size / at_once),
    }


def sft(settings: Settings, data: Path, shared: dict[str, Any]) -> dict[str, Any]:
    config = trl.SFTConfig(
        **shared,
        packing=False,
        max_length=settings.length,
        **batch("sft", settings, settings.examples),
        completion_only_loss=True,
    )
    return {"trainer": trl.SFTTrainer, "args": config}


def simpo(settings: Settings, data: Path, shared: dict[str, Any]) -> dict[str, Any]:
    from trl.experimental.cpo import CPOConfig, CPOTrainer

    config = CPOConfig(
        **shared,
        **batch("simpo", settings, settings.pairs),
        max_length=settings.prompt_length + settings.response_length,
        loss_type="simpo",
        cpo_alpha=settings.sft_weight,
        beta=settings.simpo_beta,
        simpo_gamma=settings.simpo_beta * settings.simpo_margin,
    )
    return {"trainer": CPOTrainer, "args": config}


def grpo(settings: Settings, data: Path, shared: dict[str, Any]) -> dict[str, Any]:
    config = trl.GRPOConfig(
        **shared,
        **batch("grpo", settings, settings.responses),
        num_generations=settings.group,
        max_completion_length=settings.response_length,
        temperature=1.0,
        beta=settings.kl,
        loss_type="grpo",
        reward_weights=list(settings.rewards.values()),
    )
    return {"trainer": trl.GRPOTrainer, "args": config, "reward_funcs": rewards(settings, data)}


def rewards(settings: Settings, data: Path) -> list[Any]:
    """The other side's rewards as TRL calls them: they are Python without JAX."""
    from schemas.examples import Prompt
    from tasks.contract.job import read_jsonl
    from tasks.contract.reward import REWARDS, Response

    asked = {row.id: row for row in read_jsonl(data / "prompts.jsonl", Prompt)}

    def reward(name: str) -> Any:
        def score(completions: list[list[dict[str, str]]], id: list[str], **_: object) -> list[Any]:
            responses = [Response(completion[0]["content"]) for completion in completions]
            chosen = REWARDS[name]
            return list(chosen.score(chosen.config(), [asked[one] for one in id], responses))

        score.__name__ = name
        return score

    return [reward(name) for name in settings.rewards]


def run(stage: str, settings: Settings, data: Path, policy: Path, out: Path) -> dict[str, Any]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(policy)
    tokenizer.eos_token = (  # TRL's documentation sets it for chat models: it ends a response
        "<end_of_turn>"
    )
    dtype = torch.bfloat16 if settings.lora else torch.float32
    model = transformers.AutoModelForCausalLM.from_pretrained(policy, dtype=dtype)
    make = {"sft": sft, "simpo": simpo, "grpo": grpo}[stage]
    parts = make(settings, data, options(stage, settings, out))
    rows = [
        json.loads(line)
        for line in (data / f"peer_{stage}.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    if settings.lora:
        from peft import LoraConfig

        parts["peft_config"] = LoraConfig(**settings.lora, task_type="CAUSAL_LM")
    clock = Clock()
    trainer = parts.pop("trainer")(
        model=model,
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(rows),
        callbacks=[Ticks(clock)],
        **parts,
    )
    trainer.train()
    if settings.lora:
        trainer.model.merge_and_unload().save_pretrained(str(out))
    else:
        trainer.save_model(str(out))
    shutil.copyfile(policy / "tokenizer.model", out / "tokenizer.model")
    lengths = [row.get("completions/mean_length") for row in trainer.state.log_history]
    sampled = [length * settings.responses for length in lengths if length is not None]
    gpu = torch.cuda.is_available() and not settings.cpu
    versions = {"trl": trl, "transformers": transformers, "torch": torch}
    return {
        **clock.says(lambda step: sampled[step - 1] if sampled else settings.tokens[stage]),
        "device": "gpu" if gpu else "cpu",
        "device_bytes": torch.cuda.max_memory_allocated() if gpu else None,
        "versions": ", ".join(f"{name} {one.__version__}" for name, one in versions.items()),
    }


if __name__ == "__main__":
    main(run)

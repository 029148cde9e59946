"""TRL's losses and advantages on fixed tensors: methods of its trainers, called on stand-ins that
hold a table of logits as their model.

`python -m tests.tasks.losses.trl_losses` where TRL is installed writes what they give to
tests/tasks/losses/trl_losses.json, which tests/tasks/losses/test_trl_parity.py compares with ours,
and with the installed TRL where there is one.
"""

import json
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np

RECORDED = Path(__file__).with_suffix(".json")

PAD, VOCABULARY, GROUP, LENGTH = 0, 6, 4, 6

GRPO: dict[str, dict[str, Any]] = {
    "grpo": {"beta": 0.04},
    "grpo-batch-scale": {"beta": 0.04, "scale_rewards": "batch"},
    "grpo-corrected": {"truncation": 1.1},
    "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"},
    "dapo": {"loss_type": "dapo", "epsilon_high": 0.28},
    "gspo": {"importance_sampling_level": "sequence", "epsilon": 0.03, "epsilon_high": 0.04},
}
"""What differs from TRL's attributes below, by variant."""


def table() -> np.ndarray:
    """(V, V) float32 logits of the next token after each token."""
    return (
        np.random.Generator(np.random.Philox(7))
        .normal(size=(VOCABULARY, VOCABULARY))
        .astype(np.float32)
    )


def rollout() -> dict[str, np.ndarray]:
    """Eight responses of 1 to 6 tokens to two prompts, their rewards, and log-probabilities under
    three other policies."""
    generator = np.random.Generator(np.random.Philox(8))
    rows = 2 * GROUP
    lengths = generator.integers(1, LENGTH + 1, rows)
    lengths[0] = LENGTH
    mask = np.arange(LENGTH) < lengths[:, None]
    prompts = np.repeat(generator.integers(1, VOCABULARY, (2, 3)), GROUP, axis=0)
    completions = np.where(mask, generator.integers(1, VOCABULARY, (rows, LENGTH)), PAD)
    before = np.concatenate([prompts[:, -1:], completions[:, :-1]], axis=1)
    logits = table()[before].astype(np.float64)
    chosen = np.take_along_axis(
        logits - np.log(np.exp(logits).sum(-1, keepdims=True)), completions[..., None], -1
    )[..., 0]
    others = {
        name: np.where(mask, chosen + generator.normal(0, 0.25, mask.shape), 0)
        for name in ("old", "ref", "sampler")
    }
    rewards = generator.normal(size=rows)
    arrays = {"prompts": prompts, "completions": completions} | {
        name: values.astype(np.float32) for name, values in others.items()
    }
    return arrays | {"mask": mask, "rewards": rewards.astype(np.float32)}


def pairs(prompt: int, chosen: list[int]) -> dict[str, np.ndarray]:
    """Pairs with chosen responses of these lengths, each with a reference: prompts of `prompt`
    tokens, responses of at most LENGTH."""
    generator = np.random.Generator(np.random.Philox(9))
    lengths = {
        "chosen": np.array(chosen),
        "rejected": generator.integers(1, LENGTH + 1, len(chosen)),
    }
    tokens = {"prompt": generator.integers(1, VOCABULARY, (len(chosen), prompt))}
    for name, of_rows in lengths.items():
        drawn = generator.integers(1, VOCABULARY, (len(chosen), LENGTH))
        tokens[name] = np.where(np.arange(LENGTH) < of_rows[:, None], drawn, PAD)
    references = {
        f"ref_{name}_logps": generator.normal(-8, 2, len(chosen)).astype(np.float32)
        for name in lengths
    }
    return tokens | references


PAIRS = {"simpo": pairs(3, [2, 6, 4]), "dpo": pairs(3, [2, 6, 4]), "orpo": pairs(1, [4, 4, 4])}
"""TRL's supervised term of ORPO is the mean over all tokens of prompts and chosen responses. After
prompts of one token, which is not predicted, and with chosen responses of one length that is the
mean over responses."""


def of_trl() -> dict[str, Any]:
    """What the installed TRL gives."""
    import trl

    found: dict[str, Any] = {
        "trl": trl.__version__,
        "grpo": {name: _grpo(**changes) for name, changes in GRPO.items()},
    }
    return found | {"simpo": _simpo(), "dpo": _dpo(), "orpo": _orpo()}


class _Table:
    """The table as a model of TRL's: logits, and what its fused head gives of the labels."""

    training, is_gradient_checkpointing = True, False

    def __init__(self) -> None:
        import torch

        self.logits = torch.tensor(table(), requires_grad=True)

    def __call__(
        self, input_ids: Any, attention_mask: Any, labels: Any = None, **options: Any
    ) -> Any:
        import torch

        logits = self.logits[input_ids]
        if labels is None:
            return SimpleNamespace(logits=logits)
        logps, targets = logits[:, :-1].log_softmax(-1), labels[:, 1:]
        chosen = logps.gather(-1, targets.clamp(min=0)[..., None])[..., 0] * (targets != -100)
        entropy = -(logps.exp() * logps).sum(-1)
        top1 = logps.argmax(-1) == targets
        return SimpleNamespace(
            log_probs=chosen, entropy=entropy, mean_logits=torch.zeros_like(chosen), is_top1=top1
        )

    def gradient(self, loss: Any) -> list[list[float]]:
        loss.backward()
        return _numbers(self.logits.grad)


def _numbers(values: Any) -> Any:
    return np.asarray(values.detach(), np.float64).round(9).tolist()


def _accelerator() -> Any:
    import torch

    same = {
        name: lambda value, *_, **__: value for name in ("gather", "reduce", "gather_for_metrics")
    }
    return MagicMock(device=torch.device("cpu"), num_processes=1, process_index=0, **same)


def _grpo(
    loss_type: str = "grpo",
    importance_sampling_level: str = "token",
    scale_rewards: str = "group",
    beta: float = 0.0,
    epsilon: float = 0.2,
    epsilon_high: float = 0.2,
    truncation: float | None = None,
) -> dict[str, Any]:
    """Through TRL's advantages and importance weights into its loss, in one micro-batch."""
    import torch
    from trl import GRPOTrainer

    drawn, model, metrics = rollout(), _Table(), {"train": defaultdict(list)}
    policies = iter([drawn["old"], drawn["ref"]])
    lengths = drawn["mask"].sum(axis=1)
    completions = [
        row[:length].tolist() for row, length in zip(drawn["completions"], lengths, strict=True)
    ]
    sampled = (
        [row[:length].tolist() for row, length in zip(drawn["sampler"], lengths, strict=True)]
        if truncation
        else None
    )
    trainer = MagicMock(
        model=model,
        accelerator=_accelerator(),
        _metrics=metrics,
        loss_type=loss_type,
        importance_sampling_level=importance_sampling_level,
        scale_rewards=scale_rewards,
        beta=beta,
        epsilon_low=epsilon,
        epsilon_high=epsilon_high,
        use_vllm=truncation is not None,
        vllm_importance_sampling_correction=truncation is not None,
        vllm_importance_sampling_mode="token_truncate",
        vllm_importance_sampling_clip_min=None,
        vllm_importance_sampling_clip_max=truncation,
        num_generations=GROUP,
        num_iterations=2,
        max_completion_length=LENGTH,
        current_gradient_accumulation_steps=1,
        multi_objective_aggregation="sum_then_normalize",
        reward_weights=torch.ones(1),
        reward_funcs=[None],
        reward_func_names=["reward"],
        top_entropy_quantile=1.0,
        pad_to_multiple_of=None,
        _pending_extra_logs={},
        _pending_metrics={},
        _logs=defaultdict(list, rewards=defaultdict(list)),
        args=MagicMock(
            report_to=[],
            delta=None,
            use_bias_correction_kl=False,
            steps_per_generation=1,
            gradient_accumulation_steps=1,
        ),
        _tokenizer=SimpleNamespace(pad_token_id=PAD),
        _generate=lambda _: (
            drawn["prompts"].tolist(),
            completions,
            None,
            [""] * len(completions),
            sampled,
            {},
            None,
            None,
        ),
        _calculate_rewards=lambda *_: torch.tensor(drawn["rewards"])[:, None],
        _get_per_token_logps_and_entropies=lambda *_, **__: (
            torch.tensor(next(policies)),
            None,
            None,
        ),
        **dict.fromkeys(("environment_factories", "environments", "off_policy_mask_threshold")),
        **dict.fromkeys(
            (
                "tools",
                "mask_truncated_completions",
                "log_multimodal",
                "aux_loss_enabled",
                "_entropy_bonus_enabled",
            ),
            False,
        ),
    )
    inputs = GRPOTrainer._generate_and_score_completions(
        trainer, [{"prompt": ""}] * len(completions)
    )
    trainer._get_per_token_logps_and_entropies = (
        GRPOTrainer._get_per_token_logps_and_entropies.__get__(trainer)
    )
    loss = GRPOTrainer._compute_loss(trainer, model, inputs)
    names = {
        "kl": "kl",
        "entropy": "entropy",
        "clip_ratio/low_mean": "clip_low",
        "clip_ratio/high_mean": "clip_high",
    }
    names["sampling/importance_sampling_ratio/mean"] = "is_weight"
    return {
        "advantages": _numbers(inputs["advantages"]),
        "loss": loss.item(),
        "gradient": model.gradient(loss),
        "metrics": {
            ours: metrics["train"][theirs][0]
            for theirs, ours in names.items()
            if metrics["train"][theirs]
        },
    }


def _batch(name: str) -> dict[str, Any]:
    """The pairs as TRL's collator for CPO and ORPO gives them; no prompt is padded."""
    import torch

    tokens, batch = PAIRS[name], {}
    for side in ("chosen", "rejected"):
        ids = torch.tensor(np.concatenate([tokens["prompt"], tokens[side]], axis=1))
        batch[f"{side}_input_ids"], batch[f"{side}_attention_mask"] = ids, (ids != PAD).long()
        labels = ids.masked_fill(ids == PAD, -100)
        labels[:, : tokens["prompt"].shape[1]] = -100
        batch[f"{side}_labels"] = labels
    return batch


def _preference(kind: Any, name: str, **knobs: Any) -> dict[str, Any]:
    """Loss and metrics of TRL's CPOTrainer or ORPOTrainer."""
    model = _Table()
    trainer = MagicMock(
        accelerator=_accelerator(),
        is_encoder_decoder=False,
        aux_loss_enabled=False,
        pad_token_id=PAD,
        **knobs,
    )
    trainer.padding_value = PAD
    for method in ("concatenated_inputs", "get_batch_logps"):
        setattr(trainer, method, getattr(kind, method))
    for method in ("concatenated_forward", "cpo_loss", "odds_ratio_loss"):
        if hasattr(kind, method):
            setattr(trainer, method, getattr(kind, method).__get__(trainer))
    loss, metrics = kind.get_batch_loss_metrics(trainer, model, _batch(name))
    return {"loss": loss.item(), "gradient": model.gradient(loss), "metrics": _renamed(metrics)}


def _renamed(metrics: dict[str, float]) -> dict[str, float]:
    """TRL's metrics by Tunix's names."""
    names = {f"rewards/{name}": f"rewards/{name}" for name in ("chosen", "rejected")}
    names |= {
        "rewards/margins": "rewards/margin",
        "rewards/accuracies": "rewards/accuracy",
        "log_odds_chosen": "log_odds_ratio",
    }
    names |= {f"logps/{name}": f"log_probs/{name}" for name in ("chosen", "rejected")}
    return {ours: metrics[theirs] for theirs, ours in names.items() if theirs in metrics}


def _simpo() -> dict[str, Any]:
    from trl.experimental.cpo import CPOTrainer

    knobs = {"loss_type": "simpo", "cpo_alpha": 0.0, "alpha": 0.0, "label_smoothing": 0.0}
    return _preference(CPOTrainer, "simpo", beta=2.0, simpo_gamma=0.8, **knobs)


def _orpo() -> dict[str, Any]:
    from trl.experimental.orpo import ORPOTrainer

    return _preference(ORPOTrainer, "orpo", beta=0.25)


def _dpo() -> dict[str, Any]:
    import torch
    from trl import DPOTrainer

    model, metrics, batch, tokens = (
        _Table(),
        {"train": defaultdict(list)},
        _batch("dpo"),
        PAIRS["dpo"],
    )
    trainer = MagicMock(
        model=model,
        accelerator=_accelerator(),
        _metrics=metrics,
        beta=0.3,
        loss_types=["sigmoid"],
        loss_weights=[1.0],
        f_divergence_type="reverse_kl",
        ld_alpha=None,
        precompute_ref_logps=True,
        use_weighting=False,
        aux_loss_enabled=False,
        _total_train_tokens=0,
        _tp_size=1,
    )
    both = {
        name: torch.cat([batch[f"{side}_{name}"] for side in ("chosen", "rejected")])
        for name in ("input_ids", "attention_mask")
    }
    completion_mask = torch.cat(
        [batch[f"{side}_labels"] != -100 for side in ("chosen", "rejected")]
    ).long()
    reference = {
        name: torch.tensor(tokens[name]) for name in ("ref_chosen_logps", "ref_rejected_logps")
    }
    loss = DPOTrainer._compute_loss(
        trainer, model, {**both, "completion_mask": completion_mask, **reference}, False
    )
    last = {
        name: values[-1] for name, values in metrics["train"].items() if isinstance(values, list)
    }
    return {"loss": loss.item(), "gradient": model.gradient(loss), "metrics": _renamed(last)}


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(of_trl()) + "\n", encoding="utf-8")

"""Supervised fine-tuning on worked traces: prompt-masked loss, packed rows of a fixed shape, and a
proof of which tokens are trained on.

Before the first step the stage writes `proof.json`, the training-token proof: for sample rows the
decoded supervised span, and for all rows the checks that it is not empty, ends with the terminator
and has no token of the prompt. A failed check fails the stage.
"""

import json
from collections.abc import Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from schemas.base import InputError, StageFailed
from schemas.examples import Example
from schemas.trainer_config import TrainerConfig
from tasks.contract.job import Job, read_jsonl
from tasks.contract.kind import Input, Kind, Product
from tasks.contract.small import Sizes, small_trainer
from tasks.data.packing import Packed, pack
from tasks.data.tokens import Tokenizer, prompt_tokens, response_tokens
from tasks.devices.hosts import make_mesh
from tasks.models.model_source import model_dependencies

if TYPE_CHECKING:
    from tasks.models.loading import LoadedModel
    from tasks.planning.programs import Program
    from tasks.training.trainer import Trainer


class Config(TrainerConfig):
    """SFT on rows of `sequence_length` tokens, each packed with as many examples as fit;
    `batch_size` counts packed rows.

    Examples longer than a row are dropped and counted; the stage fails if they are more than
    `max_dropped_fraction`. Every `validation_every` steps the validation rows are scored.
    """

    model: str
    seed: int = Field(default=0, ge=0)
    sequence_length: int = Field(ge=8)
    max_dropped_fraction: float = Field(default=0.0, ge=0, le=1)
    validation_every: int = Field(default=100, ge=1)


def tokenise(
    tokenizer: Tokenizer, examples: Sequence[Example], length: int
) -> tuple[Packed, list[Example]]:
    """Pack the examples that fit into rows of `length` tokens. Returns the rows and those
    examples."""
    rows, fitting = [], []
    for example in examples:
        prompt = prompt_tokens(tokenizer, example.prompt)
        response = response_tokens(tokenizer, example.response())
        if len(prompt) + len(response) <= length:
            rows.append((prompt, response))
            fitting.append(example)
    return pack(rows, length, tokenizer.pad_id), fitting


def prove(
    tokenizer: Tokenizer, packed: Packed, examples: Sequence[Example], samples: int = 5
) -> dict[str, Any]:
    """The training-token proof. It reads the arrays that are trained on, not the code that made
    them.

    Raises:
        StageFailed: a supervised span is empty, does not end with the terminator, is not exactly
            the response, or overlaps the prompt; or the spans differ from those of `examples`.
    """
    texts = ((f"user\n{one.prompt}\nmodel\n", one.response()) for one in examples)
    # SentencePiece's own mark of a blank, where a text has it, decodes to a blank
    expected = {tuple(text.replace("\u2581", " ") for text in both) for both in texts}
    shown: list[dict[str, str]] = []
    found = 0
    for row in range(len(packed)):
        for segment in range(1, packed.segments[row].max() + 1):
            inside = packed.segments[row] == segment
            tokens, mask = packed.tokens[row][inside], packed.mask[row][inside]
            span, rest = tokens[mask].tolist(), tokens[~mask].tolist()
            pair = (tokenizer.decode(rest), tokenizer.decode(span))
            if not span:
                problem = "is empty"
            elif span[-1] != tokenizer.end_of_turn_id:
                problem = "does not end with <end_of_turn>"
            elif (
                sum(token in tokenizer.control_ids for token in span) != 1
                or not mask[-len(span) :].all()
            ):
                problem = "covers control tokens of the prompt"
            elif pair not in expected:
                problem = f"{pair[1]!r} after {pair[0]!r} is no training example"
            else:
                found += 1
                if len(shown) < samples:
                    shown.append({"prompt": pair[0], "supervised": pair[1] + "<end_of_turn>"})
                continue
            raise StageFailed(
                f"training-token proof: the supervised span of row {row}, segment {segment},"
                f" {problem}"
            )
        if packed.mask[row][packed.segments[row] == 0].any():
            raise StageFailed(f"training-token proof: padding of row {row} is supervised")
    if found != len(examples):
        raise StageFailed(f"training-token proof: {found} spans for {len(examples)} examples")
    return {
        "examples": len(examples),
        "rows": len(packed),
        "supervised_tokens": int(packed.mask.sum()),
        "prompt_tokens": int((packed.segments > 0).sum() - packed.mask.sum()),
        "padding_tokens": int((packed.segments == 0).sum()),
        "checks": [
            "not empty",
            "ends with <end_of_turn>",
            "nothing of the prompt",
            "decodes to a training example",
            "one for each example",
        ],
        "samples": shown,
    }


def batch(packed: Packed, chosen: np.ndarray, scale: float) -> dict[str, np.ndarray]:
    """The training input of rows `chosen`, -1 for an empty one; loss weights are the mask times
    `scale`."""
    real = (chosen >= 0)[:, None]
    return {
        "tokens": packed.tokens[chosen],
        "weights": (packed.mask[chosen] & real).astype(np.float32) * np.float32(scale),
        "positions": packed.positions[chosen],
        "segments": packed.segments[chosen] * real,
    }


def validation_batches(packed: Packed, size: int) -> list[dict[str, np.ndarray]]:
    """All rows in batches of `size`; the weights make the mean of the batches' losses the mean over
    all supervised tokens."""
    count = len(packed)
    chosen = np.concatenate([np.arange(count), np.full(-count % size, -1)]).reshape(-1, size)
    return [batch(packed, rows, len(chosen) / packed.mask.sum()) for rows in chosen]


def trainer_of(config: Config, loaded: "LoadedModel") -> "Trainer":
    from tasks.losses.cross_entropy import cross_entropy
    from tasks.training.trainer import make_trainer

    return (
        make_trainer(loaded, config, config.seed)
        .with_loss_fn(cross_entropy)
        .with_gen_model_input_fn(dict)
    )


def programs(config: Config, model: "LoadedModel", upstream: Mapping[str, Any]) -> "list[Program]":
    """The programs that `run` compiles. Every token of a row counts as supervised: the data decides
    how many are."""
    from tasks.planning.programs import on_devices, vocabulary_trips
    from tasks.training.trainer import rows_at_once

    trainer = trainer_of(config, on_devices(model, rows_at_once(config)))
    shape = (config.batch_size, config.sequence_length)
    kinds = {"tokens": np.int32, "weights": np.float32, "positions": np.int32, "segments": np.int32}
    examples = upstream["examples"].rows_of("validation")
    # at most: shorter texts share rows
    config = config.counted(upstream["examples"].rows_of("train"))
    passes = 1 + config.steps // config.validation_every
    micro = config.batch_size // config.accumulation
    return trainer.programs(
        {name: np.zeros(shape, kind) for name, kind in kinds.items()},
        config.steps,
        trips=vocabulary_trips(micro * config.sequence_length, trainer.mesh),
        validations=passes * -(-examples // micro) if examples else 0,
    )


def small(config: Config, sizes: Sizes) -> Config:
    """300 updates of 2,048 tokens: enough for the tiny model to learn the format."""
    length = min(ceil(config.sequence_length * sizes.tokens), sizes.prompt + sizes.answer)
    return small_trainer(
        config,
        sizes,
        steps=300,
        batch_size=max(1, 2048 // length),
        learning_rate=6e-3,
        muon_learning_rate=0.04,
        sequence_length=length,
    )


def run(job: Job[Config]) -> dict[str, Any]:
    """Train and write the model. Raises InputError when too many rows are too long, StageFailed
    when the proof or the compile check fails."""
    from tasks.models.loading import policy_or_base
    from tasks.training.loop import counted, fit, rows_of_step, save_trained
    from tasks.training.trainer import rows_at_once

    config = job.config
    loaded = policy_or_base(job, make_mesh(rows_at_once(config)), trained=config.lora is None)
    packed, dropped = {}, {}
    for split in ("train", "validation"):
        examples = read_jsonl(job.inputs["examples"] / f"{split}.jsonl", Example)
        packed[split], fitting = tokenise(loaded.tokenizer, examples, config.sequence_length)
        dropped[split] = len(examples) - len(fitting)
        if dropped[split] > config.max_dropped_fraction * len(examples):
            raise InputError(
                f"{dropped[split]} of {len(examples)} {split} rows have more than sequence_length ="
                f" {config.sequence_length} tokens; raise sequence_length or max_dropped_fraction"
                f" (now {config.max_dropped_fraction})."
            )
        if split == "train":
            proof = prove(loaded.tokenizer, packed[split], fitting)
    (job.out / "proof.json").write_text(
        json.dumps(proof, ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
    )
    train = packed["train"]
    if not len(train):
        raise InputError("there are no training rows: raise the quotas of the rebalance stage.")
    job, config = counted(job, len(train))

    def batch_at(step: int) -> dict[str, np.ndarray]:
        chosen = rows_of_step(config.seed, step, config.batch_size, len(train))
        return batch(train, chosen, config.accumulation / train.mask[chosen].sum())

    trainer = trainer_of(config, loaded)
    curve = fit(
        trainer,
        batch_at,
        config,
        job,
        validation=validation_batches(
            packed["validation"], config.batch_size // config.accumulation
        ),
        validation_every=config.validation_every,
    )
    save_trained(trainer, loaded, job)
    return {
        "loss_first": curve[0]["loss"],
        "loss_last": float(np.mean([row["loss"] for row in curve[-10:]])),
        "examples": proof["examples"],
        "rows": len(train),
        "padding": train.padding,
        "dropped": dropped,
        "epochs": config.steps * config.batch_size / len(train),
    }


KIND = Kind(
    version=6,
    config=Config,
    inputs={"examples": Input(Product.ROWS), "policy": Input(Product.MODEL, required=False)},
    produces=Product.MODEL,
    run=run,
    small=small,
    programs=programs,
    devices=lambda config: True,
    dependencies=lambda config, data: model_dependencies(config.model),
)

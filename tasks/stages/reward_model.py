"""A reward model of traces (the "ThoughtTeacher" that `gemma2_deep` rebuilds): a scalar head on a
Gemma that scores each step of the reasoning, and the answer.

Pairs have three origins: the data's (a teacher's samples); the policy's own samples, verified
against wrong; and verified traces beside copies with one wrong step and the same answer
(`tasks.reward_models.steps`), which teach the model to read the steps. Both traces of a pair have
one author, since who wrote a trace is easier to tell than whether it is right.
`tasks.losses.bradley_terry` has the loss. The artifact is a directory that `transformers` loads as
a classifier with one label, and

    trace_pairs.jsonl   TracePair: the training pairs
    heldout.jsonl       held-out pairs with all their scores
    calibration.json    Calibration, and the bins of a reliability diagram

Two fractions of the prompts do not train: one is held out for the measurements of
`tasks.reward_models.reliability`, one sets the temperature. The reward `reward_model` uses the
artifact.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from pydantic import Field, model_validator

from schemas.base import StageFailed
from schemas.examples import Example
from schemas.trainer_config import PairsConfig
from tasks.contract.job import Job, read_jsonl, write_jsonl
from tasks.contract.kind import Input, Kind, Product
from tasks.contract.small import FEW, Sizes, small_trainer
from tasks.devices.hosts import make_mesh
from tasks.models.model_source import model_dependencies
from tasks.reward_models import steps
from tasks.reward_models.pairs import (
    TracePair,
    damaged_pairs,
    fits_lengths,
    pair_arrays,
    split_pairs,
    trace_pairs,
)
from tasks.reward_models.reliability import (
    ATTACKS,
    Calibration,
    ScoredPair,
    attack_metrics,
    attacked,
    fit_temperature,
    pair_metrics,
    write_calibration,
)
from tasks.sampling.rollouts import (
    curve_mean,
    require_one_program,
    sample_before_training,
    sampler_of,
)
from tasks.training.preference_pairs import mine_pairs, read_pairs
from tasks.verification.verify import check_versions

if TYPE_CHECKING:
    from tasks.models.loading import LoadedModel
    from tasks.planning.programs import Program
    from tasks.reward_models.scoring import Scores, TraceScorer
    from tasks.training.trainer import Trainer


class Config(PairsConfig):
    """A reward model. `response_length` bounds that of the policy that this model rewards.

    Attributes:
        model: the base model where no policy is connected.
        damaged: the most traces of the data that are paired with a copy with one wrong step.
        centering: weight of the term that keeps the mean score at 0.
        step_weight: weight of the steps that are known to be right or wrong; 0: learn from whole
            traces alone.
        validation_fraction, heldout_fraction: of the prompts; for the temperature, and for the
            measurements.
        min_accuracy: fail if the lower end of the held-out accuracy's interval is below this. 0.5
            is chance: a model that may be no better rewards noise. 0: never fail.
    """

    model: str
    prompts: int = Field(default=0, ge=0)
    samples_per_prompt: int = Field(default=4, ge=2)
    damaged: int = Field(default=0, ge=0)
    centering: float = Field(default=0.01, ge=0)
    step_weight: float = Field(default=1.0, ge=0)
    validation_fraction: float = Field(default=0.1, gt=0, lt=1)
    heldout_fraction: float = Field(default=0.2, gt=0, lt=1)
    min_pairs: int = Field(default=64, ge=1)
    min_accuracy: float = Field(default=0.5, ge=0, lt=1)

    @model_validator(mode="after")
    def _pairs_come_from_somewhere(self) -> Self:
        if not (self.prompts or self.data_pairs or self.damaged):
            raise ValueError(
                "data_pairs = 0, prompts = 0 and damaged = 0 give no pairs; set one of them"
            )
        if self.validation_fraction + self.heldout_fraction >= 1:
            raise ValueError("validation_fraction and heldout_fraction leave nothing to train on")
        return self

    @property
    def scoring_batch_size(self) -> int:
        """Traces scored at a time: those of a micro-batch."""
        return 2 * self.batch_size // self.accumulation


def dependencies(config: Config, data: Any) -> dict[str, str | int]:
    """The base model's bytes, the rules that split traces into steps, and the checks of the
    policy's answers."""
    return {
        **model_dependencies(config.model),
        "data.steps": steps.VERSION,
        **(check_versions() if config.prompts else {}),
    }


def trainer_of(config: Config, loaded: "LoadedModel") -> "Trainer":
    """The trainer of this stage; adds the head to the model."""
    from tasks.losses.bradley_terry import bradley_terry_loss_fn
    from tasks.models.scalar_head import add_head
    from tasks.training.trainer import make_trainer

    add_head(loaded, beside_adapters=config.lora is not None)
    trainer = make_trainer(loaded, config, config.seed)
    fixed = {
        "pad_id": loaded.tokenizer.pad_id,
        "centering": config.centering,
        "step_weight": config.step_weight,
    }
    return trainer.with_loss_fn(bradley_terry_loss_fn, has_aux=True).with_gen_model_input_fn(
        lambda batch: {"pairs": batch, **fixed}
    )


def batch_sizes(config: Config) -> dict[str, int]:
    """Setting -> how many rows the programs take at a time, for `make_mesh`."""
    from tasks.training.trainer import rows_at_once

    sampled = {"sampling_batch_size": config.sampling_batch_size} if config.prompts else {}
    return sampled | rows_at_once(config)


def programs(config: Config, model: "LoadedModel", upstream: Mapping[str, Any]) -> "list[Program]":
    """The programs that `run` compiles, for as many pairs as were asked for, since their number is
    not known yet."""
    from tasks.models.scalar_head import add_head
    from tasks.planning.programs import on_devices
    from tasks.reward_models.scoring import TraceScorer

    sizes = batch_sizes(config)
    prompts = min(config.prompts, upstream["prompts"].rows_of("train"))
    batches = -(-prompts * config.samples_per_prompt // config.sampling_batch_size)
    policy = on_devices(model, sizes)
    generate = [sampler_of(config, policy).program(batches)] if prompts else []
    pairs = config.data_pairs + prompts * config.pairs_per_prompt + config.damaged
    held_out = config.validation_fraction + config.heldout_fraction
    config = config.counted(round(pairs * (1 - held_out)))  # at most
    shape = (config.batch_size, config.response_length)
    kinds = {"ids": np.int32, "ends": np.bool_, "labels": np.int8}
    batch: dict[str, np.ndarray] = {
        f"{side}_{name}": np.zeros(shape, kind)
        for side in ("chosen", "rejected")
        for name, kind in kinds.items()
    }
    batch["prompt_ids"] = np.zeros((config.batch_size, config.prompt_length), np.int32)
    trained = on_devices(model, sizes)
    add_head(trained)
    scored = pairs * (2 * held_out + len(ATTACKS) * config.heldout_fraction)
    scorer = TraceScorer(trained, config.scoring_batch_size, config)
    return [
        *generate,
        *trainer_of(config, policy).programs(batch, config.steps, trips={}),
        scorer.program(scored / scorer.batch_size),
    ]


def small(config: Config, sizes: Sizes) -> Config:
    """60 updates on at most `sizes.rows` pairs of the data, and as many damaged traces. With a few
    rows the accuracy is not required."""
    samples = min(config.samples_per_prompt, FEW if sizes.few else 4)
    learned = {"min_pairs": 1, "min_accuracy": 0.0} if sizes.few else {}
    return small_trainer(
        config,
        sizes,
        steps=60,
        batch_size=FEW if sizes.few else 32,
        learning_rate=1e-3,
        responses=2,
        prompts=min(config.prompts, sizes.prompts),
        data_pairs=min(config.data_pairs, sizes.rows),
        damaged=min(config.damaged, sizes.rows),
        samples_per_prompt=samples,
        sampling_batch_size=min(config.sampling_batch_size, 128, sizes.prompts * samples),
        **learned,
    )


def run(job: Job[Config]) -> dict[str, Any]:
    """Collect pairs, train, measure.

    Raises:
        InputError: no prompt fits.
        StageFailed: there are too few pairs, the accuracy is too low, or a program compiled more
            than once.
    """
    from tasks.models.loading import policy_or_base
    from tasks.models.scalar_head import load_scoring_model
    from tasks.reward_models.scoring import TraceScorer
    from tasks.training.loop import counted, fit, rows_of_step, save_trained

    config = job.config
    mesh = make_mesh(batch_sizes(config))
    loaded = policy_or_base(job, mesh, trained=config.lora is None)
    pairs, about = _gathered(job, loaded)
    splits = split_pairs(pairs, config.validation_fraction, config.heldout_fraction)
    counts = {split: len(found) for split, found in splits.items()}
    job.log.info("pairs: %s; %s", counts, about)
    if counts["train"] < config.min_pairs or not counts["validation"] or not counts["heldout"]:
        raise StageFailed(
            f"{len(pairs)} pairs of traces ({about}) make {counts['train']} to train on,"
            f" {counts['validation']} to validate and {counts['heldout']} held out; min_pairs ="
            f" {config.min_pairs} are needed to train, and at least one of each other. Raise"
            " data_pairs, prompts or damaged, or the lengths."
        )
    job, config = counted(job, counts["train"])
    write_jsonl(job.out / "trace_pairs.jsonl", splits["train"])
    arrays = pair_arrays(
        loaded.tokenizer, splits["train"], config.prompt_length, config.response_length
    )

    def batch_at(step: int) -> dict[str, np.ndarray]:
        rows = rows_of_step(config.seed, step, config.batch_size, counts["train"])
        return {name: array[rows] for name, array in arrays.items()}

    trainer = trainer_of(config, loaded)
    curve = fit(trainer, batch_at, config, job)
    save_trained(trainer, loaded, job)
    del trainer, loaded
    # measure the model as written: rounded, with its adapters merged
    scorer = TraceScorer(load_scoring_model(job.out, mesh), config.scoring_batch_size, config)
    measured = _measured(job, scorer, splits["validation"], splits["heldout"])
    require_one_program(score_traces=scorer.compiles)
    last = curve[-10:]
    return {
        **measured,
        "pairs": counts,
        **about,
        "epochs": config.steps * config.batch_size / counts["train"],
        "loss_first": curve[0]["loss"],
        "loss_last": curve_mean("loss", last),
        "train_accuracy_last": curve_mean("rewards/accuracy", last),
    }


def _gathered(job: Job[Config], loaded: "LoadedModel") -> tuple[list[TracePair], dict[str, Any]]:
    """All pairs, with metrics of their origins and of what was left out. Raises InputError when no
    prompt fits."""
    config, left_out = job.config, Counter[str]()
    fits = fits_lengths(loaded.tokenizer, config.prompt_length, config.response_length)
    pairs = trace_pairs(
        read_pairs(job.inputs["prompts"] / "pairs.jsonl"), "data", config.data_pairs, fits, left_out
    )
    malformed = left_out["malformed"]
    about: dict[str, Any] = {
        "format_wins": (malformed + len(pairs) / 2) / (malformed + len(pairs)) if pairs else None
    }
    if config.prompts or config.damaged:
        examples = read_jsonl(job.inputs["prompts"] / "train.jsonl", Example)
        if config.prompts:
            sampled, samples, _ = sample_before_training(
                job, sampler_of(config, loaded), loaded.tokenizer, examples
            )
            mined, about["prompts_by_outcome"] = mine_pairs(
                sampled,
                samples,
                pairs_per_prompt=config.pairs_per_prompt,
                rejected_because=("wrong",),  # and a trace nevertheless
                teacher_when_none_verified=False,
                fits=lambda pair: True,
            )
            pairs += trace_pairs(mined, "policy", len(mined), fits, left_out)
        pairs += damaged_pairs(examples, config.damaged, config.seed, fits, left_out)
    return pairs, about | {
        "pairs_by_origin": dict(Counter(pair.origin for pair in pairs)),
        "left_out": dict(sorted(left_out.items())),
    }


def _measured(
    job: Job[Config],
    scorer: "TraceScorer",
    validation: Sequence[TracePair],
    heldout: Sequence[TracePair],
) -> dict[str, Any]:
    """Calibrate on validation pairs, measure on held-out ones, write both. Raises StageFailed if
    the accuracy is too low."""
    config, tokenizer = job.config, scorer.loaded.tokenizer
    fits = fits_lengths(tokenizer, config.prompt_length, config.response_length)

    def scored(pairs: Sequence[TracePair]) -> tuple[list[ScoredPair], list["Scores"]]:
        found = scorer.score([row for pair in pairs for row in pair.rows(tokenizer)])
        together = zip(pairs, found[::2], found[1::2], strict=True)
        return [
            ScoredPair(pair, chosen.trace, rejected.trace, rejected.steps)
            for pair, chosen, rejected in together
        ], found

    fitted, scores = scored(validation)
    calibration = Calibration(
        centre=float(np.mean([one.trace for one in scores])),
        temperature=fit_temperature([one.margin for one in fitted]),
        prompt_length=config.prompt_length,
        response_length=config.response_length,
    )
    found, scores = scored(heldout)
    rows = (
        {
            **pair.model_dump(mode="json"),
            "chosen_scores": chosen._asdict(),
            "rejected_scores": rejected._asdict(),
        }
        for pair, chosen, rejected in zip(heldout, scores[::2], scores[1::2], strict=True)
    )
    write_jsonl(job.out / "heldout.jsonl", rows)
    write_calibration(job.out, calibration, found)
    metrics = pair_metrics(found, calibration.temperature) | {"attacks": {}}
    for name, attack in ATTACKS.items():
        tried = [(attacked(one.pair, attack), one) for one in found]
        fitting = [(pair, before) for pair, before in tried if fits(pair)]
        again = scorer.score([pair.rows(tokenizer)[1] for pair, _ in fitting])
        after = [
            ScoredPair(pair, before.chosen, one.trace, one.steps)
            for (pair, before), one in zip(fitting, again, strict=True)
        ]
        metrics["attacks"][name] = attack_metrics(
            [before for _, before in fitting], after, calibration
        )
    if metrics["accuracy_low"] < config.min_accuracy:
        raise StageFailed(
            f"the reward model is right on {metrics['accuracy']:.1%} of {metrics['n']} held-out"
            f" pairs, on at least {metrics['accuracy_low']:.1%} with 95 % confidence; min_accuracy"
            f" = {config.min_accuracy:.1%}. Train it longer or on more pairs, raise"
            " heldout_fraction if there are few, or lower min_accuracy."
        )
    return metrics


KIND = Kind(
    version=7,
    config=Config,
    inputs={"prompts": Input(Product.ROWS), "policy": Input(Product.MODEL, required=False)},
    produces=Product.REWARD,
    run=run,
    small=small,
    programs=programs,
    devices=lambda config: True,
    dependencies=dependencies,
)

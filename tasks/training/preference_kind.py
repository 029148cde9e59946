"""Preference stages: everything that SimPO, DPO and ORPO share, which is all except the loss.

Pairs are of the policy's own samples, verified against wrong, malformed or truncated
(`tasks.training.preference_pairs`), and of a teacher's samples. A stage samples a bounded number of
training prompts, mines pairs, adds pairs of the data (`pairs.jsonl` of rebalance), writes all to
`pairs.jsonl`, and trains on exactly those. Responses, each after its prompt, share packed rows. All
batches have one shape, chosen from the pairs before any training program is compiled
(`tasks.training.pair_batches`); empty micro-batches of a step are skipped. The plan counts the
worst case: no skipped micro-batch, and a row of full length for each response.

A loss with a reference gets log-probabilities of all responses from one pass over the pairs before
training, while the model still is the reference. So there is no second model, and LoRA copies no
weights.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
from pydantic import Field, model_validator

from schemas.base import StageFailed
from schemas.examples import Example, PreferencePair, Rejection
from schemas.trainer_config import PairsConfig
from tasks.contract.job import Job, read_jsonl, write_jsonl
from tasks.contract.journal import Journal
from tasks.contract.kind import Input, Kind, Product
from tasks.contract.small import FEW, Sizes, small_trainer
from tasks.data.packing import Shape, Text
from tasks.data.tokens import Tokenizer, prompt_tokens, response_tokens
from tasks.devices.hosts import make_mesh
from tasks.sampling.rollouts import require_one_program, sample_before_training, sampler_of
from tasks.training.preference_pairs import mine_pairs, read_pairs, require_pairs
from tasks.verification.verify import check_versions

if TYPE_CHECKING:
    from tasks.models.loading import LoadedModel
    from tasks.planning.programs import Program
    from tasks.sampling.sampler import Sampler
    from tasks.training.pair_batches import PairLoss
    from tasks.training.trainer import Trainer


class PreferenceConfig(PairsConfig):
    """The config that these stages share.

    Attributes:
        rejected_because: use only responses that were rejected for these reasons, in the policy's
            samples and in the data's pairs; of a prompt's samples, those of the first reason first.
            `["malformed", "truncated"]` gives format pairs alone; with "wrong" as third it gives
            format pairs wherever there are any. None: any reason but "long", in the order of
            sampling. With "long" the shortest right samples are chosen, and right samples with
            `long_factor` times their characters are rejected.
        long_factor: see `rejected_because`.
        teacher_when_none_verified: choose the teacher's trace, if it verifies, for prompts whose
            samples are all rejected.
    """

    rejected_because: tuple[Rejection, ...] | None = Field(default=None, min_length=1)
    long_factor: float = Field(default=1.5, gt=1)
    teacher_when_none_verified: bool = True

    @model_validator(mode="after")
    def _pairs_come_from_somewhere(self) -> Self:
        if not self.prompts and not self.data_pairs:
            raise ValueError("prompts = 0 and data_pairs = 0 give no pairs; set one of them")
        return self


PreferenceConfigT = TypeVar("PreferenceConfigT", bound=PreferenceConfig)


def dependencies(config: PreferenceConfig, data: Any) -> dict[str, str | int]:
    """The versions of the checks, if the policy's answers are verified."""
    return check_versions() if config.prompts else {}


def rejected_tokens(tokenizer: Tokenizer, pair: PreferencePair, response_length: int) -> list[int]:
    """The rejected response as it was sampled: a truncated one has no terminator and fills
    `response_length`."""
    if pair.rejected_because == "truncated":
        return tokenizer.encode(pair.rejected)[:response_length]
    return response_tokens(tokenizer, pair.rejected)


def pair_fits(tokenizer: Tokenizer, pair: PreferencePair, config: PreferenceConfig) -> bool:
    """Whether prompt and responses fit. A sampled response may not: encoding its text again can
    give more tokens. Nor does one that was cut off before its first word, as of a teacher that
    thought for too long: no token has no log-probability."""
    chosen = len(response_tokens(tokenizer, pair.chosen))
    rejected = len(rejected_tokens(tokenizer, pair, config.response_length))
    return (
        0 < rejected <= config.response_length >= chosen
        and len(prompt_tokens(tokenizer, pair.prompt)) <= config.prompt_length
    )


def pair_texts(
    tokenizer: Tokenizer, pairs: Sequence[PreferencePair], config: PreferenceConfig
) -> list[tuple[Text, Text]]:
    """The training texts of each pair: the prompt with the chosen response, and with the rejected
    one."""
    found, width = [], config.response_length
    for pair in pairs:
        prompt = prompt_tokens(tokenizer, pair.prompt)
        rejected = rejected_tokens(tokenizer, pair, width)
        found.append(((prompt, response_tokens(tokenizer, pair.chosen)), (prompt, rejected)))
    return found


def batch_sizes(config: PreferenceConfig) -> dict[str, int]:
    """Setting -> how many rows the programs take at a time, for `make_mesh`."""
    from tasks.training.trainer import rows_at_once

    return {"sampling_batch_size": config.sampling_batch_size, **rows_at_once(config)}


def trainer_of(config: PreferenceConfig, loaded: "LoadedModel", loss: "PairLoss") -> "Trainer":
    """The trainer of a loss; it skips micro-batches without pairs."""
    from tasks.training.pair_batches import mean_over_pairs
    from tasks.training.trainer import make_trainer

    trainer = make_trainer(loaded, config, config.seed)
    trainer.is_wanted = lambda batch: batch.weights.any()
    trainer.with_loss_fn(mean_over_pairs(loss), has_aux=True)
    return trainer.with_gen_model_input_fn(lambda batch: {"train_example": batch})


def programs(
    config: PreferenceConfig,
    model: "LoadedModel",
    upstream: Mapping[str, Any],
    loss: "PairLoss",
    *,
    reference: bool = False,
) -> "list[Program]":
    """The programs that `run` compiles, in the worst case: lengths and packing are not known before
    sampling."""
    from flax import nnx

    from tasks.planning.programs import Program, on_devices, rows, scalar, shapes, vocabulary_trips
    from tasks.training.packed_logps import token_logps_fn
    from tasks.training.pair_batches import widest

    model = on_devices(model, batch_sizes(config))
    prompts = min(config.prompts, upstream["prompts"].rows_of("train"))
    batches = -(-prompts * config.samples_per_prompt // config.sampling_batch_size)
    found = [sampler_of(config, model).program(batches)] if prompts else []
    pairs = prompts * config.pairs_per_prompt + config.data_pairs  # at most
    config = config.counted(pairs)
    micro = config.batch_size // config.accumulation
    trips = vocabulary_trips(2 * micro * config.response_length, model.mesh)
    batch = widest(config, config.batch_size, reference=reference)
    if reference:  # measured on the model before it gets adapters
        four = (batch.tokens, batch.positions, batch.segments, batch.predicts)
        block = rows(tuple(array[: 2 * micro] for array in four), model.mesh)
        args = (shapes(nnx.state(model.model)), block, scalar(np.float32))
        program = token_logps_fn(model.model)
        found.append(Program("token_logps", program, args, -(-pairs // micro), trips=trips))
    trainer = trainer_of(config, model, loss)
    return [*found, *trainer.programs(batch, config.steps, trips=trips)]


def small(config: PreferenceConfigT, sizes: Sizes) -> PreferenceConfigT:
    """5 updates on the pairs of `sizes.prompts` prompts. In a rehearsal of a random model each
    prompt has one sample, as wrong as another one would be, so the teacher's trace is chosen."""
    most = 4 if not sizes.few else FEW if sizes.trained else 1
    samples = min(config.samples_per_prompt, most)
    hopeless = sizes.few and not sizes.trained
    return small_trainer(
        config,
        sizes,
        steps=5,
        batch_size=FEW if sizes.few else 16,
        learning_rate=1e-4,
        responses=2,
        prompts=min(config.prompts, sizes.prompts),
        data_pairs=min(config.data_pairs, 64),
        samples_per_prompt=samples,
        teacher_when_none_verified=config.teacher_when_none_verified or hopeless,
        sampling_batch_size=min(config.sampling_batch_size, 128, sizes.prompts * samples),
        min_pairs=min(config.min_pairs, 1 if sizes.few else 4),
    )


def run(job: Job[Any], loss: "PairLoss", *, reference: bool = False) -> dict[str, Any]:
    """Sample, mine, train and write the model.

    Args:
        reference: whether the loss needs the initial policy's log-probabilities.

    Raises:
        InputError: no prompt fits.
        StageFailed: there are too few pairs, or a program compiled more than once.
    """
    from tasks.models.loading import load_model
    from tasks.training.loop import counted, fit, save_trained
    from tasks.training.pair_batches import PairBatches

    config: PreferenceConfig = job.config
    loaded = load_model(job.inputs["policy"], make_mesh(batch_sizes(config)))
    sampler = sampler_of(config, loaded)
    pairs, about = _pairs_of_policy(job, loaded, sampler) if config.prompts else ([], {})
    taken, left_out = data_pairs(job.inputs["prompts"] / "pairs.jsonl", config, loaded.tokenizer)
    sampled = len(pairs)
    pairs += taken
    told = "%d pairs: %d of the policy's samples (%s), %d of the data"
    job.log.info(told, len(pairs), sampled, about, len(taken))
    if config.prompts:
        require_pairs(pairs, about["prompts_by_outcome"], config.min_pairs, len(taken))
    elif len(pairs) < config.min_pairs:
        raise StageFailed(
            f"the data has {len(pairs)} preference pairs that can be used ({left_out['too_long']}"
            f" are too long, {left_out['other_reasons']} rejected for other reasons than"
            f" rejected_because), fewer than min_pairs = {config.min_pairs}; raise data_pairs,"
            " prompt_length or response_length, or the samples of the distill stage's teacher; or"
            " set prompts, and the policy is sampled."
        )
    job, config = counted(job, len(pairs))
    write_jsonl(job.out / "pairs.jsonl", pairs)
    texts = pair_texts(loaded.tokenizer, pairs, config)
    batches = PairBatches(texts, config, loaded)
    told = "%d micro-batches of %d rows of %d tokens for %d steps, %.0f %% of them padding"
    job.log.info(told, batches.micro_batches, *batches.shape, config.steps, 100 * batches.padding)
    if reference:
        batches.ref_logps = reference_logps(job, loaded, texts, batches.shape)
    trainer = trainer_of(config, loaded, loss)
    curve = fit(trainer, batches.at, config, job)
    save_trained(trainer, loaded, job)
    return {
        "pairs": len(pairs),
        **about,
        "data_pairs": len(taken),
        **{f"data_pairs_{name}": count for name, count in left_out.items()},
        "rejected_because": dict(Counter(pair.rejected_because for pair in pairs)),
        "chosen_from": dict(Counter(pair.chosen_from for pair in pairs)),
        "epochs": config.steps * config.batch_size / len(pairs),
        "micro_batches": batches.micro_batches,
        "micro_batch_rows": batches.shape.rows,
        "row_length": batches.shape.length,
        "padding": batches.padding,
        **{
            f"{name}_{when}": row[f"rewards/{name}"]
            for name in ("margin", "accuracy")
            for when, row in (("first", curve[0]), ("last", curve[-1]))
            if f"rewards/{name}" in row  # a loss of your own may have no implicit rewards
        },
    }


def reference_logps(
    job: Job[Any], loaded: "LoadedModel", pairs: Sequence[tuple[Text, Text]], shape: Shape
) -> np.ndarray:
    """(pairs, 2) float32 log-probabilities of the chosen and the rejected responses under the model
    as it is; journaled.

    Args:
        shape: of the rows that are computed at a time.

    Raises:
        StageFailed: a shape was not fixed.
    """
    from flax import nnx

    from tasks.models.attention import sees_prefixes
    from tasks.planning.programs import compilations
    from tasks.training.packed_logps import texts_logps, token_logps_fn
    from tasks.training.pair_batches import pair_groups

    journal = Journal(job.work, "reference")
    entry = journal.get("logps")
    if entry is None:
        program = token_logps_fn(loaded.model)
        found = texts_logps(
            program,
            nnx.state(loaded.model),
            pair_groups(pairs, shared=sees_prefixes(loaded.mesh)),
            shape,
            job.config.response_length,
            pad_id=loaded.tokenizer.pad_id,
            mesh=loaded.mesh,
            progress=lambda done, total: job.progress(done, total, "reference rows"),
        )
        sums = found.sum(axis=1).reshape(-1, 2)
        require_one_program(token_logps=compilations(program))
        entry = [{"logps": sums.tolist()}]
        journal.put("logps", entry)
    (row,) = entry
    return np.asarray(row["logps"], np.float32)


def _pairs_of_policy(
    job: Job[Any], loaded: "LoadedModel", sampler: "Sampler"
) -> tuple[list[PreferencePair], dict[str, Any]]:
    """Sample the policy and mine its pairs. Returns them with metrics. Raises InputError when no
    prompt fits."""
    config, tokenizer = job.config, loaded.tokenizer
    rows = read_jsonl(job.inputs["prompts"] / "train.jsonl", Example)
    examples, samples, dropped = sample_before_training(job, sampler, tokenizer, rows)
    pairs, outcomes = mine_pairs(
        examples,
        samples,
        pairs_per_prompt=config.pairs_per_prompt,
        rejected_because=config.rejected_because,
        teacher_when_none_verified=config.teacher_when_none_verified,
        long_factor=config.long_factor,
        fits=lambda pair: pair_fits(tokenizer, pair, config),
    )
    return pairs, {
        "prompts": len(examples),
        "prompts_too_long": dropped,
        "prompts_by_outcome": outcomes,
    }


def data_pairs(
    path: Path, config: PreferenceConfig, tokenizer: Tokenizer
) -> tuple[list[PreferencePair], dict[str, int]]:
    """The first `data_pairs` pairs of the data that have a wanted reason and fit; and how many were
    skipped before the last of them for `other_reasons`, or as `too_long`."""
    pairs: list[PreferencePair] = []
    left_out = {"other_reasons": 0, "too_long": 0}
    found = read_pairs(path)
    while len(pairs) < config.data_pairs and (pair := next(found, None)):
        if config.rejected_because and pair.rejected_because not in config.rejected_because:
            left_out["other_reasons"] += 1
        elif not pair_fits(tokenizer, pair, config):
            left_out["too_long"] += 1
        else:
            pairs.append(pair)
    return pairs, left_out


def preference_kind(
    *,
    version: int,
    config: type[PreferenceConfigT],
    loss_of: "Callable[[PreferenceConfigT], PairLoss]",
    reference: bool = False,
) -> Kind[PreferenceConfigT]:
    """The stage kind of a preference loss.

    Args:
        loss_of: the loss of a config.
        reference: whether the loss compares with the initial policy.
    """
    return Kind(
        version=version,
        config=config,
        inputs={"policy": Input(Product.MODEL), "prompts": Input(Product.ROWS)},
        produces=Product.MODEL,
        run=lambda job: run(job, loss_of(job.config), reference=reference),
        small=small,
        programs=lambda config, model, upstream: programs(
            config, model, upstream, loss_of(config), reference=reference
        ),
        devices=lambda config: True,
        dependencies=dependencies,
    )

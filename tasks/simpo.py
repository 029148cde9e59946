"""SimPO on pairs of the policy's own samples, verified against wrong, malformed or cut off (`tasks.preference_pairs`), and on a teacher's.

The stage samples a bounded number of training prompts and mines the pairs, takes pairs of the data (`pairs.jsonl` of rebalance: a teacher's
samples), writes all to `pairs.jsonl` and trains on exactly those with `tasks.losses.simpo` in Tunix's preference trainer. Prompts are
left-padded and responses right-padded to fixed lengths.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from pydantic import Field, model_validator

from schemas.base import StageFailed
from schemas.examples import Example, PreferencePair
from schemas.training import TrainerConfig
from tasks.data.tokens import Tokenizer, pad_left, pad_right, prompt_tokens, response_tokens
from tasks.hosts import by_rows, make_mesh
from tasks.job import TRAINED, Input, Job, read_jsonl, write_jsonl
from tasks.journal import Journal
from tasks.preference_pairs import mine_pairs, require_pairs
from tasks.rollouts import fitting_prompts, rollout_seed, sample_groups
from tasks.verify import check_versions

if TYPE_CHECKING:
    from tunix.sft.dpo.dpo_trainer import TrainingInput

    from tasks.models.loading import LoadedModel
    from tasks.programs import Program
    from tasks.sampling import Sampler
    from tasks.trainers import PreferenceTrainer

VERSION = 4
USES_DEVICES = True
INPUTS = {"policy": Input(TRAINED), "prompts": Input(("rebalance",))}


class Config(TrainerConfig):
    """SimPO. `batch_size` counts pairs.

    Attributes:
        beta: scale of the implicit reward; the paper finds 2 to 2.5 good, and 10 often better.
        gamma_beta_ratio: the target margin in mean log-probability per token; the paper's grid is 0 to 1.
        sft_weight: weight of the supervised term on the chosen response; 0 is the paper's loss.
        prompts: how many training prompts are sampled; fewer when there are fewer. Prompts longer than `prompt_length` tokens are left out.
            0 samples none: then all pairs are the data's.
        data_pairs: how many of the data's pairs are taken, at most; those that do not fit the fixed lengths are left out.
        samples_per_prompt: responses sampled for each prompt at `temperature`, at most `response_length` tokens each.
        pairs_per_prompt: the most pairs one prompt gives.
        teacher_when_none_verified: the teacher's trace is the chosen response of prompts whose samples are all rejected.
        min_pairs: fewer pairs than this fail the stage.
        sampling_batch_size: responses sampled at a time.
        max_dropped_fraction: more training prompts than this fraction left out is an error.
    """

    seed: int = 0
    beta: float = Field(default=2.5, gt=0)
    gamma_beta_ratio: float = Field(default=0.5, ge=0)
    sft_weight: float = Field(default=0.0, ge=0)
    prompts: int = Field(ge=0)
    data_pairs: int = Field(default=0, ge=0)
    samples_per_prompt: int = Field(default=4, ge=1)
    pairs_per_prompt: int = Field(default=1, ge=1)
    teacher_when_none_verified: bool = True
    min_pairs: int = Field(default=16, ge=1)
    temperature: float = Field(default=1.0, gt=0)
    prompt_length: int = Field(ge=8)
    response_length: int = Field(ge=8)
    sampling_batch_size: int = Field(default=64, ge=1)
    max_dropped_fraction: float = Field(default=0.0, ge=0, le=1)

    @model_validator(mode="after")
    def _pairs_come_from_somewhere(self) -> Self:
        if not self.prompts and not self.data_pairs:
            raise ValueError("prompts = 0 and data_pairs = 0 give no pairs; set one of them")
        return self


def rejected_tokens(tokenizer: Tokenizer, pair: PreferencePair, response_length: int) -> list[int]:
    """The rejected response as it was sampled: one that was cut off has no terminator and fills `response_length`."""
    if pair.rejected_because == "truncated":
        return tokenizer.encode(pair.rejected)[:response_length]
    return response_tokens(tokenizer, pair.rejected)


def pair_fits(tokenizer: Tokenizer, pair: PreferencePair, config: Config) -> bool:
    """Whether prompt and responses fit. A sampled response may not: encoded again, a text can have more tokens than it was written in."""
    longest = max(len(response_tokens(tokenizer, pair.chosen)), len(rejected_tokens(tokenizer, pair, config.response_length)))
    return longest <= config.response_length and len(prompt_tokens(tokenizer, pair.prompt)) <= config.prompt_length


def pair_arrays(tokenizer: Tokenizer, pairs: Sequence[PreferencePair], config: Config) -> dict[str, np.ndarray]:
    """What is trained on: prompt_ids (N, P) left-padded, chosen_ids and rejected_ids (N, R) right-padded, and masks of real tokens."""
    ids = {
        "prompt": pad_left([prompt_tokens(tokenizer, pair.prompt) for pair in pairs], config.prompt_length, tokenizer.pad_id),
        "chosen": pad_right([response_tokens(tokenizer, pair.chosen) for pair in pairs], config.response_length, tokenizer.pad_id),
        "rejected": pad_right(
            [rejected_tokens(tokenizer, pair, config.response_length) for pair in pairs], config.response_length, tokenizer.pad_id
        ),
    }
    return {f"{name}_ids": array for name, array in ids.items()} | {
        f"{name}_mask": array != tokenizer.pad_id for name, array in ids.items()
    }


def dependencies(config: Config, data: Any) -> dict[str, str | int]:
    """How answers are verified, where the policy's are."""
    return check_versions() if config.prompts else {}


def trainer_of(config: Config, loaded: "LoadedModel") -> "PreferenceTrainer":
    """The trainer of this stage, on Tunix's TrainingInput."""
    import jax

    from tasks.losses.simpo import simpo_loss_fn, stack_pairs
    from tasks.trainers import PreferenceTrainer, make_trainer

    def model_input(batch: "TrainingInput") -> dict[str, Any]:
        return {
            "train_example": jax.tree.map(by_rows, stack_pairs(batch)),
            "beta": config.beta,
            "gamma_beta_ratio": config.gamma_beta_ratio,
            "sft_weight": config.sft_weight,
        }

    trainer = make_trainer(PreferenceTrainer, loaded, config, config.seed)
    return trainer.with_loss_fn(simpo_loss_fn, has_aux=True).with_gen_model_input_fn(model_input)


def sampler_of(config: Config, loaded: "LoadedModel") -> "Sampler":
    """What samples the responses, before training."""
    from tasks.sampling import Sampler

    return Sampler(
        loaded, batch_size=config.sampling_batch_size, prompt_length=config.prompt_length, response_length=config.response_length
    )


def batch_sizes(config: Config) -> dict[str, int]:
    """Of how many rows the programs take at a time, by the setting: what `make_mesh` takes."""
    from tasks.trainers import rows_at_once

    return {"sampling_batch_size": config.sampling_batch_size, **rows_at_once(config)}


def programs(config: Config, model: "LoadedModel", upstream: Mapping[str, Any]) -> "list[Program]":
    """What `run` compiles. All tokens of the responses are counted: how long they are is not known before they are sampled."""
    from tunix.sft.dpo.dpo_trainer import TrainingInput

    from tasks.programs import on_devices, vocabulary_trips

    model = on_devices(model, batch_sizes(config))
    prompts = min(config.prompts, sum(quota.total("train") for quota in upstream["prompts"].quotas.values()))
    batches = -(-prompts * config.samples_per_prompt // config.sampling_batch_size)
    generate = [sampler_of(config, model).program(batches)] if prompts else []
    trainer = trainer_of(config, model)
    widths = {"prompt": config.prompt_length, "chosen": config.response_length, "rejected": config.response_length}
    shapes = {name: (config.batch_size, width) for name, width in widths.items()}
    ids = {f"{name}_ids": np.zeros(shape, np.int32) for name, shape in shapes.items()}
    batch = TrainingInput(**ids, **{f"{name}_mask": np.zeros(shape, bool) for name, shape in shapes.items()})
    responses = 2 * config.batch_size // config.accumulation * config.response_length
    return [*generate, *trainer.programs(batch, config.steps, trips=vocabulary_trips(responses, trainer.mesh))]


def run(job: Job[Config]) -> dict[str, Any]:
    """Sample, mine, train and write the model. Raises InputError when no prompt fits, StageFailed when there are too few pairs."""
    from tunix.sft.dpo.dpo_trainer import TrainingInput

    from tasks.models.loading import load_model
    from tasks.training import fit, rows_of_step, save_trained

    config = job.config
    loaded = load_model(job.inputs["policy"], make_mesh(batch_sizes(config)))
    sampler = sampler_of(config, loaded)
    pairs, about = _pairs_of_policy(job, loaded, sampler) if config.prompts else ([], {})
    taken, too_long = data_pairs(job.inputs["prompts"] / "pairs.jsonl", config, loaded.tokenizer)
    pairs += taken
    job.log.info("%d pairs: %d of the policy's samples (%s), %d of the data", len(pairs), len(pairs) - len(taken), about, len(taken))
    if config.prompts:
        require_pairs(pairs, about["prompts_by_outcome"], config.min_pairs)
    elif len(pairs) < config.min_pairs:
        raise StageFailed(
            f"the data has {len(pairs)} preference pairs that fit ({too_long} do not), fewer than min_pairs = {config.min_pairs}; raise "
            "data_pairs, prompt_length or response_length, or the samples of the distill stage's teacher; or set prompts, and the policy "
            "is sampled."
        )
    write_jsonl(job.out / "pairs.jsonl", pairs)
    arrays = pair_arrays(loaded.tokenizer, pairs, config)

    def batch_at(step: int) -> TrainingInput:
        rows = rows_of_step(config.seed, step, config.batch_size, len(pairs))
        return TrainingInput(**{name: array[rows] for name, array in arrays.items()})

    trainer = trainer_of(config, loaded)
    curve = fit(trainer, batch_at, config, job)
    save_trained(trainer, loaded, job)
    return {
        "pairs": len(pairs),
        **about,
        "data_pairs": len(taken),
        "data_pairs_too_long": too_long,
        "rejected_because": dict(Counter(pair.rejected_because for pair in pairs)),
        "chosen_from": dict(Counter(pair.chosen_from for pair in pairs)),
        "epochs": config.steps * config.batch_size / len(pairs),
        "margin_first": curve[0]["rewards/margin"],
        "margin_last": curve[-1]["rewards/margin"],
        "accuracy_first": curve[0]["rewards/accuracy"],
        "accuracy_last": curve[-1]["rewards/accuracy"],
        "compiles": {"train_step": trainer.compiles, **({"sampler": sampler.compiles} if config.prompts else {})},
    }


def _pairs_of_policy(job: Job[Config], loaded: "LoadedModel", sampler: "Sampler") -> tuple[list[PreferencePair], dict[str, Any]]:
    """Sample the policy and mine its pairs; metrics of that. Raises InputError when no prompt fits."""
    config, tokenizer = job.config, loaded.tokenizer
    rows = read_jsonl(job.inputs["prompts"] / "train.jsonl", Example)
    fitting, dropped = fitting_prompts(rows, tokenizer, config.prompt_length, config.max_dropped_fraction)
    order = np.random.Generator(np.random.Philox(config.seed)).permutation(len(fitting))
    examples = [fitting[index] for index in order[: config.prompts]]
    samples = sample_groups(
        sampler,
        examples,
        config.samples_per_prompt,
        temperature=config.temperature,
        seed=rollout_seed(config.seed, 0),
        journal=Journal(job.work, "samples"),
        progress=lambda done: job.progress(done, len(examples) * config.samples_per_prompt, "samples"),
    )
    pairs, outcomes = mine_pairs(
        examples,
        samples,
        pairs_per_prompt=config.pairs_per_prompt,
        teacher_when_none_verified=config.teacher_when_none_verified,
        fits=lambda pair: pair_fits(tokenizer, pair, config),
    )
    return pairs, {"prompts": len(examples), "prompts_too_long": dropped, "prompts_by_outcome": outcomes}


def data_pairs(path: Path, config: Config, tokenizer: Tokenizer) -> tuple[list[PreferencePair], int]:
    """The first `data_pairs` pairs of the data that fit, and how many before the last of them do not."""
    pairs: list[PreferencePair] = []
    too_long = 0
    with path.open(encoding="utf-8") as lines:
        while len(pairs) < config.data_pairs and (line := next(lines, None)):
            pair = PreferencePair.model_validate_json(line)
            if pair_fits(tokenizer, pair, config):
                pairs.append(pair)
            else:
                too_long += 1
    return pairs, too_long

"""GRPO: the policy samples groups of responses, rewards score them, and Tunix's GRPO loss moves the policy within a KL of where it began.

The prompts of update `step` are slice step // num_iterations of one permutation per epoch; G responses to each are sampled from the
current weights; `tasks.rewarding` scores them; `tasks.losses.grpo` gives advantages and the loss; the reference is a frozen copy of the
initial policy. A response that was cut off stays in the loss and is worth what its text earns (a trace that was not closed is malformed).
A response on which every reward abstained is left out of its group and of the loss.

Loss, KL and advantages are Tunix's (`tasks.losses.grpo`); the loop is not Tunix's GRPOLearner on RLCluster, which
repeats its shuffles after a resume (google/tunix issue 2288) and skips unconsumed data when num_iterations > 1 (issue 2290): there
a batch is not a function of (seed, step).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from pydantic import Field, model_validator

from schemas.base import StageFailed
from schemas.examples import Prompt
from schemas.training import TrainerConfig
from tasks.data.tokens import pad_left, pad_right, prompt_tokens
from tasks.hosts import fetch, make_mesh, spread
from tasks.job import TRAINED, Input, Job, read_jsonl, write_jsonl
from tasks.plugins import plugin_versions
from tasks.rewarding import Resources, Response, Scorer, parse_rewards
from tasks.rollouts import Rollout, fitting_prompts, rollout_seed, sample_groups
from tasks.verify import check_versions

if TYPE_CHECKING:
    from tunix.rl.common import TrainExample

    from tasks.models.gemma import Gemma
    from tasks.models.loading import LoadedModel
    from tasks.programs import Program
    from tasks.sampling import Sampler
    from tasks.trainers import PolicyTrainer

VERSION = 3
USES_DEVICES = True
INPUTS = {"policy": Input(TRAINED), "prompts": Input(("rebalance",))}


class Config(TrainerConfig):
    """GRPO. `batch_size` counts responses: an update trains on batch_size / group_size groups.

    Attributes:
        rewards: one table per reward: its name, its weight among the others, its knobs.
        group_size: G, the responses sampled for each prompt.
        oversampling: groups sampled for each group trained on. Above 1, groups whose rewards differ are trained on first and groups that
            teach nothing only fill the batch (DAPO's dynamic sampling, 2503.14476, with a fixed number of samples).
        num_iterations: updates on each rollout (the paper's mu). With 1 the ratio is 1 and nothing is clipped.
        beta: weight of the KL to the initial policy; 0 also skips computing it.
        epsilon: the ratio is clipped to 1 - epsilon .. 1 + epsilon.
        temperature: of sampling, and of every log-probability in the loss.
        prompt_length, response_length: tokens; longer prompts are left out, longer responses cut off.
        max_dropped_fraction: more prompts than this fraction left out is an error.
    """

    seed: int = 0
    rewards: tuple[dict[str, Any], ...] = Field(min_length=1)
    group_size: int = Field(default=8, ge=2)
    oversampling: int = Field(default=1, ge=1)
    num_iterations: int = Field(default=1, ge=1)
    beta: float = Field(default=0.04, ge=0)
    epsilon: float = Field(default=0.2, gt=0, lt=1)
    temperature: float = Field(default=1.0, gt=0)
    prompt_length: int = Field(ge=8)
    response_length: int = Field(ge=8)
    max_dropped_fraction: float = Field(default=0.0, ge=0, le=1)

    @classmethod
    def parse(cls, value: Any) -> Self:
        """Validate; the rewards' tables come back complete with their defaults, so that these are part of the stage key.

        Raises:
            pydantic.ValidationError: this Config does not validate.
            InputError: a reward's table does not, or a reward is listed twice.
        """
        config = super().parse(value)
        complete = [reward.model_dump(mode="json") for reward in parse_rewards(config.rewards, "rewards")]
        return config.model_copy(update={"rewards": tuple(complete)})

    @model_validator(mode="after")
    def _groups_fill_the_batch(self) -> Self:
        if self.batch_size % self.group_size:
            raise ValueError(f"batch_size = {self.batch_size} (responses per update) must be a multiple of group_size = {self.group_size}")
        return self

    @property
    def groups(self) -> int:
        """Groups in a batch."""
        return self.batch_size // self.group_size


def dependencies(config: Config, data: Any) -> dict[str, str | int]:
    """The versions of the rewards that the config names, and of the checks that they rest on."""
    return {**plugin_versions("rewards", [table["name"] for table in config.rewards]), **check_versions()}


def trainer_of(config: Config, loaded: "LoadedModel") -> "PolicyTrainer":
    """The trainer of this stage, on Tunix's TrainExample."""
    from tasks.losses.grpo import grpo_loss_fn
    from tasks.trainers import PolicyTrainer, make_trainer

    trainer = make_trainer(PolicyTrainer, loaded, config, config.seed)
    loss = grpo_loss_fn(
        pad_id=loaded.tokenizer.pad_id, beta=config.beta, epsilon=config.epsilon, temperature=config.temperature
    )  # fmt: skip
    trainer.with_loss_fn(loss, has_aux=True).with_gen_model_input_fn(lambda batch: {"train_example": batch})
    trainer.with_rl_metrics_to_log(dict.fromkeys(("entropy", "pg_clipfrac", *(["kl"] if config.beta else [])), np.mean))
    return trainer


def programs_of(config: Config, loaded: "LoadedModel") -> "tuple[Sampler, Any]":
    """What samples responses, and the program that gives their log-probabilities under any weights."""
    from tasks.losses.grpo import token_logps_fn
    from tasks.sampling import Sampler

    sampler = Sampler(loaded, batch_size=config.batch_size, prompt_length=config.prompt_length, response_length=config.response_length)
    return sampler, token_logps_fn(loaded.model, loaded.tokenizer.pad_id)


def initial_policy(model: "Gemma") -> Any:
    """The weights as they are: copies of what is trained, and what is frozen itself, so that with LoRA the reference is no second model."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    adapters, rest = nnx.state(model, nnx.LoRAParam, ...)
    copied, kept = (adapters, rest) if jax.tree.leaves(adapters) else (rest, adapters)
    return nnx.merge_state(jax.tree.map(jnp.copy, copied), kept)


def programs(config: Config, model: "LoadedModel", upstream: Mapping[str, Any]) -> "list[Program]":
    """What `run` compiles. Responses are counted at their full length: how long they are is not known before they are sampled."""
    from flax import nnx
    from tunix.rl.common import TrainExample

    from tasks.programs import Program, on_devices, rows, scalar, shapes, vocabulary_trips
    from tasks.trainers import rows_at_once

    model = on_devices(model, rows_at_once(config))
    trainer = trainer_of(config, model)
    sampler, token_logps = programs_of(config, model)
    prompt, response = ((config.batch_size, width) for width in (config.prompt_length, config.response_length))
    batch = TrainExample(
        prompt_ids=np.zeros(prompt, np.int32),
        prompt_mask=np.zeros(prompt, bool),
        completion_ids=np.zeros(response, np.int32),
        completion_mask=np.zeros(response, bool),
        advantages=np.zeros(config.batch_size, np.float32),
        ref_per_token_logps=np.zeros(response, np.float32) if config.beta else None,
        old_per_token_logps=np.zeros(response, np.float32) if config.num_iterations > 1 else None,
    )
    micro = config.batch_size // config.accumulation
    trips = vocabulary_trips(micro * config.response_length, trainer.mesh)
    trained, optimizer, _ = map(shapes, trainer.state())
    reference = trained if config.beta else None  # what is frozen is there once
    rollouts = -(-config.steps // config.num_iterations)
    ids = tuple(np.zeros((micro, width[1]), np.int32) for width in (prompt, response))
    weights = shapes(nnx.state(model.model))
    passes = bool(config.beta) + (config.num_iterations > 1) + 1 / config.log_every  # the last measures the sampler gap
    logps = (weights, *rows(ids, trainer.mesh), scalar(np.float32))
    return [
        sampler.program(rollouts * config.oversampling, resident=(optimizer, reference)),
        Program("token_logps", token_logps, logps, rollouts * passes * config.accumulation, (optimizer, reference), trips),
        *trainer.programs(batch, config.steps, trips=trips, resident=reference),
    ]


class RolloutBatches:
    """Makes the training input of each update: samples, scores and assembles when an update begins a rollout, and reuses that rollout
    for the next `num_iterations - 1` updates.

    Attributes:
        metrics: update (from 1) -> what its rollout measured (`Rollout.metrics`; on logged updates also `sampler_gap`, the mean absolute
            difference between the sampler's and the trainer's log-probability of a sampled token, in nats).
        samples: the rows of `rollouts.jsonl`: all responses to one prompt of each logged rollout.

    It is what the stage `Keeps` (`tasks.training`) beside the trainer: `samples`, and a rollout that more updates will use.
    """

    def __init__(self, config: Config, loaded: "LoadedModel", examples: list[Prompt], resources: Resources):
        self.config, self.loaded, self.examples = config, loaded, examples
        self.scorer = Scorer(parse_rewards(config.rewards, "rewards"), resources)
        self.sampler, self.token_logps = programs_of(config, loaded)
        self.reference = initial_policy(loaded.model) if config.beta else None
        self.metrics: dict[int, dict[str, float]] = {}
        self.samples: list[dict[str, Any]] = []
        self._batch: TrainExample | None = None
        self._compiled_before = {"sampler": 0, "token_logps": 0}

    def batch_at(self, step: int) -> "TrainExample":
        """The training input of update `step` (from 0). A rollout is a function of the weights before its first update."""
        rollout_index, reused = divmod(step, self.config.num_iterations)
        if reused:
            if self._batch is None:
                raise StageFailed(f"update {step} reuses a rollout that was not sampled; start at update {step - reused}")
            self.metrics[step + 1] = self.metrics[step]
            return self._batch
        rollout = self._roll_out(rollout_index)
        updates = range(step + 1, step + 1 + self.config.num_iterations)
        logged = any(update % self.config.log_every == 0 or update in (1, self.config.steps) for update in updates)
        self._batch, gap = self._assemble(rollout.select(self.config.groups), measure_gap=logged)
        self.metrics[step + 1] = rollout.metrics() | ({} if gap is None else {"sampler_gap": gap})
        if logged:
            self.samples += rollout.rows(step + 1)
        return self._batch

    def _roll_out(self, index: int) -> Rollout:
        """Sample and score rollout `index` with the current weights."""
        from tasks.losses.grpo import group_advantages
        from tasks.training import rows_of_step

        config = self.config
        rows = rows_of_step(config.seed, index, config.groups * config.oversampling, len(self.examples))
        chosen = [self.examples[row] for row in rows]
        groups = sample_groups(
            self.sampler, chosen, config.group_size, temperature=config.temperature, seed=rollout_seed(config.seed, index)
        )
        completions = [completion for group in groups for completion in group]
        prompts = [example for example in chosen for _ in range(config.group_size)]
        responses = [Response(one.text, len(one.tokens), not one.terminated) for one in completions]
        rewards = self.scorer.score(prompts, responses, index * config.num_iterations + 1)
        return Rollout(prompts, completions, rewards, group_advantages(rewards.total, config.group_size), config.group_size)

    def _assemble(self, rollout: Rollout, *, measure_gap: bool) -> "tuple[TrainExample, float | None]":
        """Fixed-shape arrays of a rollout, batch first, and the sampler gap if it is to be measured."""
        from flax import nnx
        from tunix.rl.common import TrainExample

        config, tokenizer = self.config, self.loaded.tokenizer
        prompt_ids = pad_left(
            [prompt_tokens(tokenizer, prompt.prompt) for prompt in rollout.prompts], config.prompt_length, tokenizer.pad_id
        )
        completion_ids = pad_right([completion.tokens for completion in rollout.completions], config.response_length, tokenizer.pad_id)
        sampled = completion_ids != tokenizer.pad_id
        policy = nnx.state(self.loaded.model)
        batch = TrainExample(
            prompt_ids=prompt_ids,
            prompt_mask=prompt_ids != tokenizer.pad_id,
            completion_ids=completion_ids,
            completion_mask=sampled & ~np.isnan(rollout.rewards.total)[:, None],
            advantages=rollout.advantages.astype(np.float32),
            ref_per_token_logps=self._logps(self.reference, prompt_ids, completion_ids, config.temperature) if config.beta else None,
            old_per_token_logps=self._logps(policy, prompt_ids, completion_ids, config.temperature) if config.num_iterations > 1 else None,
        )
        if not measure_gap:
            return batch, None
        logps = np.zeros(completion_ids.shape, np.float32)
        for row, completion in enumerate(rollout.completions):
            logps[row, : len(completion.logps)] = completion.logps
        difference = np.abs(logps - self._logps(policy, prompt_ids, completion_ids, 1.0))  # the sampler reports them at temperature 1
        return batch, float(difference[sampled].mean())

    def _logps(self, state: Any, prompt_ids: np.ndarray, completion_ids: np.ndarray, temperature: float) -> np.ndarray:
        """(B, R) float32 log-probabilities, one micro-batch at a time."""
        import jax

        size, mesh = len(prompt_ids) // self.config.accumulation, self.loaded.mesh
        slices = [slice(start, start + size) for start in range(0, len(prompt_ids), size)]
        scale = np.float32(temperature)
        with jax.set_mesh(mesh):
            logps = [self.token_logps(state, *spread((prompt_ids[s], completion_ids[s]), mesh), scale) for s in slices]
        return np.concatenate([fetch(of_micro) for of_micro in logps])

    def kept(self, step: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """What the updates after the first `step` ones need: see `tasks.training.Keeps`."""
        values = {"samples": self.samples, "compiles": self.compiles()}
        if step % self.config.num_iterations == 0:
            return {}, values
        arrays = {name: array for name, array in vars(self._batch).items() if array is not None}
        return arrays, values | {"metrics": self.metrics[step]}

    def restore(self, step: int, arrays: dict[str, np.ndarray], values: dict[str, Any]) -> None:
        """Go on after `step` updates with what was `kept` then."""
        from tunix.rl.common import TrainExample

        self.samples, self._compiled_before = values["samples"], values["compiles"]
        if arrays:
            optional = dict.fromkeys(("ref_per_token_logps", "old_per_token_logps"))
            self._batch = TrainExample(**{**optional, **arrays})
            self.metrics[step] = values["metrics"]

    def compiles(self) -> dict[str, int]:
        """Programs compiled for sampling and for log-probabilities, in this attempt or in one that it goes on from.

        Raises:
            StageFailed: a shape was not fixed.
        """
        counts = {"sampler": self.sampler.compiles, "token_logps": self.token_logps._cache_size()}
        compiled = {name: max(count, self._compiled_before[name]) for name, count in counts.items()}
        for name, count in compiled.items():
            if count > 1:
                raise StageFailed(f"{name} compiled {count} times; a stage compiles each program once (fixed shapes)")
        return compiled


def run(job: Job[Config]) -> dict[str, Any]:
    """Train and write the model. Raises InputError when too many prompts do not fit, StageFailed when a program compiled more than once."""
    from tasks.models.loading import load_model
    from tasks.trainers import rows_at_once
    from tasks.training import fit, save_trained

    config = job.config
    loaded = load_model(job.inputs["policy"], make_mesh(rows_at_once(config)), trained=config.lora is None)
    examples, dropped = fitting_prompts(
        read_jsonl(job.inputs["prompts"] / "prompts.jsonl", Prompt), loaded.tokenizer, config.prompt_length, config.max_dropped_fraction
    )
    trainer = trainer_of(config, loaded)
    resources = Resources(job.inputs, job.answers, config.seed, config.response_length, log=job.log)
    batches = RolloutBatches(config, loaded, examples, resources)  # before `fit` restores: its reference is the initial policy
    curve = fit(trainer, batches.batch_at, config, job, extra=batches.metrics.__getitem__, keeps=batches)
    batches.scorer.close()
    compiles = batches.compiles()
    write_jsonl(job.out / "rollouts.jsonl", batches.samples)
    save_trained(trainer, loaded, job)

    def mean(name: str, rows: list[dict[str, float]]) -> float | None:
        values = [row[name] for row in rows if name in row]
        return float(np.mean(values)) if values else None

    return {
        "prompts": len(examples),
        "prompts_too_long": dropped,
        "rollouts": -(-config.steps // config.num_iterations),
        "epochs": config.steps / config.num_iterations * config.groups * config.oversampling / len(examples),
        "reward_first": mean("reward", curve[:10]),
        "reward_last": mean("reward", curve[-10:]),
        "kl_last": mean("kl", curve[-10:]),
        "zero_variance": mean("zero_variance", curve),
        "all_right": mean("all_right", curve),
        "all_wrong": mean("all_wrong", curve),
        "truncated_last": mean("truncated", curve[-10:]),
        "sampler_gap": mean("sampler_gap", curve),
        "compiles": {"train_step": trainer.compiles, **compiles},
    }

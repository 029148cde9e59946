"""GRPO and its variants: the policy samples groups of responses, rewards score them, and a clipped
policy gradient updates it.

The config's `algorithm` is GRPO, Dr.GRPO, DAPO or GSPO. Five files lead from here to the gradient:

    tasks/stages/grpo.py                the stage
    tasks/reinforcement/grpo_config.py  its settings
    tasks/reinforcement/batches.py      sampling and scoring of rollouts, ahead of the updates
    tasks/reinforcement/rollout.py      a rollout: advantages, weights, the batch in packed rows
    tasks/losses/grpo.py                the loss, with formulas and papers

Beside them, `curriculum` chooses prompts, `rewarding` averages the rewards and `collapse` stops a
run that collapses. The reference is a frozen copy of the initial policy. A truncated response stays
in the loss with the reward of its text; a response on which every reward abstained is left out of
its group and of the loss.

Tunix's GRPOLearner on RLCluster is not used: it repeats its shuffles after a resume (google/tunix
issue 2288) and skips unconsumed data when num_iterations > 1 (issue 2290), so a batch there is not
a function of (seed, step).

Beside the model the artifact has `ledger.jsonl.gz` (`schemas.ledger`: every response and its
rewards), `rollouts.jsonl` (a sample of them to read), `curves.jsonl` and, where passing code looks
suspicious, `audit.jsonl` (`tasks.reinforcement.passing_code`).
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from schemas.examples import Prompt
from tasks.contract.job import Job, read_jsonl, write_jsonl
from tasks.contract.kind import Input, Kind, Product
from tasks.contract.reward import REWARDS, Resources
from tasks.contract.small import FEW, Sizes, small_trainer
from tasks.data.packing import lengths_for
from tasks.devices.hosts import BATCH, TENSOR, halves, make_mesh
from tasks.reinforcement.grpo_config import Config
from tasks.reinforcement.rewarding import parse_rewards
from tasks.sampling.rollouts import curve_mean, fitting_prompts, rollout_programs
from tasks.verification.verify import check_versions

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from tasks.models.loading import LoadedModel
    from tasks.planning.programs import Program
    from tasks.training.trainer import Trainer


def dependencies(config: Config, data: Any) -> dict[str, str | int]:
    """The versions of the config's rewards, of the checks that they use, and whatever else decides
    their values."""
    rewards = parse_rewards(config.rewards, "rewards")
    found = {**REWARDS.versions(reward.name for reward in rewards), **check_versions()}
    for reward in rewards:
        found |= {
            f"rewards.{reward.name}.{name}": value
            for name, value in REWARDS[reward.name].dependencies(reward, data).items()
        }
    return found


def foresee(config: Config, inputs: Mapping[str, Any], data: Any) -> None:
    """Raises InputError when a reward is bound to fail."""
    for reward in parse_rewards(config.rewards, "rewards"):
        REWARDS[reward.name].foresee(reward, inputs, config.response_length)


def extra_models(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The base models that rewards load, without repetition; `config` is the stage's, as JSON."""
    rewards = parse_rewards(config["rewards"], "rewards")
    return tuple(
        dict.fromkeys(name for reward in rewards for name in REWARDS[reward.name].models(reward))
    )


def has_judge(config: Config) -> bool:
    """Whether a reward computes on devices: then it has one half of them, and the policy the
    other."""
    return any(
        REWARDS[reward.name].computes(reward) for reward in parse_rewards(config.rewards, "rewards")
    )


def trainer_of(config: Config, loaded: "LoadedModel") -> "Trainer":
    """The trainer of this stage; its batches are PolicyBatches."""
    from tasks.losses.grpo import grpo_loss_fn
    from tasks.training.trainer import make_trainer

    trainer = make_trainer(loaded, config, config.seed)
    loss = grpo_loss_fn(
        beta=config.beta,
        epsilon=config.epsilon,
        epsilon_high=config.epsilon_high,
        temperature=config.temperature,
        importance=config.importance,
        truncation=config.truncation or None,
    )
    trainer.is_wanted = lambda batch: batch.predicts.any()
    return trainer.with_loss_fn(loss, has_aux=True).with_gen_model_input_fn(
        lambda batch: {"train_example": batch}
    )


def fitted(config: Config, mesh: "Mesh", longest: int) -> Config:
    """The config with both sizes that depend on the machine and the data.

    `micro_batch_size` defaults to a quarter of the batch, since the step skips micro-batches
    without responses. `prompt_length` shrinks to what the `longest` prompt needs, in eighths of a
    row (`tasks.data.packing.lengths_for`)."""
    devices, response = mesh.shape[BATCH], config.response_length
    parts = next(parts for parts in (4, 2, 1) if config.batch_size % (parts * devices) == 0)
    size = config.micro_batch_size or config.batch_size // parts
    length = lengths_for(longest + response, config.prompt_length + response)[0]
    return config.model_copy(update={"micro_batch_size": size, "prompt_length": length - response})


def programs(config: Config, model: "LoadedModel", upstream: Mapping[str, Any]) -> "list[Program]":
    """The programs that `run` compiles. Lengths are unknown before sampling, so every prompt and
    response is counted at full length, in a row of its own."""
    import jax
    from flax import nnx

    from tasks.planning.programs import (
        Program,
        abstract_model,
        on_devices,
        rows,
        scalar,
        shapes,
        vocabulary_trips,
    )
    from tasks.rehearsal.audit_responses import RESPONSES
    from tasks.reinforcement.rollout import empty_batch
    from tasks.training.trainer import rows_at_once

    own = others = model
    if has_judge(config):
        own, others = (
            abstract_model(
                model.name,
                model.config,
                jax.sharding.Mesh(np.array(part).reshape(-1, 1), (BATCH, TENSOR)),
            )
            for part in halves(list(model.mesh.devices.flat))
        )
    # a machine of one device has no halves
    disjoint = {*others.mesh.devices.flat}.isdisjoint(own.mesh.devices.flat)
    own = on_devices(own, rows_at_once(config))
    config = config.counted(upstream["prompts"].rows_of("train"))
    config = fitted(config, own.mesh, config.prompt_length)
    trainer = trainer_of(config, own)
    sampler, token_logps = rollout_programs(config, own, config.batch_size)

    batch = empty_batch(
        config.batch_size,
        config.prompt_length + config.response_length,
        logps=(bool(config.beta), config.off_policy, bool(config.truncation)),
    )
    micro = config.batch_size // config.accumulation
    trips = vocabulary_trips(micro * config.response_length, trainer.mesh)
    trained, optimizer, _ = map(shapes, trainer.state())
    reference = trained if config.beta else None  # both copies share frozen weights
    # one for the reference, one for the sampling policy or the gap to the sampler
    passes = bool(config.beta) + (
        config.oversampling if config.off_policy else 1 / config.log_every
    )
    block = rows(tuple(array[:micro] for array in batch[:4]), trainer.mesh)
    arguments = (shapes(nnx.state(own.model)), block, scalar(np.float32))
    calls, resident = config.rollouts * passes * config.accumulation, (optimizer, reference)
    sampled = config.rollouts * config.oversampling
    found = [
        sampler.program(sampled, resident=resident),
        Program("token_logps", token_logps, arguments, calls, resident, trips),
        *trainer.programs(batch, config.steps, trips=trips, resident=reference),
    ]
    beside = config.rollout_lag > 0 and disjoint
    scored = sampled * config.batch_size + config.audit.prompts * RESPONSES
    for reward in parse_rewards(config.rewards, "rewards"):
        if compiled := REWARDS[reward.name].programs:
            theirs = compiled(reward, others, scored, upstream)
            found += [replace(program, beside=beside) for program in theirs]
    return found


def small(config: Config, sizes: Sizes) -> Config:
    """5 updates on 16 responses in whole groups; in a rehearsal 2 on one small group, since a judge
    may be asked about every response. A rehearsal reports all findings of its audit at the end
    instead of failing at the first."""
    group = min(config.group_size, FEW) if sizes.few else config.group_size
    groups = 1 if sizes.few else max(1, min(config.batch_size, 16) // group)
    audited = {"ends": False, "last": config.audit.last or config.steps}
    return small_trainer(
        config,
        sizes,
        steps=5,
        batch_size=groups * group,
        group_size=group,
        learning_rate=3e-4,
        audit=config.audit.model_copy(update=audited if sizes.few else {}),
    )


def means_of(curve: Sequence[Mapping[str, float]]) -> dict[str, float | None]:
    """The curve in a few means: "first" is of the first ten updates, "last" of the last ten."""
    last = curve[-10:]
    return {
        "reward_first": curve_mean("reward", curve[:10]),
        "reward_last": curve_mean("reward", last),
        "kl_last": curve_mean("kl", last),
        "zero_variance": curve_mean("zero_variance", curve),
        "all_right": curve_mean("all_right", curve),
        "all_wrong": curve_mean("all_wrong", curve),
        "truncated_last": curve_mean("truncated", last),
        "sampler_gap": curve_mean("sampler_gap", curve),
    }


def run(job: Job[Config]) -> dict[str, Any]:
    """Train and write the model.

    Raises:
        InputError: too many prompts are longer than `prompt_length`.
        AuditFailed: the reward audit has a finding that the config does not allow.
        StageFailed: a program compiled more than once, or the policy collapsed without ever having
            been better than at the start.
    """
    from tasks.models.loading import load_model
    from tasks.rehearsal.reward_audit import audit_rewards
    from tasks.reinforcement.batches import RolloutBatches
    from tasks.reinforcement.collapse import Guard
    from tasks.training.loop import counted, fit, save_trained
    from tasks.training.trainer import rows_at_once

    config = job.config
    ours, theirs = halves() if has_judge(config) else (None, None)
    loaded = load_model(
        job.inputs["policy"], make_mesh(rows_at_once(config), ours), trained=config.lora is None
    )
    examples, dropped, longest = fitting_prompts(
        read_jsonl(job.inputs["prompts"] / "prompts.jsonl", Prompt),
        loaded.tokenizer,
        config.prompt_length,
        config.max_dropped_fraction,
    )
    job, config = counted(job, len(examples))
    config = fitted(config, loaded.mesh, longest)
    trainer = trainer_of(config, loaded)
    resources = Resources(
        job.inputs, job.answers, config.seed, config.response_length, theirs, job.log
    )
    sampling = rollout_programs(config, loaded, config.batch_size)
    # before `fit` restores: its reference is the initial policy
    with closing(RolloutBatches(config, loaded, sampling, examples, job, resources)) as batches:
        audit_rewards(job, config.audit, batches.scorer, loaded.tokenizer)
        guard = Guard(config, batches, trainer, job)
        curve = fit(
            trainer,
            batches.batch_at,
            config,
            job,
            extra=batches.metrics.__getitem__,
            keeps=guard,
            after=guard.after if config.collapse.enabled else None,
        )
        for name, values in (batches.scorer.values() if batches.scorer else {}).items():
            numbers = ", ".join(f"{what} {number:g}" for what, number in values.items())
            job.log.info("reward %s: %s", name, numbers)
    waited = sum(batches.judge_wait_seconds.values())
    job.log.info("waited %.1f s for rewards, %.2f s an update", waited, waited / max(1, len(curve)))
    write_jsonl(job.out / "rollouts.jsonl", batches.samples)
    if warning := batches.passing_code.warning():
        job.log.warning(warning)
        write_jsonl(job.out / "audit.jsonl", batches.passing_code.examples)
    batches.write_ledger(job.out / "ledger.jsonl.gz", len(curve))
    save_trained(trainer, loaded, job, None if guard.stopped_at is None else guard.best_step)

    rollouts = -(-len(curve) // config.num_iterations)
    return {
        "prompts": len(examples),
        "prompts_too_long": dropped,
        "rollouts": rollouts,
        "epochs": config.groups * config.oversampling * rollouts / len(examples),
        **means_of(curve),
        **batches.passing_code.metrics(),
        **guard.metrics(),
    }


KIND = Kind(
    version=16,
    config=Config,
    inputs={
        "policy": Input(Product.MODEL),
        "prompts": Input(Product.ROWS),
        "rubrics": Input(Product.RUBRICS, required=False),
        "reward_model": Input(Product.REWARD, required=False),
    },
    produces=Product.MODEL,
    run=run,
    small=small,
    programs=programs,
    devices=lambda config: True,
    dependencies=dependencies,
    extra_models=extra_models,
    foresee=foresee,
)

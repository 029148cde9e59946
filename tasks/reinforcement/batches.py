"""Training inputs, update by update: rollouts are sampled, scored by judges meanwhile, and made
into batches of one fixed shape.

Rollout n is trained on in updates n m + 1 to (n + 1) m, m = num_iterations, and is sampled before
the first update on rollout n - rollout_lag:

    lag 0     sample 0   score 0   update 0   sample 1   score 1   update 1   ...
    lag 1     sample 0   sample 1   update 0   sample 2   update 1   sample 3   ...     rollout n is scored beside what stands between

What is sampled, and from which weights, does not depend on how long a judge takes, and a judge that
needs less than `rollout_lag` rollouts and updates keeps nobody waiting. With a lag, or m > 1, the
loss's ratio is taken to the policy that sampled; its log-probabilities are computed when it
samples, by the program that trains.

A rollout has `oversampling` candidates for each group of a batch. With dynamic sampling a batch is
filled with those that teach, and where there are too few, with others that weigh nothing: not in
the loss, its denominator or the KL (DAPO, 2503.14476, samples until the batch is full; here the
shapes, and the number of samples, are fixed). Which prompts are worth sampling at all is the
curriculum's.
"""

import time
from concurrent.futures import Future, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from schemas.base import StageFailed
from schemas.examples import Prompt
from tasks.contract.job import Job
from tasks.contract.journal import Journal, Rows
from tasks.contract.reward import Anneal, Resources, Response
from tasks.data.tokens import pad_left, pad_right, prompt_tokens
from tasks.devices.hosts import agree, is_committer
from tasks.reinforcement.audit import Tally
from tasks.reinforcement.collapse import Sign
from tasks.reinforcement.config import GrpoConfig
from tasks.reinforcement.curriculum import Chooser
from tasks.reinforcement.kept import Sampled, ledger_rows, rewards_of, write_ledger
from tasks.reinforcement.rewarding import Rewards, Scorer, combine, parse_rewards
from tasks.sampling.rollouts import (
    Rollout,
    compiled_once,
    logps_in_parts,
    rollout_seed,
    sample_groups,
)

if TYPE_CHECKING:
    from tasks.models.loading import LoadedModel
    from tasks.reinforcement.policy_batches import PolicyBatch
    from tasks.sampling.sampler import Sampler

_TELL_SECONDS = 5.0
"""Rewards that are waited for longer are shown in the progress line."""


class RolloutBatches:
    """The training input of each update.

    Attributes:
        metrics: update (from 1) -> what its rollout measured: `Rollout.metrics`,
        `tasks.reinforcement.audit`; `trained_groups`, those that weigh
            something in the update; and where it was measured `sampler_gap`, the mean absolute
            difference between the sampler's and the trainer's log-probability of a sampled token,
            in nats.
        samples: the rows of `rollouts.jsonl`: all responses to one prompt of each logged rollout.
        judge_wait_seconds: update -> how long its rewards were waited for, with nothing to do for
            the devices. A clock's: in no artifact.

    It is what the stage `Keeps` (`tasks.training.loop`) beside the trainer, and a
    `tasks.reinforcement.guard.Run`.
    """

    def __init__(
        self,
        config: GrpoConfig,
        loaded: "LoadedModel",
        programs: "tuple[Sampler, Any]",
        examples: list[Prompt],
        job: Job[Any],
        resources: Resources,
    ) -> None:
        self.config, self.loaded, self.examples, self.job = config, loaded, examples, job
        self.rewards = parse_rewards(config.rewards, "rewards")
        self.scorer = Scorer(self.rewards, resources) if is_committer() else None
        self.sampler, self.token_logps = programs
        self.reference = initial_policy(loaded.model) if config.beta else None
        self.journal = Journal(job.work, "rollouts")
        self.chooser = Chooser(config.curriculum, examples, config.seed, config.steps)
        self.metrics: dict[int, dict[str, float]] = {}
        self.samples: list[dict[str, Any]] = []
        self.audit = Tally()
        self.judge_wait_seconds: dict[int, float] = {}
        self.put_back_before: int | None = None
        self.held: int | None = None
        self._next = 0
        self._waiting: dict[int, tuple[Sampled, Rows | Future[Rewards] | None]] = {}
        self._batch: PolicyBatch | None = None
        self._sign: dict[str, Any] = {}
        self._compiled_before = {"sampler": 0, "token_logps": 0}

    def batch_at(self, step: int) -> "PolicyBatch":
        """The training input of update `step` (from 0). Its rollout is the one that is due, and
        others are sampled ahead of it."""
        index, reused = divmod(step, self.config.num_iterations)
        if reused and self._batch is not None:
            self.metrics[step + 1] = self.metrics[step]
            return self._batch
        while self._next <= min(index + self.config.rollout_lag, self.config.rollouts - 1):
            self._begin(self._next, self._sample(self._next))
            self._next += 1
        sampled, scored = self._waiting.pop(index)
        first = step - reused + 1
        rollout, chosen = self._scored(index, first, sampled, scored)
        self._batch = self._assemble(rollout, chosen, sampled)
        trained = {
            "trained_groups": float(
                np.sum(self._batch.weights.reshape(self.config.groups, -1).max(axis=1) > 0)
            )
        }
        gap = {} if sampled.gap is None else {"sampler_gap": sampled.gap}
        self.metrics[step + 1] = (
            rollout.metrics() | trained | gap | self.audit.add(rollout, first, again=reused > 0)
        )
        self._sign = self._sign_of(rollout)
        if not reused:
            for number, prompt in enumerate(sampled.chosen):
                self.chooser.observe(
                    prompt, rollout.correct[number].tolist(), bool(rollout.informative[number])
                )
            if self._logged(index):
                self.samples += rollout.rows(first)
        return self._batch

    def close(self) -> None:
        """End the rewards."""
        if self.scorer:
            self.scorer.close()

    # Sampling

    def _sample(self, index: int) -> Sampled:
        """Rollout `index`: sampled with the current weights, or as it is in the journal."""
        config, entry = self.config, self.entry(index)
        chosen = self.chooser.choose(
            config.groups * config.oversampling, self.planned(index * config.num_iterations + 1)
        )
        rows = self.journal.get(f"{entry}.sampled")
        if rows is not None:
            return Sampled.of(rows, self.sampler)
        groups = sample_groups(
            self.sampler,
            [self.examples[prompt] for prompt in chosen],
            config.group_size,
            temperature=config.temperature,
            seed=rollout_seed(config.seed, index),
        )
        completions = [completion for group in groups for completion in group]
        prompt_ids, completion_ids = self._ids(
            [self.examples[prompt] for prompt in chosen for _ in groups[0]], completions
        )
        old, gap = None, None
        if config.off_policy or self._logged(index):
            some = len(prompt_ids) if config.off_policy else config.batch_size
            old = self._logps(self._policy(), prompt_ids[:some], completion_ids[:some])
            difference = np.abs(old - self._sampler_logps(completions[:some]))
            gap = float(difference[completion_ids[:some] != self.loaded.tokenizer.pad_id].mean())
        sampled = Sampled(
            chosen, completions, old if config.off_policy else None, gap, self.compiles()
        )
        self.journal.put(f"{entry}.sampled", sampled.rows())
        return sampled

    def _begin(self, index: int, sampled: Sampled) -> None:
        """Ask the rewards, unless they are in the journal."""
        self._compiled_before = {
            name: max(count, sampled.compiles[name])
            for name, count in self._compiled_before.items()
        }
        found: Rows | Future[Rewards] | None = self.journal.get(f"{self.entry(index)}.scored")
        if found is None and self.scorer:
            responses = [
                Response(one.text, len(one.tokens), not one.terminated)
                for one in sampled.completions
            ]
            found = self.scorer.submit(
                self._prompts(sampled),
                responses,
                self.planned(index * self.config.num_iterations + 1),
            )
        self._waiting[index] = (sampled, found)

    def _scored(
        self, index: int, first: int, sampled: Sampled, found: "Rows | Future[Rewards] | None"
    ) -> tuple[Rollout, np.ndarray]:
        """The rollout, and which of its groups make the batch."""
        from tasks.reinforcement.policy_batches import group_advantages

        config = self.config
        began = time.monotonic()
        if isinstance(found, Future):
            while wait([found], _TELL_SECONDS).not_done:  # a judge's endpoint may be down
                self.job.progress(
                    first - 1,
                    config.steps,
                    "steps",
                    waiting_for_rewards=round(time.monotonic() - began),
                )
        rewards = (
            rewards_of(found)
            if isinstance(found, list)
            else _shared(found.result() if found else None)
        )
        self.judge_wait_seconds[first] = time.monotonic() - began
        advantages = group_advantages(rewards.total, config.group_size, config.scale_rewards)
        rollout = Rollout(
            self._prompts(sampled), sampled.completions, rewards, advantages, config.group_size
        )
        chosen = rollout.chosen(config.groups)
        if not isinstance(found, list):
            trained = [
                int(group)
                for group in chosen
                if rollout.informative[group] or not config.dynamic_sampling
            ]
            self.journal.put(
                f"{self.entry(index)}.scored", ledger_rows(rollout, index, first, trained)
            )
        return rollout, chosen

    def _prompts(self, sampled: Sampled) -> list[Prompt]:
        return [
            self.examples[prompt]
            for prompt in sampled.chosen
            for _ in range(self.config.group_size)
        ]

    def _logged(self, index: int) -> bool:
        """Whether one of a rollout's updates is a line of curves.jsonl."""
        config, first = self.config, index * self.config.num_iterations + 1
        return any(
            update % config.log_every == 0 or update in (1, config.steps)
            for update in range(first, first + config.num_iterations)
        )

    # Arrays

    def _assemble(self, rollout: Rollout, chosen: np.ndarray, sampled: Sampled) -> "PolicyBatch":
        """The fixed-shape arrays of the chosen groups, batch first."""
        from tasks.reinforcement.policy_batches import PolicyBatch, row_weights

        config = self.config
        rows = (chosen[:, None] * config.group_size + np.arange(config.group_size)).reshape(-1)
        completions = [rollout.completions[row] for row in rows]
        prompt_ids, completion_ids = self._ids([rollout.prompts[row] for row in rows], completions)
        pad_id = self.loaded.tokenizer.pad_id
        mask = completion_ids != pad_id
        counted = ~np.isnan(rollout.rewards.total[rows])
        if config.dynamic_sampling:
            counted &= np.repeat(rollout.informative[chosen], config.group_size)
        return PolicyBatch(
            prompt_ids=prompt_ids,
            prompt_mask=prompt_ids != pad_id,
            completion_ids=completion_ids,
            completion_mask=mask,
            advantages=rollout.advantages[rows].astype(np.float32),
            weights=row_weights(mask, counted, config.aggregation, config.response_length),
            token_weights=row_weights(mask, counted, "token", config.response_length),
            ref_per_token_logps=(
                self._logps(self.reference, prompt_ids, completion_ids) if config.beta else None
            ),
            old_per_token_logps=None if sampled.old is None else sampled.old[rows],
            sampler_per_token_logps=self._sampler_logps(completions) if config.truncation else None,
        )

    def _ids(
        self, prompts: "list[Prompt]", completions: "list[Any]"
    ) -> tuple[np.ndarray, np.ndarray]:
        """(N, P) and (N, R) token ids."""
        config, tokenizer = self.config, self.loaded.tokenizer
        prompt_ids = pad_left(
            [prompt_tokens(tokenizer, prompt.prompt) for prompt in prompts],
            config.prompt_length,
            tokenizer.pad_id,
        )
        return prompt_ids, pad_right(
            [completion.tokens for completion in completions],
            config.response_length,
            tokenizer.pad_id,
        )

    def _sampler_logps(self, completions: "list[Any]") -> np.ndarray:
        """(N, R) float32, as the sampler said them."""
        logps = np.zeros((len(completions), self.config.response_length), np.float32)
        for row, completion in zip(logps, completions, strict=True):
            row[: len(completion.logps)] = completion.logps
        return logps

    def _policy(self) -> Any:
        from flax import nnx

        return nnx.state(self.loaded.model)

    def _logps(self, state: Any, prompt_ids: np.ndarray, completion_ids: np.ndarray) -> np.ndarray:
        """(N, R) float32 log-probabilities at the sampling temperature, one micro-batch at a
        time."""
        size = self.config.batch_size // self.config.accumulation
        return logps_in_parts(
            self.token_logps,
            state,
            prompt_ids,
            completion_ids,
            mesh=self.loaded.mesh,
            size=size,
            temperature=self.config.temperature,
        )

    # What the guard asks

    def sign(self, row: dict[str, float]) -> Sign:
        """What the newest rollout, and the row of the curve of the last update on it, tell."""
        trained = row["trained_groups"] > 0
        return Sign(
            **self._sign,
            entropy=row["entropy"] if trained else None,
            kl=row.get("kl") if trained else None,
        )

    def last_like(self, first: int, newest: int) -> int | None:
        """Until which update after `first` the rewards' weights and the prompts asked are by plan
        as at `first`; None: until `newest`."""
        plans = ((update, self._plan(update)) for update in range(first + 1, newest + 1))
        return next((update - 1 for update, plan in plans if plan != self._plan(first)), None)

    def _plan(self, update: int) -> tuple[Any, ...]:
        return *(
            one.weight.at(update) for one in self.rewards if isinstance(one.weight, Anneal)
        ), self.chooser.phase_of(update)

    def hold(self, update: int) -> None:
        """Weights and prompts stay as they are at this update; what was sampled and not trained on
        is dropped."""
        self.held, self._batch = update, None
        self._next = min(self._waiting, default=self._next)
        self.put_back_before = self._next
        self._waiting.clear()

    def planned(self, update: int) -> int:
        """The update whose weights and prompts are an update's."""
        return update if self.held is None else min(update, self.held)

    def entry(self, index: int) -> str:
        """What a rollout is called in the journal."""
        return f"{index:06d}" + (
            "" if self.put_back_before is None or index < self.put_back_before else "+1"
        )

    def _sign_of(self, rollout: Rollout) -> dict[str, Any]:
        total = combine(self.rewards, rollout.rewards.components, rollout.prompts, 1)
        strata: dict[str, list[float]] = {}
        for prompt, reward in zip(rollout.prompts, total, strict=True):
            if not np.isnan(reward):
                strata.setdefault(f"{prompt.domain} {prompt.difficulty}", []).append(float(reward))
        dead, formatted = ~rollout.informative, rollout.rewards.components.get("format")
        return {
            "rewards": {
                name: (len(values), float(np.mean(values)))
                for name, values in sorted(strata.items())
            },
            "spread": float(np.nanstd(total)) if strata else 0.0,
            "teaching": float(np.mean(~dead)),
            "solved": float(np.mean(dead & (rollout.correct == True).all(axis=1))),  # noqa: E712  None is not right
            "format": (
                None
                if formatted is None or np.isnan(formatted).all()
                else float(np.nanmean(formatted))
            ),
        }

    # What is kept

    def kept(self, step: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """What the updates after the first `step` ones need: see `tasks.training.loop.Keeps`.
        Rollouts are in the journal."""
        values = {
            "samples": self.samples,
            "audit": self.audit.kept(),
            "compiles": self.compiles(),
            "chooser": self.chooser.kept(),
            "next": self._next,
            "held": self.held,
            "put_back_before": self.put_back_before,
        }
        return {}, values

    def restore(self, step: int, arrays: dict[str, np.ndarray], values: dict[str, Any]) -> None:
        """Go on after `step` updates with what was `kept` then, and the rollouts that were sampled
        and not used up."""
        self.samples, self._compiled_before = values["samples"], values["compiles"]
        self.held, self.put_back_before = values["held"], values["put_back_before"]
        self.chooser.restore(values["chooser"])
        self.audit.restore(values["audit"])
        self._next = values["next"]
        for index in range(step // self.config.num_iterations, self._next):
            self._begin(index, Sampled.of(self._read(f"{self.entry(index)}.sampled"), self.sampler))

    def write_ledger(self, path: Path, updates: int) -> None:
        """Write all responses of the rollouts of the first `updates` updates (`schemas.ledger`)."""
        trained = range(-(-updates // self.config.num_iterations))
        write_ledger(path, (self._read(f"{self.entry(index)}.scored") for index in trained))

    def _read(self, entry: str) -> Rows:
        """An entry of the journal that must be there."""
        from tasks.training.checkpoints import Checkpoints

        rows = self.journal.get(entry)
        if rows is None:
            Checkpoints(self.job.work, seconds=0, log=self.job.log).forget()
            raise StageFailed(
                f"rollout {entry} is not in the stage's workspace any more, or damaged; run again,"
                " and the stage starts over."
            )
        return rows

    def compiles(self) -> dict[str, int]:
        """Programs compiled for sampling and for log-probabilities, in this attempt or in one that
        it goes on from.

        Raises:
            StageFailed: a shape was not fixed.
        """
        counts = {"sampler": self.sampler.compiles, "token_logps": self.token_logps._cache_size()}
        return compiled_once(counts, self._compiled_before)


def initial_policy(model: Any) -> Any:
    """The weights as they are: copies of what is trained, and what is frozen itself, so that with
    LoRA the reference is no second model."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    adapters, rest = nnx.state(model, nnx.LoRAParam, ...)
    copied, kept = (adapters, rest) if jax.tree.leaves(adapters) else (rest, adapters)
    return nnx.merge_state(jax.tree.map(jnp.copy, copied), kept)


def _shared(rewards: Rewards | None) -> Rewards:
    """Host 0's rewards on every host; their details stay there."""
    told = None
    if rewards is not None:
        told = (
            {name: values.tolist() for name, values in rewards.components.items()},
            rewards.total.tolist(),
        )
    found = agree(told)
    assert found is not None
    components, total = found
    return rewards or Rewards(
        {name: np.array(values, np.float64) for name, values in components.items()},
        np.array(total, np.float64),
    )

"""Training inputs, update by update: sample rollouts, score them in the background, and make
batches of one fixed shape.

Updates n m + 1 to (n + 1) m train on rollout n, m = num_iterations. It is sampled before the first
update on rollout n - rollout_lag:

    lag 0     sample 0   score 0   update 0   sample 1   score 1   update 1   ...
    lag 1     sample 0   sample 1   update 0   sample 2   update 1   sample 3   ...

With a lag, rollout n is scored during whatever happens between its sampling and its first update.
What is sampled, and from which weights, never depends on how long a judge takes; a judge that is
faster than `rollout_lag` rollouts and updates costs no waiting. With a lag, or m > 1, the loss's
ratio is to the policy that sampled, whose log-probabilities the training program computes when it
samples.

A rollout has `oversampling` candidates for each group of a batch. With dynamic sampling, groups
whose rewards differ fill the batch first; others fill the rest and have no weight in the loss, its
denominator and the KL. (DAPO, 2503.14476, samples until the batch is full; here the shapes and the
number of samples are fixed.)
"""

import time
from concurrent.futures import Future, wait
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from schemas.base import StageFailed
from schemas.examples import Prompt
from schemas.ledger import write_ledger
from tasks.contract.job import Job
from tasks.contract.journal import Journal, Rows
from tasks.contract.reward import Anneal, Resources
from tasks.data.packing import Text
from tasks.data.tokens import prompt_tokens
from tasks.devices.hosts import agree, is_committer
from tasks.reinforcement.curriculum import Chooser
from tasks.reinforcement.grpo_config import Config
from tasks.reinforcement.passing_code import PassingCode
from tasks.reinforcement.rewarding import Rewards, Scorer, agreed, parse_rewards, responses_of
from tasks.reinforcement.rollout import (
    PolicyBatch,
    Rollout,
    Sampled,
    group_advantages,
    padded,
    policy_batch,
    row_weights,
    tokens_there,
)
from tasks.sampling.rollouts import (
    is_logged,
    rollout_logps,
    rollout_seed,
    sample_groups,
)

if TYPE_CHECKING:
    from tasks.models.loading import LoadedModel
    from tasks.sampling.sampler import Sampler

_TELL_SECONDS = 5.0
"""The progress line shows a wait for rewards that is longer than this."""


class RolloutBatches:
    """Makes the training input of each update; its state is part of checkpoints
    (`tasks.training.loop.Keeps`).

    Attributes:
        metrics: update (from 1) -> what its rollout measured: `Rollout.metrics`,
            `tasks.reinforcement.passing_code`; `trained_groups`, those with a weight in the update;
            and where it was measured `sampler_gap`, the mean absolute difference between the
            sampler's and the trainer's log-probability of a sampled token, in nats.
        rollout: the newest rollout.
        samples: the rows of `rollouts.jsonl`: all responses to one prompt of each logged rollout.
        judge_wait_seconds: update -> seconds that the devices waited for its rewards; logged, in no
            artifact.
    """

    def __init__(
        self,
        config: Config,
        loaded: "LoadedModel",
        programs: "tuple[Sampler, Any]",
        examples: list[Prompt],
        job: Job[Any],
        resources: Resources,
    ) -> None:
        self.config, self.loaded, self.examples, self.job = config, loaded, examples, job
        self.rewards = parse_rewards(config.rewards, "rewards")
        # before rewards are prepared, which a judge may be paid for
        self.chooser = Chooser(config.curriculum, examples, config.seed, config.steps)
        self.scorer = Scorer(self.rewards, resources) if is_committer() else None
        self.sampler, self.token_logps = programs
        self.reference = initial_policy(loaded.model) if config.beta else None
        self.journal = Journal(job.work, "rollouts")
        self.metrics: dict[int, dict[str, float]] = {}
        self.samples: list[dict[str, Any]] = []
        self.passing_code = PassingCode()
        self.judge_wait_seconds: dict[int, float] = {}
        self._frozen_at: int | None = None
        self._put_back_before: int | None = None
        self._next = 0
        self._waiting: dict[int, tuple[Sampled, Rows | Future[Rewards] | None]] = {}
        self.rollout: Rollout | None = None
        self._batch: PolicyBatch | None = None

    def batch_at(self, step: int) -> PolicyBatch:
        """The training input of update `step` (from 0). Samples what is due until then. Raises
        StageFailed: a program compiled more than once."""
        index, reused = divmod(step, self.config.num_iterations)
        if reused and self._batch is not None:
            self.metrics[step + 1] = self.metrics[step]
            return self._batch
        while self._next <= min(index + self.config.rollout_lag, self.config.rollouts - 1):
            self._begin(self._next, self._sample(self._next))
            self._next += 1
        sampled, scored = self._waiting.pop(index)
        first = step - reused + 1
        rollout = self.rollout = self._scored(index, first, sampled, scored)
        batch, trained_groups = self._assemble(rollout, sampled)
        self._batch = batch
        self.metrics[step + 1] = {
            **rollout.metrics(),
            "trained_groups": float(trained_groups),
            **({} if sampled.gap is None else {"sampler_gap": sampled.gap}),
            **self.passing_code.add(rollout, first, again=reused > 0),
        }
        if not reused:
            for number, prompt in enumerate(sampled.chosen):
                correct, teaches = rollout.correct[number], rollout.informative[number]
                self.chooser.observe(prompt, correct.tolist(), bool(teaches))
            if is_logged(self.config, first):
                self.samples += rollout.rows(first)
        return batch

    def close(self) -> None:
        """Close the rewards."""
        if self.scorer:
            self.scorer.close()

    # Sampling and scoring

    def _sample(self, index: int) -> Sampled:
        """Rollout `index` from the journal, or sampled with the current weights."""
        from flax import nnx

        config, entry = self.config, f"{self._entry(index)}.sampled"
        count = config.groups * config.oversampling
        chosen = self.chooser.choose(count, self._planned(index))
        if rows := self.journal.get(entry):
            return Sampled.of(rows, self.sampler)
        prompts = [self.examples[prompt] for prompt in chosen]
        seed = rollout_seed(config.seed, index)
        groups = sample_groups(
            self.sampler, prompts, config.group_size, temperature=config.temperature, seed=seed
        )
        completions = [completion for group in groups for completion in group]
        old, gap = None, None
        if config.off_policy or is_logged(config, self._first(index)):
            some = len(completions) if config.off_policy else config.batch_size
            texts = self._texts(self._prompts(chosen)[:some], completions[:some])
            old = self._logps(nnx.state(self.loaded.model), texts)
            difference = np.abs(old - self._sampler_logps(completions[:some]))
            gap = float(difference[tokens_there(texts, config.response_length)].mean())
        sampled = Sampled(chosen, completions, old if config.off_policy else None, gap)
        self.journal.put(entry, sampled.rows())
        return sampled

    def _begin(self, index: int, sampled: Sampled) -> None:
        """Start scoring, unless the journal has the rewards."""
        found: Rows | Future[Rewards] | None = self.journal.get(f"{self._entry(index)}.scored")
        if found is not None:
            self._count_on(index)
        elif self.scorer:
            prompts, responses = self._prompts(sampled.chosen), responses_of(sampled.completions)
            found = self.scorer.submit(prompts, responses, self._planned(index))
        self._waiting[index] = (sampled, found)

    def _scored(
        self, index: int, first: int, sampled: Sampled, found: "Rows | Future[Rewards] | None"
    ) -> Rollout:
        """Wait for the rewards, enter them in the journal, and return the rollout."""
        config, began = self.config, time.monotonic()
        if isinstance(found, Future):
            while wait([found], _TELL_SECONDS).not_done:  # a judge's endpoint may be down
                waited = round(time.monotonic() - began)
                self.job.progress(first - 1, config.steps, "steps", waiting_for_rewards=waited)
        if isinstance(found, list):
            rewards = Rewards.of_ledger(found)
        else:
            rewards = agreed(found.result() if found else None)
        self.judge_wait_seconds[first] = time.monotonic() - began
        advantages = group_advantages(rewards.total, config.group_size, config.scale_rewards)
        rollout = Rollout(
            self._prompts(sampled.chosen),
            sampled.completions,
            rewards,
            advantages,
            config.group_size,
        )
        if not isinstance(found, list):
            trained = rollout.chosen(config.groups)
            if config.dynamic_sampling:
                trained = trained[rollout.informative[trained]]
            rows = rollout.ledger(index, first, self._planned(index), trained.tolist())
            if self.scorer and (values := self.scorer.values()):
                self.journal.put(f"{self._entry(index)}.values", [values])
            self.journal.put(f"{self._entry(index)}.scored", rows)
        return rollout

    def _count_on(self, index: int) -> None:
        """Count on from what rewards had counted when a rollout was scored: a judge's costs, since
        it is not asked again. All hosts read the journal, since they agree on what it has."""
        values = self.journal.get(f"{self._entry(index)}.values")
        if self.scorer and values:
            self.scorer.count_on(values[0])

    def _prompts(self, chosen: list[int]) -> list[Prompt]:
        """The prompt of each response to the chosen ones."""
        return [self.examples[prompt] for prompt in chosen for _ in range(self.config.group_size)]

    # Arrays

    def _assemble(self, rollout: Rollout, sampled: Sampled) -> tuple[PolicyBatch, int]:
        """The arrays of the groups that fill the batch, and how many of these have a weight."""
        from tasks.models.attention import sees_prefixes

        config = self.config
        chosen = rollout.chosen(config.groups)
        rows = (chosen[:, None] * config.group_size + np.arange(config.group_size)).reshape(-1)
        completions = [rollout.completions[row] for row in rows]
        texts = self._texts([rollout.prompts[row] for row in rows], completions)
        mask = tokens_there(texts, config.response_length)
        counted = ~np.isnan(rollout.rewards.total[rows])
        if config.dynamic_sampling:
            counted &= np.repeat(rollout.informative[chosen], config.group_size)
        weights, token_weights = (
            row_weights(mask, counted, aggregation, config.response_length)
            for aggregation in (config.aggregation, "token")
        )
        numbers = (
            rollout.advantages[rows],
            weights,
            token_weights,
            self._logps(self.reference, texts) if config.beta else None,
            None if sampled.old is None else sampled.old[rows],
            self._sampler_logps(completions) if config.truncation else None,
        )
        batch = policy_batch(
            texts,
            numbers,
            length=config.prompt_length + config.response_length,
            pad_id=self.loaded.tokenizer.pad_id,
            micro_batches=config.accumulation,
            shared=sees_prefixes(self.loaded.mesh),
        )
        return batch, int(weights.reshape(config.groups, -1).any(axis=1).sum())

    def _texts(self, prompts: list[Prompt], completions: "list[Any]") -> list[Text]:
        """The tokens of prompts, and of their responses."""
        tokenizer = self.loaded.tokenizer
        asked = (prompt_tokens(tokenizer, prompt.prompt) for prompt in prompts)
        return [(one, said.tokens) for one, said in zip(asked, completions, strict=True)]

    def _sampler_logps(self, completions: "list[Any]") -> np.ndarray:
        """(N, R) float32 log-probabilities by the sampler."""
        logps = (completion.logps for completion in completions)
        return padded(logps, len(completions), self.config.response_length)

    def _logps(self, state: Any, texts: list[Text]) -> np.ndarray:
        """(N, R) float32 log-probabilities under these weights."""
        return rollout_logps(self.token_logps, state, texts, self.config, self.loaded)

    # For the guard (`tasks.reinforcement.collapse`)

    def last_unchanged(self, first: int, newest: int) -> int | None:
        """The last update before the schedule of the rewards (of a weight, a penalty) or of the
        curriculum differs from that at `first`; None if it never does until `newest`."""

        def plan(update: int) -> tuple[Any, ...]:
            numbers = (number for reward in self.rewards for _, number in reward)
            annealed = (one.at(update) for one in numbers if isinstance(one, Anneal))
            return *annealed, self.chooser.phase_of(update)

        later = range(first + 1, newest + 1)
        return next((update - 1 for update in later if plan(update) != plan(first)), None)

    def components_at_first(self, step: int) -> dict[str, np.ndarray]:
        """The newest rollout's (N,) rewards by name, `step` being an update on it, as the first
        update's numbers (penalties) would have them; NaN for one whose weight ends at 0."""
        rollout, planned = self.rollout, self._planned((step - 1) // self.config.num_iterations)
        assert rollout is not None
        found, changing = dict(rollout.rewards.components), []
        for config in self.rewards:
            if isinstance(config.weight, Anneal) and not config.weight.at(self.config.steps):
                found[config.name] = np.full(len(rollout.prompts), np.nan)
            elif any(isinstance(one, Anneal) for name, one in config if name != "weight"):
                changing.append(config)
        again = {}
        if changing and planned > 1:
            if self.scorer:
                given = rollout.prompts, responses_of(rollout.completions)
                again = self.scorer.components(changing, *given, 1)
            again = agree(again)
        return found | {name: np.array(one) for name, one in again.items()}

    def freeze(self, update: int) -> None:
        """Freeze the schedules of rewards and prompts at this update, and drop rollouts that were
        not trained on."""
        self._frozen_at, self._batch = update, None
        self._next = min(self._waiting, default=self._next)
        self._put_back_before = self._next
        self._waiting.clear()

    def _planned(self, index: int) -> int:
        """The update whose rewards and prompts a rollout uses: its first one, or the frozen
        one."""
        update = self._first(index)
        return update if self._frozen_at is None else min(update, self._frozen_at)

    def _first(self, index: int) -> int:
        """The first update on a rollout."""
        return index * self.config.num_iterations + 1

    def _entry(self, index: int) -> str:
        """A rollout's name in the journal."""
        again = self._put_back_before is not None and index >= self._put_back_before
        return f"{index:06d}" + ("+1" if again else "")

    # Checkpoints and the artifact

    def state(self, step: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The state that `restore` needs beside the journal, which has the rollouts."""
        return {}, {
            "samples": self.samples,
            "audit": self.passing_code.state(),
            "chooser": self.chooser.state(),
            "next": self._next,
            "held": self._frozen_at,
            "put_back_before": self._put_back_before,
        }

    def restore(self, step: int, arrays: dict[str, np.ndarray], values: dict[str, Any]) -> None:
        """Go on after `step` updates with the `state` of then, and with the rollouts that later
        updates train on."""
        self.samples = values["samples"]
        self._frozen_at, self._put_back_before = values["held"], values["put_back_before"]
        self.chooser.restore(values["chooser"])
        self.passing_code.restore(values["audit"])
        self._next = values["next"]
        if first := step // self.config.num_iterations:
            self._count_on(first - 1)
        for index in range(first, self._next):
            rows = self._read(f"{self._entry(index)}.sampled")
            self._begin(index, Sampled.of(rows, self.sampler))

    def write_ledger(self, path: Path, updates: int) -> None:
        """Write all responses of the rollouts of the first `updates` updates (`schemas.ledger`)."""
        trained = range(-(-updates // self.config.num_iterations))
        entries = (self._read(f"{self._entry(index)}.scored") for index in trained)
        write_ledger(path, chain.from_iterable(entries))

    def _read(self, entry: str) -> Rows:
        """An entry that the journal must have. Raises StageFailed."""
        from tasks.training.checkpoints import FOLDER

        rows = self.journal.get(entry)
        if rows is None:
            self.job.work.remove(FOLDER)
            raise StageFailed(
                f"rollout {entry} is missing from the stage's workspace, or damaged; run again, and"
                " the stage starts over."
            )
        return rows


def initial_policy(model: Any) -> Any:
    """The current weights: copies of those that are trained; frozen ones are shared, so that with
    LoRA the reference is no second model."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    adapters, rest = nnx.state(model, nnx.LoRAParam, ...)
    copied, shared = (adapters, rest) if jax.tree.leaves(adapters) else (rest, adapters)
    return nnx.merge_state(jax.tree.map(jnp.copy, copied), shared)

"""The training input of on-policy distillation: the student's samples, scored by the teacher, as
arrays of fixed shapes.

Update `step` trains on rollout step // num_iterations. Its prompts are that slice of one
permutation per epoch, and its samples are a function of (weights, seed, rollout). So everything
here is one, too.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from schemas.base import InputError
from schemas.examples import Example, Prompt
from tasks.data.packing import Text
from tasks.data.tokens import Tokenizer, prompt_tokens, response_tokens
from tasks.distillation.feedback import TokenTeacher
from tasks.distillation.gemma_teacher import GemmaTeacher, padded_texts
from tasks.distillation.on_policy_config import Config
from tasks.reinforcement.rollout import (
    PolicyBatch,
    policy_batch,
    row_weights,
    sample_row,
    tokens_there,
)
from tasks.sampling.rollouts import (
    is_logged,
    rollout_logps,
    rollout_programs,
    rollout_seed,
    sample_groups,
)

if TYPE_CHECKING:
    from tasks.models.loading import LoadedModel
    from tasks.sampling.sampler import Completion


def gemma_teacher(config: Config, loaded: "LoadedModel") -> GemmaTeacher:
    """A teacher on the student's devices."""
    return GemmaTeacher(loaded, config, hidden=config.loss.name == "gkd")


class Scored(NamedTuple):
    """B texts with the log-probabilities that both models give to their responses.

    Attributes:
        texts: prompts and responses.
        student, teacher: (B, R) float32 log-probabilities by the student that sampled, and by the
            teacher; rows with NaN are left out.
    """

    texts: list[Text]
    student: np.ndarray
    teacher: np.ndarray


class DistillBatch(NamedTuple):
    """The training input of GKD: B responses with the teacher's hidden states; the first axis of
    every array.

    Attributes:
        prompt_ids: (B, P) int32, left-padded.
        completion_ids, completion_mask: (B, R) int32 and bool, right-padded.
        teacher_hidden: (B, R, D) hidden states of the teacher; position t predicts completion token
            t.
        weights: (B,) float32 of a token's loss (`tasks.reinforcement.rollout.row_weights`).
    """

    prompt_ids: Any
    completion_ids: Any
    completion_mask: Any
    teacher_hidden: Any
    weights: Any


def make_batch(
    config: Config, scored: Scored, hidden: np.ndarray | None, loaded: "LoadedModel"
) -> PolicyBatch | DistillBatch:
    """The training input. `hidden`: (B, R, D) hidden states of the teacher, for `gkd`."""
    from tasks.models.attention import sees_prefixes

    pad_id, (texts, student, teacher) = loaded.tokenizer.pad_id, scored
    counted = ~np.isnan(teacher).any(axis=1)
    mask = tokens_there(texts, config.response_length)
    weights = row_weights(mask, counted, "token", config.response_length)
    if config.loss.name == "gkd":
        return DistillBatch(*padded_texts(texts, config, pad_id), hidden, weights)
    old = student if config.num_iterations > 1 else None
    return policy_batch(
        texts,
        (np.where(mask, teacher - student, 0), weights, weights, None, old),
        length=config.prompt_length + config.response_length,
        pad_id=pad_id,
        micro_batches=config.accumulation,
        shared=sees_prefixes(loaded.mesh),
    )


class DistillBatches:
    """Makes the training input of each update: samples and has the teacher score when an update
    begins a rollout, and reuses both for the next `num_iterations - 1` updates.

    Attributes:
        metrics: update (from 1) -> what its rollout measured. Means over the student's scored
            tokens: `reverse_kl` (log pi_S - log pi_T), `teacher_logp`; over its responses:
            `completion_tokens`, `truncated` and `unscored` (fractions).
        samples: the rows of `rollouts.jsonl`: the responses to one prompt of each logged rollout.
            Their reward is minus their `reverse_kl`.

    Its state is part of checkpoints (`tasks.training.loop.Keeps`): `samples`, and a rollout that
    more updates will use.
    """

    def __init__(
        self,
        config: Config,
        loaded: "LoadedModel",
        teacher: TokenTeacher,
        prompts: list[Prompt],
        traces: list[Example],
    ) -> None:
        self.config, self.loaded, self.teacher = config, loaded, teacher
        self.prompts, self.traces = prompts, traces
        self.sampler, self.token_logps = rollout_programs(config, loaded, config.sampled)
        self.metrics: dict[int, dict[str, float]] = {}
        self.samples: list[dict[str, Any]] = []
        self._scored: Scored | None = None
        self._batch: PolicyBatch | DistillBatch | None = None

    def batch_at(self, step: int) -> PolicyBatch | DistillBatch:
        """The training input of update `step` (from 0). A rollout is a function of the weights
        before its first update. Raises StageFailed: a program compiled more than once."""
        from flax import nnx

        from tasks.training.loop import rows_of_step

        index, reused = divmod(step, self.config.num_iterations)
        if reused:
            assert self._batch is not None, "sampled, or restored, with its rollout"
            self.metrics[step + 1] = self.metrics[step]
            return self._batch
        config, tokenizer = self.config, self.loaded.tokenizer
        prompts, completions = self._sample(index)
        wanted = config.batch_size - config.sampled
        rows = rows_of_step(config.seed, index, wanted, len(self.traces))
        traces = [self.traces[row] for row in rows]
        asked = [prompt_tokens(tokenizer, one.prompt) for one in (*prompts, *traces)]
        said = [one.tokens for one in completions]
        said += [response_tokens(tokenizer, trace.response()) for trace in traces]
        texts, weights = list(zip(asked, said, strict=True)), nnx.state(self.loaded.model)
        student = rollout_logps(self.token_logps, weights, texts, config, self.loaded)
        feedback = self.teacher.score(texts)
        self._scored = Scored(texts, student, feedback.logps)
        self._batch = make_batch(config, self._scored, feedback.hidden, self.loaded)
        self._measure(step, prompts, completions, self._scored)
        return self._batch

    def _sample(self, index: int) -> "tuple[list[Prompt], list[Completion]]":
        from tasks.training.loop import rows_of_step

        config = self.config
        rows = rows_of_step(
            config.seed, index, config.sampled // config.group_size, len(self.prompts)
        )
        chosen = [self.prompts[row] for row in rows]
        seed = rollout_seed(config.seed, index)
        groups = sample_groups(
            self.sampler, chosen, config.group_size, temperature=config.temperature, seed=seed
        )
        prompts = [prompt for prompt in chosen for _ in range(config.group_size)]
        return prompts, [completion for group in groups for completion in group]

    def _measure(
        self, step: int, prompts: list[Prompt], completions: "list[Completion]", found: Scored
    ) -> None:
        """Record a rollout's metrics, and its rows if it is logged."""
        student, teacher = found.student[: len(prompts)], found.teacher[: len(prompts)]
        tokens = np.array([len(completion.tokens) for completion in completions])
        scored = ~np.isnan(teacher).any(axis=1)
        kl = np.where(scored[:, None], student - teacher, 0).sum(axis=1)  # both are 0 at padding
        total = tokens[scored].sum()
        sums = {"reverse_kl": kl.sum(), "teacher_logp": teacher[scored].sum()} if total else {}
        self.metrics[step + 1] = {
            **{name: float(value / total) for name, value in sums.items()},
            "completion_tokens": float(tokens.mean()),
            "truncated": float(np.mean([not completion.terminated for completion in completions])),
            "unscored": float(np.mean(~scored)),
        }
        for row in range(self.config.group_size if is_logged(self.config, step + 1) else 0):
            mean = float(kl[row] / tokens[row]) if scored[row] else None
            reward = None if mean is None else -mean
            scores = {"rewards": {"reverse_kl": mean}, "reward": reward, "advantage": reward or 0.0}
            self.samples.append(sample_row(step + 1, prompts[row], completions[row], **scores))

    def state(self, step: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The state that `restore` needs."""
        values: dict[str, Any] = {"samples": self.samples, "costs": self.teacher.costs()}
        if step % self.config.num_iterations == 0:
            return {}, values
        assert self._scored is not None, "an update before this one began the rollout"
        texts, student, teacher = self._scored
        values |= {"texts": texts, "metrics": self.metrics[step]}
        return {"student": student, "teacher": teacher}, values

    def restore(self, step: int, arrays: dict[str, np.ndarray], values: dict[str, Any]) -> None:
        """Go on after `step` updates with the `state` of then. The teacher's hidden states are
        large, so they are computed again."""
        self.samples = values["samples"]
        self.teacher.restore(values["costs"])
        if arrays:
            texts = [(prompt, response) for prompt, response in values["texts"]]
            scored = self._scored = Scored(texts, **arrays)
            gkd = self.config.loss.name == "gkd"
            hidden = self.teacher.score(texts).hidden if gkd else None
            self._batch = make_batch(self.config, scored, hidden, self.loaded)
            self.metrics[step] = values["metrics"]


def fitting_traces(config: Config, examples: list[Example], tokenizer: Tokenizer) -> list[Example]:
    """The data's traces that fit the fixed lengths, for GKD's off-policy fraction; empty if that is
    0. Raises InputError: none fits."""
    if config.sampled == config.batch_size:
        return []
    fitting = [
        example
        for example in examples
        if len(prompt_tokens(tokenizer, example.prompt)) <= config.prompt_length
        and len(response_tokens(tokenizer, example.response())) <= config.response_length
    ]
    if not fitting:
        raise InputError(
            f"none of {len(examples)} training examples fits prompt_length = {config.prompt_length}"
            f" and response_length = {config.response_length} tokens, and loss.on_policy_fraction <"
            " 1 wants their traces; raise the lengths, or leave it at 1."
        )
    return fitting

"""A Gemma on this job's devices as the teacher: one program gives the log-probabilities of a
student's tokens.

It lies on the devices that the student has, spread over them if it is large
(`tasks.models.sharding`). An update samples, scores and trains one after the other: if each model
had half of the devices (`tasks.devices.hosts.halves`), one half would always wait. By the TPU
compiler, Gemma 3 12B scores 64 rows of 768 tokens, 16 at a time, in 1.8 s on the eight chips of a
v5e-8 and in 5.1 s on four; 64 at a time in 1.0 s.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from schemas.base import InputError, StrictModel
from schemas.trainer_config import SamplingConfig
from tasks.data.packing import Text
from tasks.data.tokens import pad_left, pad_right
from tasks.devices.hosts import fetch, spread
from tasks.distillation.feedback import Feedback, TokenTeacher
from tasks.reinforcement.rollout import tokens_there
from tasks.sampling.rollouts import require_one_program, rollout_logps

if TYPE_CHECKING:
    from tasks.data.tokens import Tokenizer
    from tasks.models.loading import LoadedModel
    from tasks.planning.programs import Program


class GemmaTeacherConfig(StrictModel):
    """A base model as the teacher. `model`: a recipe's `model`, e.g. gemma3-12b-it."""

    name: Literal["gemma"]
    model: str


class GemmaTeacher(TokenTeacher):
    """A teacher in this process. It takes as many rows at a time as a micro-batch of the student
    has.

    Args:
        config: the stage's sizes and temperature.
        hidden: also give hidden states; then each response has a row of its own. Without them
            responses share rows.
    """

    def __init__(self, loaded: "LoadedModel", config: SamplingConfig, *, hidden: bool) -> None:
        self.loaded, self.config, self.hidden = loaded, config, hidden
        self._size = config.batch_size // config.accumulation
        self._program = _teacher_logps_fn(loaded, hidden=hidden)

    def score(self, texts: Sequence[Text]) -> Feedback:
        """See `TokenTeacher`. Raises StageFailed: as `require_one_program`."""
        import jax
        from flax import nnx

        from tasks.planning.programs import compilations

        size, mesh, state = self._size, self.loaded.mesh, nnx.state(self.loaded.model)
        if not self.hidden:
            return Feedback(rollout_logps(self._program, state, texts, self.config, self.loaded))
        rows = padded_texts(texts, self.config, self.loaded.tokenizer.pad_id)
        temperature = np.float32(self.config.temperature)
        with jax.set_mesh(mesh):
            parts = [
                self._program(
                    state,
                    spread(tuple(array[start : start + size] for array in rows), mesh),
                    temperature,
                )
                for start in range(0, len(texts), size)
            ]
        require_one_program(teacher_logps=compilations(self._program))
        return Feedback(
            *(np.concatenate(list(map(fetch, part))) for part in zip(*parts, strict=True))
        )

    def program(self, batches: float, resident: Any = None) -> "Program":
        """The program that `score` compiles, in the worst case: a row for each response.

        Args:
            batches: how many are scored.
            resident: see `Program`.
        """
        from flax import nnx

        from tasks.planning.programs import Program, rows, scalar, shapes, vocabulary_trips

        config, mesh = self.config, self.loaded.mesh
        lengths = config.prompt_length, config.response_length
        asked, said, both = (
            np.zeros((self._size, length), np.int32) for length in (*lengths, sum(lengths))
        )
        batch = (asked, said, said > 0) if self.hidden else (both, both, both, both > 0)
        args = (shapes(nnx.state(self.loaded.model)), rows(batch, mesh), scalar(np.float32))
        trips = vocabulary_trips(self._size * config.response_length, mesh)
        calls = batches * config.accumulation
        return Program("teacher_logps", self._program, args, calls, resident, trips)


def padded_texts(
    texts: Sequence[Text], config: SamplingConfig, pad_id: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(B, P) int32 prompts, left-padded; (B, R) int32 responses, right-padded; and (B, R) bool:
    which tokens each response has, of which one may be the padding's."""
    prompts, responses = zip(*texts, strict=True)
    return (
        pad_left(prompts, config.prompt_length, pad_id),
        pad_right(responses, config.response_length, pad_id),
        tokens_there(texts, config.response_length),
    )


def _teacher_logps_fn(loaded: "LoadedModel", *, hidden: bool) -> Any:
    """The compiled function (state, rows, temperature) -> log-probabilities, as
    `tasks.training.packed_logps.token_logps_fn`. With `hidden`, `rows` are those of
    `padded_texts`, and there are (B, R) log-probabilities of the completions, 0 at padding, and (B,
    R, D) hidden states."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    from tasks.models.vocabulary import positions_of, token_logps
    from tasks.training.packed_logps import row_logps

    graph, _ = nnx.split(loaded.model)
    pad_id = loaded.tokenizer.pad_id

    def teacher_logps(state: nnx.State, rows: Any, temperature: jax.Array) -> Any:
        model = nnx.merge(graph, state)
        if not hidden:
            return row_logps(model, *rows, temperature=temperature)
        prompt_ids, completion_ids, there = rows
        tokens = jnp.concatenate([prompt_ids, completion_ids], axis=1)
        real = jnp.concatenate([prompt_ids != pad_id, there], axis=1)
        every, _ = model(tokens, positions_of(real), real.astype(jnp.int32))
        before = every[:, -completion_ids.shape[1] - 1 : -1]
        return token_logps(model, before, completion_ids, there, temperature=temperature), before

    return jax.jit(teacher_logps)


def require_same_tokenizer(student: "Tokenizer", teacher: "Tokenizer", name: str) -> None:
    """A teacher is asked for the probability of the student's very tokens.

    Raises:
        InputError: the two have not the same pieces under the same ids.
    """
    if student.model_proto != teacher.model_proto and _pieces(student) != _pieces(teacher):
        raise InputError(
            f"the teacher {name} has another tokenizer than the student ({len(teacher)} and"
            f" {len(student)} pieces), so it gives no probability to the student's tokens. Take a"
            " teacher of the student's family: a Gemma 3 12B or 27B for Gemma 3 1B, Gemma 2 9B for"
            " 2B. gpt-oss, or any other family, can teach by its answers only (stage kind"
            " distill)."
        )


def _pieces(tokenizer: "Tokenizer") -> list[str]:
    from sentencepiece import sentencepiece_model_pb2

    proto: Any = sentencepiece_model_pb2  # generated code without type information
    return [piece.piece for piece in proto.ModelProto.FromString(tokenizer.model_proto).pieces]

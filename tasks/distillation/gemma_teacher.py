"""A Gemma on this job's devices as the teacher: one prefill program gives the log-probabilities of
a student's tokens.

It lies on the devices that the student has, spread over them if it is large
(`tasks.models.sharding`). An update samples, scores and trains one after the other: if each model
had half of the devices (`tasks.devices.hosts.halves`), one half would always wait. By the TPU
compiler, Gemma 3 12B scores 64 rows of 768 tokens, 16 at a time, in 1.8 s on the eight chips of a
v5e-8 and in 5.1 s on four; 64 at a time in 1.0 s.
"""

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from schemas.base import InputError, StrictModel
from tasks.devices.hosts import fetch, spread
from tasks.distillation.feedback import Feedback, TokenTeacher

if TYPE_CHECKING:
    from tasks.data.tokens import Tokenizer
    from tasks.models.loading import LoadedModel
    from tasks.planning.programs import Program


class GemmaTeacherConfig(StrictModel):
    """A base model as the teacher. `model`: a recipe's `model`, e.g. gemma3-12b-it."""

    name: Literal["gemma"]
    model: str


class GemmaTeacher(TokenTeacher):
    """A teacher in this process.

    Args:
        accumulation: a batch is scored in so many parts, each of one shape.
        temperature: divides the logits.
        hidden: also give hidden states.
    """

    def __init__(
        self, loaded: "LoadedModel", *, accumulation: int, temperature: float, hidden: bool
    ) -> None:
        self.loaded, self.accumulation, self.hidden = loaded, accumulation, hidden
        self._temperature = np.float32(temperature)
        self._program = _teacher_logps_fn(loaded, hidden=hidden)

    @property
    def compiles(self) -> int:
        """How many programs were compiled: 1 after any number of batches."""
        from tasks.planning.programs import compilations

        return compilations(self._program)

    def score(self, prompt_ids: np.ndarray, completion_ids: np.ndarray) -> Feedback:
        """See `TokenTeacher`."""
        import jax
        from flax import nnx

        size, mesh = len(prompt_ids) // self.accumulation, self.loaded.mesh
        state = nnx.state(self.loaded.model)
        slices = [slice(start, start + size) for start in range(0, len(prompt_ids), size)]
        with jax.set_mesh(mesh):
            parts = [
                self._program(
                    state, *spread((prompt_ids[s], completion_ids[s]), mesh), self._temperature
                )
                for s in slices
            ]
        logps, hidden = (
            None if part[0] is None else np.concatenate(list(map(fetch, part)))
            for part in zip(*parts, strict=True)
        )
        assert logps is not None
        return Feedback(logps, hidden)

    def program(
        self, batch_size: int, lengths: tuple[int, int], calls: float, resident: Any = None
    ) -> "Program":
        """The programs that `score` compiles for batches of that size, and these lengths of prompt
        and response.

        Args:
            calls: batches scored.
            resident: see `Program`.
        """
        from flax import nnx

        from tasks.planning.programs import Program, rows, scalar, shapes, vocabulary_trips

        micro, mesh = batch_size // self.accumulation, self.loaded.mesh
        ids = rows(tuple(np.zeros((micro, length), np.int32) for length in lengths), mesh)
        args = (shapes(nnx.state(self.loaded.model)), *ids, scalar(np.float32))
        trips = vocabulary_trips(micro * lengths[1], mesh)
        return Program(
            "teacher_logps", self._program, args, calls * self.accumulation, resident, trips
        )


def _teacher_logps_fn(loaded: "LoadedModel", *, hidden: bool) -> Any:
    """The compiled function (state, prompt_ids (B, P), completion_ids (B, R), temperature) -> (B,
    R) log-probabilities of the completions, 0 at padding, and (B, R, D) hidden states or None."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    from tasks.models.vocabulary import positions_of, token_logps

    graph, _ = nnx.split(loaded.model)
    pad_id = loaded.tokenizer.pad_id

    def teacher_logps(
        state: nnx.State, prompt_ids: jax.Array, completion_ids: jax.Array, temperature: jax.Array
    ) -> Any:
        model = nnx.merge(graph, state)
        tokens = jnp.concatenate([prompt_ids, completion_ids], axis=1)
        real = tokens != pad_id
        every, _ = model(tokens, positions_of(real), real.astype(jnp.int32))
        before = every[:, -completion_ids.shape[1] - 1 : -1]
        logps = token_logps(
            model, before, completion_ids, completion_ids != pad_id, temperature=temperature
        )
        return logps, before if hidden else None

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

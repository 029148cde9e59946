"""The training input of GKD: the student's responses with the teacher's hidden states; and the
teacher's embedding."""

from typing import Any

import flax.struct
from flax import nnx


@flax.struct.dataclass(frozen=True)
class DistillBatch:
    """B responses with the teacher's hidden states; the first axis of every array.

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


class TeacherEmbedding(nnx.Variable[Any]):
    """The teacher's embedding (V, D) as an attribute of the student: frozen, passed to its
    programs, but not one of its weights."""


def attach_teacher(student: Any, embedding: Any) -> None:
    """Give the student, a Gemma, the teacher's embedding, which `gkd_loss_fn` needs."""
    student.teacher_embedding = TeacherEmbedding(embedding)

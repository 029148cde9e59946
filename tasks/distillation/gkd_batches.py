"""What the student is trained on by whole distributions: its responses with what the teacher makes
of them, and the teacher's embedding."""

from typing import Any

import flax.struct
from flax import nnx


@flax.struct.dataclass(frozen=True)
class DistillBatch:
    """B responses with what the teacher makes of them; every array has them as its first axis.

    Attributes:
        prompt_ids: (B, P) int32, left-padded.
        completion_ids, completion_mask: (B, R) int32 and bool, right-padded.
        teacher_hidden: (B, R, D) the teacher's hidden states, position t predicts completion t.
        weights: (B,) float32 of one token's loss
            (`tasks.reinforcement.rollout.row_weights`).
    """

    prompt_ids: Any
    completion_ids: Any
    completion_mask: Any
    teacher_hidden: Any
    weights: Any


class TeacherEmbedding(nnx.Variable[Any]):
    """The teacher's embedding (V, D) as an attribute of the student: frozen, and given to its
    programs, but no weight of it."""


def attach_teacher(student: Any, embedding: Any) -> None:
    """Give the student, a Gemma, what `gkd_loss_fn` needs of its teacher."""
    student.teacher_embedding = TeacherEmbedding(embedding)

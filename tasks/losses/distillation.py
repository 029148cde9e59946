"""Divergences of a student's next-token distributions from a teacher's, over the whole vocabulary
and without a (B, T, V) array.

    JSD_b(T, S) = b KL(T || M) + (1 - b) KL(S || M),   M = b T + (1 - b) S

    b between 0 and 1    GKD (2306.13649, equation 1)
    b = 0                KL(T || S), forward: covers all of the teacher's modes
    b = 1                KL(S || T), reverse: seeks one of them (MiniLLM, 2306.08543)

The two ends are not the limits of the formula, which are 0; they are those of TRL's
`GKDTrainer.generalized_jsd_loss`, with which these numbers agree
(tests/tasks/losses/test_distillation.py). Both models' logits exist for a few hundred tokens at a
time (`tasks.models.vocabulary`), and of the teacher only hidden states and embedding are needed.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from tasks.distillation.student_samples import DistillBatch
from tasks.models.decoder import GemmaConfig, unembed
from tasks.models.vocabulary import per_token, positions_of


def generalized_jsd(student: jax.Array, teacher: jax.Array, beta: float) -> jax.Array:
    """(..., V) log-probabilities of both -> (...) divergences in nats."""
    if beta == 0:
        return jnp.sum(jnp.exp(teacher) * (teacher - student), axis=-1)
    if beta == 1:
        return jnp.sum(jnp.exp(student) * (student - teacher), axis=-1)
    mixture = jnp.logaddexp(teacher + jnp.log(beta), student + jnp.log1p(-beta))
    of_teacher, of_student = (
        jnp.sum(jnp.exp(one) * (one - mixture), axis=-1) for one in (teacher, student)
    )
    return beta * of_teacher + (1 - beta) * of_student


def token_divergences(
    model: Any,
    hidden: jax.Array,
    teacher: tuple[GemmaConfig, jax.Array, jax.Array],
    mask: jax.Array,
    *,
    beta: float,
    temperature: float = 1.0,
) -> tuple[jax.Array, jax.Array]:
    """JSD_beta of each position's next-token distributions.

    Vocabularies may differ in padding rows (Gemma 3 has 64 more from 4B on): both distributions are
    over the rows that both have. Differentiable in `hidden` and in the model's embedding.

    Args:
        model: the student, a Gemma.
        hidden: (B, T, D) input of the student's unembedding.
        teacher: its architecture, embedding (V', D') and hidden states (B, T, D').
        mask: (B, T) bool: the positions to compute.
        temperature: divides the logits of both.

    Returns:
        (B, T) float32 divergences and the student's entropies, in nats; 0 where masked out.
    """
    config, embedding, teacher_hidden = teacher
    divergences, entropies = per_token(
        partial(_chunk_divergences, model.config, config, beta, temperature),
        model,
        hidden,
        mask,
        (teacher_hidden,),
        (embedding,),
    )
    return divergences, entropies


def _chunk_divergences(
    config: GemmaConfig,
    teacher_config: GemmaConfig,
    beta: float,
    temperature: float,
    embedding: jax.Array,
    hidden: jax.Array,
    teacher_hidden: jax.Array,
    teacher_embedding: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """(C, D) and (C, D') hidden states -> (C,) divergences and entropies."""
    common = min(len(embedding), len(teacher_embedding))

    def logps(config: GemmaConfig, embedding: jax.Array, hidden: jax.Array) -> jax.Array:
        return jax.nn.log_softmax(unembed(config, embedding, hidden)[:, :common] / temperature)

    student = logps(config, embedding, hidden)
    teacher = jax.lax.stop_gradient(logps(teacher_config, teacher_embedding, teacher_hidden))
    return generalized_jsd(student, teacher, beta), -jnp.sum(jnp.exp(student) * student, axis=-1)


class TeacherEmbedding(nnx.Variable[Any]):
    """The teacher's embedding (V, D) as an attribute of the student: frozen, passed to its
    programs, but not one of its weights."""


def attach_teacher(student: Any, embedding: Any) -> None:
    """Give the student, a Gemma, the teacher's embedding, which `gkd_loss_fn` needs."""
    student.teacher_embedding = TeacherEmbedding(embedding)


def gkd_loss_fn(
    *, pad_id: int, beta: float, temperature: float, teacher: GemmaConfig
) -> Callable[[Any, DistillBatch], tuple[jax.Array, dict[str, jax.Array]]]:
    """The loss for Tunix's trainer: the weighted mean of JSD_beta over the tokens of a batch, and
    the mean `entropy`.

    The student has its teacher's embedding (`attach_teacher`).
    """

    def loss_fn(model: Any, train_example: DistillBatch) -> tuple[jax.Array, dict[str, jax.Array]]:
        batch, mask = train_example, train_example.completion_mask
        tokens = jnp.concatenate([batch.prompt_ids, batch.completion_ids], axis=1)
        real = jnp.concatenate([batch.prompt_ids != pad_id, mask], axis=1)
        hidden, _ = model(tokens, positions_of(real), real.astype(jnp.int32))
        of_teacher = (teacher, model.teacher_embedding.get_value(), batch.teacher_hidden)
        found = token_divergences(
            model,
            hidden[:, -mask.shape[1] - 1 : -1],
            of_teacher,
            mask,
            beta=beta,
            temperature=temperature,
        )
        divergence, entropy = (
            jnp.mean(batch.weights * jnp.sum(values, axis=1)) for values in found
        )
        return divergence, {"entropy": entropy}

    return loss_fn

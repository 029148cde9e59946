"""The programs of `tasks.sampling.slots` for requests of one client each: each row has its own
temperature and nucleus, and log-probabilities on request."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from tasks.sampling.next_token import truncated
from tasks.sampling.slot_programs import SlotPrograms, Slots

LIKELIEST = 20
"""The most tokens whose log-probabilities come beside the drawn one's: OpenAI's bound."""

EVERY = 2.0
"""A `top_p` that leaves no token out, since a sum of rounded probabilities may exceed 1."""


class ServedPrograms(SlotPrograms):
    """Slots whose rows differ in how they are sampled.

    `logp` is a token's log-probability under the model at temperature 1, however it was drawn;
    `likeliest` are the tokens with the largest, and `likeliest_logps` theirs. They are 0 for rows
    that do not request them (`told`).
    """

    GIVEN: ClassVar[dict[str, Any]] = SlotPrograms.GIVEN | {"top_p": np.float32, "told": np.bool_}
    DRAWN: ClassVar[dict[str, tuple[tuple[int, ...], Any]]] = SlotPrograms.DRAWN | {
        "logp": ((), np.float32),
        "likeliest": ((LIKELIEST,), np.int32),
        "likeliest_logps": ((LIKELIEST,), np.float32),
    }

    def draw(self, logits: jax.Array, keys: jax.Array, numbers: jax.Array, given: Slots) -> Slots:
        drawn = super().draw(logits, keys, numbers, given)

        def likelihoods(logits: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            logps = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
            best, tokens = jax.lax.top_k(logps, LIKELIEST)
            chosen = jnp.take_along_axis(logps, drawn["token"][:, None], -1)[:, 0]
            return chosen, tokens.astype(jnp.int32), best

        def nothing(logits: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            rows = logits.shape[0]
            none = jnp.zeros((rows, LIKELIEST))
            return jnp.zeros(rows), none.astype(jnp.int32), none

        logp, tokens, best = jax.lax.cond(given["told"].any(), likelihoods, nothing, logits)
        return drawn | {"logp": logp, "likeliest": tokens, "likeliest_logps": best}

    def allowed(self, logits: jax.Array, temperature: jax.Array, given: Slots) -> jax.Array:
        top_p = given["top_p"][:, None]
        return jax.lax.cond(
            (top_p < 1).any(),
            lambda logits: truncated(logits, temperature, None, top_p),
            lambda logits: logits,
            logits,
        )

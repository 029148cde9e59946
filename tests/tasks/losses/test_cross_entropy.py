"""The supervised loss against Tunix's."""

import numpy as np
from flax import nnx
from tunix.sft.peft_trainer import _default_loss_fn

from tasks.losses.cross_entropy import cross_entropy
from tests.tasks.losses.bigram import VOCABULARY, Bigram, TunixBigram


def test_cross_entropy_and_its_gradient_are_tunixs():
    """The first token has no prediction, whatever its weight; the last row has no target."""
    generator = np.random.Generator(np.random.Philox(0))
    tokens = generator.integers(0, VOCABULARY, (3, 5)).astype(np.int32)
    mask = np.array([[1, 0, 0, 1, 1], [1, 1, 0, 0, 1], [1, 0, 0, 0, 0]], np.float32)
    places = np.zeros_like(tokens)
    stock = nnx.jit(
        nnx.value_and_grad(lambda model: _default_loss_fn(model, tokens, mask, places, places))
    )
    own = nnx.jit(
        nnx.value_and_grad(
            lambda model: cross_entropy(model, tokens, mask / mask[:, 1:].sum(), places, places)
        )
    )
    (their_loss, theirs), (loss, gradient) = stock(TunixBigram()), own(Bigram())
    np.testing.assert_allclose(loss, their_loss, rtol=1e-6)
    np.testing.assert_allclose(
        gradient["embedding"].get_value(), theirs["embedding"].get_value(), rtol=1e-5, atol=1e-7
    )

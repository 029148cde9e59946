"""The next token: drawn as often as its probability says, the likeliest, those of a nucleus."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tasks.sampling import next_token
from tasks.sampling.next_token import drawn, first_best, truncated


def draws(logits: np.ndarray, temperature: float, count: int) -> np.ndarray:
    """`count` tokens drawn from logits (V,), each with a key of its own."""
    keys = jax.random.split(jax.random.key(0), count)
    rows = jnp.broadcast_to(jnp.asarray(logits, jnp.float32), (count, len(logits)))
    return np.asarray(drawn(rows, jnp.float32(temperature), keys, jnp.zeros(count, jnp.int32)))


@pytest.mark.parametrize("size", [7, 1536])  # one block; three
@pytest.mark.parametrize("temperature", [0.7, 1.0, 2.0])
def test_tokens_are_drawn_as_often_as_their_probabilities_say(size, temperature) -> None:
    """Pearson's statistic over 20 groups of tokens, of 8,000 draws, below the 99.99th percentile of
    chi-square with 19 degrees of freedom; for 7 tokens there are 7 groups, and 6 degrees."""
    logits = np.random.default_rng(0).normal(0, 2, size)
    found = draws(logits, temperature, 8000)
    shares = np.exp(logits / temperature - (logits / temperature).max())
    groups = np.arange(size) % 20
    expected = np.bincount(groups, shares / shares.sum()) * 8000
    seen = np.bincount(groups[found], minlength=len(expected))
    assert ((seen - expected) ** 2 / expected).sum() < (51 if size > 20 else 28)


def test_what_may_not_be_drawn_is_not_and_greedy_rows_are_greedy() -> None:
    logits = np.random.default_rng(1).normal(0, 1, (400, 1536)).astype(np.float32)
    few = np.where(np.arange(1536) % 97 == 5, logits, -np.inf)
    keys = jax.random.split(jax.random.key(2), 400)
    warm = np.arange(400)[:, None] % 2
    found = np.asarray(drawn(few, jnp.asarray(warm * 5.0), keys, jnp.arange(400)))
    assert set(found % 97) == {5}
    cold = warm[:, 0] == 0
    assert (found == few.argmax(-1))[cold].all()
    assert (found == few.argmax(-1))[~cold].mean() < 0.5


@pytest.mark.parametrize("share", [-1e-6, 0.0, 3.9999998, 4.0, 4.1])
def test_rounded_sums_lead_to_no_token_without_weight(share: float) -> None:
    weights = jnp.asarray([[0.0, 1.0, 0.0, 3.0, 0.0]])
    index, _ = next_token._place(weights, jnp.asarray([share]))
    assert index.tolist() == [1 if share <= 0 else 3]


def test_sums_that_grow_where_nothing_is_added_lead_to_no_token_without_weight() -> None:
    """Of 512 blocks, as Gemma's vocabulary has, many of them empty, sums over a tree differ in the
    last bit between neighbours; every share lies at such a place."""
    generator = np.random.default_rng(0)
    weights = np.where(generator.random((500, 512)) < 0.3, generator.random((500, 512)), 0)
    weights = weights.astype(np.float32)
    ends = np.asarray(jnp.cumsum(weights, axis=-1))
    rows, places = np.nonzero((weights[:, 1:] == 0) & (np.diff(ends) > 0))
    index, _ = next_token._place(jnp.asarray(weights[rows]), jnp.asarray(ends[rows, places]))
    assert (weights[rows, np.asarray(index)] > 0).all()


TRUNCATED = (
    (1.0, 2, None, [0, 1]),
    (1.0, 3, None, [0, 1, 2, 3]),  # the last two are as likely as each other
    (1.0, 9, None, [0, 1, 2, 3]),
    (1.0, None, 0.5, [0]),
    (1.0, None, 0.6, [0, 1]),
    (0.5, None, 0.6, [0]),  # squared: .727 .182 .045 .045
    (2.0, None, 0.7, [0, 1, 2, 3]),  # roots: .369 .261 .185 .185
    (1.0, None, 0.65, [0, 1]),
    (1.0, 2, 0.65, [0]),  # of two alone the first has 2/3
    (1.0, None, 1e-9, [0]),
)


def test_truncated_distributions_are_the_worked_ones():
    """Probabilities .5 .25 .125 .125, in another order in the second row."""
    logits = np.log(np.array([[0.5, 0.25, 0.125, 0.125], [0.125, 0.5, 0.125, 0.25]]))
    order = np.array([[0, 1, 2, 3], [1, 3, 0, 2]])
    for temperature, top_k, top_p, kept in TRUNCATED:
        found = np.asarray(truncated(jnp.asarray(logits), jnp.float32(temperature), top_k, top_p))
        for row in range(2):
            allowed = np.isfinite(found[row])
            assert sorted(np.flatnonzero(allowed)) == sorted(order[row][kept])
            np.testing.assert_allclose(found[row][allowed], logits[row][allowed], rtol=1e-6)


def test_a_nucleus_is_that_of_sorted_probabilities() -> None:
    """Against sorting, at logits of both signs: 64 rows of 1,000."""
    logits = np.random.Generator(np.random.Philox(0)).normal(0, 3, (64, 1000)).astype(np.float32)
    for top_p in (0.05, 0.5, 0.9, 0.999):
        found = np.asarray(truncated(jnp.asarray(logits), jnp.float32(0.7), None, top_p))
        share = np.exp(logits.astype(np.float64) / 0.7)
        share /= share.sum(axis=-1, keepdims=True)
        ranked = -np.sort(-share, axis=-1)
        count = ((np.cumsum(ranked, axis=-1) - ranked) < top_p).sum(axis=-1)
        assert np.abs(np.isfinite(found).sum(axis=-1) - count).max() <= (top_p > 0.99)
        least = np.where(np.isfinite(found), share, 1).min(axis=-1)
        assert (least >= ranked[np.arange(64), np.minimum(count, 999)]).all()


def test_a_tie_goes_to_the_first_token_as_argmax_does() -> None:
    logits = np.array(
        [[0.0, 2.0, 2.0, 1.0], [-1.0, -3.0, -1.0, -2.0], [0.0, 0.0, 0.0, 5.0]], np.float32
    )
    assert first_best(jnp.asarray(logits)).tolist() == logits.argmax(-1).tolist() == [1, 0, 3]

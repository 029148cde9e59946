"""Packing: every row kept once, little padding, and a packed row trains exactly as its parts
would."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from tasks.data.packing import (
    BRANCHES,
    Group,
    Shape,
    best_fit,
    first_fit,
    in_groups,
    pack,
    pack_responses,
    tightest,
    units,
)
from tasks.losses.cross_entropy import cross_entropy
from tasks.models.loading import base_model
from tasks.stages import sft


@given(st.lists(st.integers(1, 50), max_size=60))
def test_every_row_is_in_exactly_one_bin_that_holds_it(lengths):
    bins = best_fit(lengths, 50)
    assert sorted(index for members in bins for index in members) == list(range(len(lengths)))
    assert all(sum(lengths[index] for index in members) <= 50 for members in bins)


def test_best_fit_wastes_little():
    lengths = np.random.Generator(np.random.Philox(0)).integers(30, 90, 2000).tolist()
    assert sum(lengths) / (len(best_fit(lengths, 256)) * 256) > 0.95


@pytest.mark.usefixtures("one_layer")
def test_packed_rows_have_the_loss_and_gradients_of_their_parts():
    generator = np.random.Generator(np.random.Philox(0))
    rows = [
        (generator.integers(6, 1000, p).tolist(), generator.integers(6, 1000, r).tolist())
        for p, r in [(5, 7), (3, 4), (8, 2)]
    ]
    together, alone = pack(rows, 32, 0), [pack([row], 32, 0) for row in rows]
    assert together.segments.max() == 3
    model = base_model("gemma3-tiny", seed=0).model

    @nnx.jit
    def gradient(model, batch):
        return nnx.value_and_grad(lambda model: cross_entropy(model, **batch))(model)

    def of(packed):
        return gradient(model, jax.tree.map(jnp.asarray, sft.batch(packed, np.arange(1), 1.0)))

    loss, grads = of(together)
    parts = [of(packed) for packed in alone]
    np.testing.assert_allclose(loss, sum(part[0] for part in parts), rtol=1e-5)
    summed = jax.tree.map(lambda *leaves: sum(leaves), *[part[1] for part in parts])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), grads, summed)


def test_a_response_is_found_where_its_tokens_are_predicted():
    """Texts of 4, 6 and 2 tokens in three rows of 6: the second; the first and the third; none."""
    texts = [([7, 8], [1, 2]), ([9], [3, 4, 5, 6, 7]), ([5], [6])]
    groups = in_groups(texts, shared=True)  # of which each has a prompt of its own
    packed = pack_responses(groups, Shape(3, 6), 5, 0)
    assert packed.tokens.tolist() == [[9, 3, 4, 5, 6, 7], [7, 8, 1, 2, 5, 6], [0] * 6]
    assert packed.positions.tolist() == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 0, 1], [0] * 6]
    one, two = BRANCHES + 1, 2 * BRANCHES + 1
    assert packed.segments.tolist() == [[one] * 6, [one] * 4 + [two] * 2, [0] * 6]
    assert packed.predicts.astype(int).tolist() == [[1] * 5 + [0], [0, 1, 1, 0, 1, 0], [0] * 6]
    assert packed.places.tolist() == [[7, 8, 18, 18, 18], [0, 1, 2, 3, 4], [10, 18, 18, 18, 18]]
    with pytest.raises(ValueError, match="3 texts fill 2 rows"):
        pack_responses(groups, Shape(1, 6), 5, 0)


def test_responses_share_their_prompt_as_far_as_a_row_reaches():
    """Three of the prompt 7 8 9 in rows of 9: two behind one prefix, the third, longest, with its
    own; its last token goes before each. Unshared, each has its own prompt."""
    texts = [([7, 8, 9], [1, 2]), ([7, 8, 9], [3]), ([7, 8, 9], [4, 5, 6, 6])]
    packed = pack_responses(in_groups(texts, shared=True), Shape(2, 9), 4, 0)
    assert packed.tokens.tolist() == [[7, 8, 9, 4, 5, 6, 6, 9, 3], [7, 8, 9, 1, 2, 0, 0, 0, 0]]
    assert packed.positions[0].tolist() == [0, 1, 2, 3, 4, 5, 6, 2, 3]
    first = BRANCHES
    assert packed.segments[0].tolist() == [first] * 2 + [first + 1] * 5 + [first + 2] * 2
    assert packed.predicts[0].astype(int).tolist() == [0, 0, 1, 1, 1, 1, 0, 1, 0]
    assert packed.places.tolist() == [[11, 12, 18, 18], [7, 18, 18, 18], [2, 3, 4, 5]]
    alone = pack_responses(in_groups(texts, shared=False), Shape(2, 9), 4, 0)
    assert alone.tokens.tolist() == [[7, 8, 9, 4, 5, 6, 6, 0, 0], [7, 8, 9, 1, 2, 7, 8, 9, 3]]


@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(0, 20), st.tuples(*[st.integers(2, 20)] * 2)),
            min_size=1,
            max_size=8,
        ),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([1, 2, 4]),
    st.integers(40, 70),
    st.integers(1, 4),
)
def test_the_tightest_shape_holds_every_batch_in_its_blocks_and_costs_no_more_than_a_row_each(
    batches, multiple, longest, blocks
):
    rows = 2 * -(-max(map(len, batches)) // blocks)
    shape = tightest(batches, longest, multiple, work=100, blocks=blocks, rows=rows)
    computed = 0
    for groups in batches:
        filled = first_fit(groups, shape)
        assert sorted(index for block in filled for index in block) == list(range(len(groups)))
        assert len(filled) <= blocks
        computed += len(filled)
        for members in filled:
            taken = [groups[member] for member in members]
            said = [length - 1 for _, lengths in taken for length in lengths]
            made = [
                Group([3] * prefix, [([1], [2] * (length - 1)) for length in lengths])
                for prefix, lengths in taken
            ]
            packed = pack_responses(made, shape, 39, 0)
            assert packed.predicts.sum() == sum(said)
            held = sum(tokens for tokens, _ in units(taken, shape.length))
            assert (packed.segments > 0).sum() == held
    widest = -(-rows // multiple) * multiple
    assert shape.rows <= widest
    assert computed * shape.rows * shape.length <= len(batches) * blocks * widest * longest
    assert (shape.rows % multiple, shape.length <= longest) == (0, True)


def test_rows_are_an_eighth_of_the_longest_or_some():
    """Of 120 tokens: 16, 32, 48, 64, 80, 96, 112, 120; of 1,024 multiples of 128, as kernels want
    them. Where attention is little of the work fewer tokens are better, else shorter rows: 120
    (1,000 + 120) < 2 x 64 (1,000 + 64), but 120 (100 + 120) > 2 x 64 (100 + 64)."""
    for batches, longest, work, expected in (
        ([[60, 60], [30, 30, 30, 30]], 120, 1000, Shape(1, 120)),
        ([[60, 60], [30, 30, 30, 30]], 120, 100, Shape(2, 64)),
        ([[33, 60], [40, 50]], 120, 1000, Shape(1, 96)),
        ([[300, 500, 400]], 1024, 1e9, Shape(3, 512)),
        ([[1024, 1]], 1024, 1e9, Shape(2, 1024)),
        ([[10, 10], [10]], 21, 1000, Shape(1, 21)),
    ):
        groups = [[(0, (length,)) for length in batch] for batch in batches]
        assert tightest(groups, longest, 1, work, rows=max(map(len, batches))) == expected


def test_few_blocks_with_many_pairs_or_some_of_few_rows_whichever_is_less():
    """Two steps of four pairs in up to two blocks of eight rows: a block of three rows of 8 holds
    both pairs of 2 x 8 + 2 x 4 tokens; the second step's four of 2 x 2 tokens need one."""
    batches = [[(0, (8, 4))] * 4, [(0, (2, 2))] * 4]
    shape = tightest(batches, 8, 1, 100, blocks=2, rows=4)
    assert shape == Shape(3, 8)
    assert first_fit(batches[0], shape) == [[0, 1], [2, 3]]
    assert first_fit(batches[1], shape) == [[0, 1, 2, 3]]

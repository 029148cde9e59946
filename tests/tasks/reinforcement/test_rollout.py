"""Responses in rows: what is said of a token stands where it is predicted, and what weighs nothing
is not there."""

import numpy as np

from tasks.reinforcement.rollout import empty_batch, policy_batch, tokens_there

TEXTS = [([7, 8], [1, 2]), ([9], [3, 4, 5]), ([6], [4, 4, 4, 4]), ([5], [6])]
"""Of 4, 4, 5 and 2 tokens."""


def test_numbers_stand_where_their_tokens_are_predicted():
    """The third response weighs nothing. In rows of 8 the first two share one; the batch has a row
    for each response, for it might have been so."""
    number = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
    weights = np.array([8.0, 4.0, 0.0, 12.0], np.float32)
    per_token = np.arange(16, dtype=np.float32).reshape(4, 4)
    arrays = (number, weights, weights, per_token)
    batch = policy_batch(TEXTS, arrays, length=8, pad_id=0, micro_batches=2)
    assert batch.tokens[:2].tolist() == [[7, 8, 1, 2, 9, 3, 4, 5], [5, 6, 0, 0, 0, 0, 0, 0]]
    assert batch.tokens[2:].tolist() == [[0] * 8] * 2
    assert batch.advantages[:2].tolist() == [[0, 1, 1, 0, 2, 2, 2, 0], [4, 0, 0, 0, 0, 0, 0, 0]]
    # of four responses in two micro-batches
    assert batch.weights[:2].tolist() == [[0, 4, 4, 0, 2, 2, 2, 0], [6, 0, 0, 0, 0, 0, 0, 0]]
    assert batch.ref_per_token_logps[0].tolist() == [0, 0, 1, 0, 4, 5, 6, 0]
    assert batch.ref_per_token_logps[1].tolist() == [12, 0, 0, 0, 0, 0, 0, 0]
    assert (batch.predicts == (batch.weights > 0)).all()
    assert batch.old_per_token_logps is None


def test_a_planned_batch_has_the_form_of_one_that_is_trained_on():
    number, per_token = np.ones(4, np.float32), np.zeros((4, 4), np.float32)
    batch = policy_batch(
        TEXTS, (number, number, number, None, per_token, per_token), length=8, pad_id=0
    )
    planned = empty_batch(4, 8, logps=(False, True, True))
    for name, array in batch._asdict().items():
        form = None if array is None else (array.shape, array.dtype)
        one = getattr(planned, name)
        assert (None if one is None else (one.shape, one.dtype)) == form, name


def test_where_responses_have_a_token():
    assert tokens_there(TEXTS, 4).sum(axis=1).tolist() == [2, 3, 4, 1]

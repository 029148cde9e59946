"""Greedy answers are compared by logits: a model whose likeliest token is another one was not
exported, unless the two are as likely."""

import numpy as np
import pytest

from schemas.base import StageFailed
from tasks.exporting.round_trip import _greedy_tie, _Said

LOGITS = np.array([[9.0, 0, 0, 0], [1, 5, 2, 0], [0, 4, 3.9, 1]], np.float32)
"""Of three positions, the last two before tokens of an answer: 1, then 1 or nearly 2."""


def greedy_tie(answer: list[int], tie: float) -> bool:
    return _greedy_tie(_Said("What?", [7], answer, LOGITS), LOGITS, tie)


def test_the_same_answer_is_no_tie_and_another_one_is_where_tokens_are_as_likely() -> None:
    assert not greedy_tie([1, 1], 0.0)
    assert greedy_tie([1, 2], 0.2)


def test_another_answer_fails_and_the_message_says_from_where() -> None:
    with pytest.raises(StageFailed, match=r"another: from token 1, \[2\] instead of \[1\]"):
        greedy_tie([1, 2], 0.05)
    with pytest.raises(StageFailed, match=r"answer to .* is another: from token 0"):
        greedy_tie([3, 1], 0.2)

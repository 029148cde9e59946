"""Reward `tfidf`: cosines of real traces are scikit-learn's."""

import json

import numpy as np

from tasks.data.term_weights import TermWeights
from tests.end_to_end.tasks.records import SHARED, needs_records
from tests.tasks.rewards.test_tfidf import cosines_of_sklearn

GSM8K = SHARED / "gsm8k/train_first1000.jsonl"


@needs_records
def test_cosines_of_real_traces_are_those_of_scikit_learn():
    rows = [json.loads(line) for line in GSM8K.read_text(encoding="utf-8").splitlines()[:400]]
    corpus = [row["question"] + "\n" + row["answer"] for row in rows]
    references = [row["answer"] for row in rows]
    which = [(7 * index) % len(rows) for index in range(len(rows))]
    expected = cosines_of_sklearn(corpus, corpus, references, which, True)
    found = TermWeights(corpus).cosines(corpus, references, which, sublinear=True)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)

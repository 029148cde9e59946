"""The TF-IDF reward: 1,024 responses of 512 tokens, on one core, beside scikit-learn's TfidfVectorizer in the same run.

    python -m benchmarks.tfidf

The corpus are 1,000 real traces (GSM8K, ../shared/data); responses are pieces of it of 512 tokens of Gemma's size (0.75 words each), eight
to a prompt. Timed: all that `score` does (format gate, words, counts, weights, cosines with the teachers' traces), the best of some rounds.
scikit-learn does only its part of that: transform responses and references, multiply row by row. Goal: under 50 ms.
"""

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import threadpoolctl
from sklearn.feature_extraction.text import TfidfVectorizer

from schemas.examples import Domain, Prompt, Trace
from tasks.contract.reward import Response
from tasks.data.term_weights import TermWeights
from tasks.rewards import tfidf

GSM8K = Path(__file__).resolve().parents[2] / "shared/data/gsm8k/train_first1000.jsonl"
RESPONSES, GROUP, TOKENS, WORDS_PER_TOKEN, ROUNDS = 1024, 8, 512, 0.75, 7


def main() -> None:
    rows = [json.loads(line) for line in GSM8K.read_text(encoding="utf-8").splitlines()]
    corpus = [f"{row['question']}\n{row['answer']}" for row in rows]
    words, rng = " ".join(corpus).split(), random.Random(0)
    long = int(TOKENS * WORDS_PER_TOKEN)
    texts = [" ".join(words[start : start + long]) for start in (rng.randrange(len(words) - long) for _ in range(RESPONSES))]
    asked = [
        Prompt(id=f"{index:016x}", prompt=row["question"], domain=Domain.MATH, check="none")
        for index, row in enumerate(rows[: RESPONSES // GROUP])
    ]
    prompts = [asked[index // GROUP] for index in range(RESPONSES)]
    responses = [Response(Trace(reasoning=text, answer="4").render(), TOKENS) for text in texts]
    references = [rows[index]["answer"] for index in range(len(asked))]

    started = time.perf_counter()
    weights = TermWeights(corpus)
    fitted = time.perf_counter() - started
    reward = tfidf.Relevance(tfidf.Config(), weights, {one.id: text for one, text in zip(asked, references, strict=True)})
    with threadpoolctl.threadpool_limits(1):
        ours, values = best(lambda: tfidf.score(reward, prompts, responses))
        vectorizer = TfidfVectorizer(sublinear_tf=True).fit(corpus)
        which = np.arange(RESPONSES) // GROUP
        theirs, cosines = best(
            lambda: np.asarray(vectorizer.transform(texts).multiply(vectorizer.transform(references)[which]).sum(axis=1)).ravel()
        )
    characters = sum(map(len, texts))
    print(f"{RESPONSES} responses of {TOKENS} tokens ({characters / 1e6:.1f} M characters), {len(asked)} references, {len(weights)} words")
    print(f"{'tfidf.score':24} {ours * 1e3:7.1f} ms   (goal: under 50)")
    print(f"{'scikit-learn':24} {theirs * 1e3:7.1f} ms   {theirs / ours:.1f} times as long")
    print(f"largest difference of a cosine: {np.abs(np.asarray(values) - cosines).max():.1e}")
    print(f"fitting {len(corpus)} documents, compilation included where nothing is cached: {fitted:.2f} s")


def best(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of the quickest round, after one to warm up, and what it returned."""
    found, seconds = call(), float("inf")
    for _ in range(ROUNDS):
        started = time.perf_counter()
        found = call()
        seconds = min(seconds, time.perf_counter() - started)
    return seconds, found


if __name__ == "__main__":
    main()

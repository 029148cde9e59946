"""TF-IDF relevance: the similarity of a response's words to a reference's, weighted by how rare
they are in the training corpus.

    r = min(1, cosine(part, reference) / enough)      0 for a malformed response

The corpus is the stage's training rows (`train.jsonl` of the `prompts` input): one document per
row, its prompt and its trace. scikit-learn's TfidfVectorizer has the weights; a word is two or more
word characters in a row, in lower case, and one that no document has weighs nothing. Scoring runs
in a thread on the CPU: 0.24 s for 1,024 texts of 380 words (docs/measurements.md).

IDEA-E (third place of google-tunix-hackathon) rewarded "context-relevant vocabulary in the
reasoning trace"; its definition is not public. `part = "reasoning", against = "prompt"` is that
idea. A list of words can earn a reward on words. The defences:

stuffing      a cosine does not grow with length, and with `sublinear` a word repeated ten times
              weighs 3.3 times as much, not ten; repeating one word turns the vector away from the
              reference.
echoing       with `ignore_prompt` the words of the prompt weigh nothing on either side: repeating
              the question earns 0.
overshooting  with `enough` below 1, any similarity from there on earns 1: set it to that of honest
              traces, so that copying earns no more.
format        a response that is no well-formed trace earns 0.

It remains a proxy: give verifiable rewards more weight.
"""

import importlib.metadata
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from schemas.base import InputError
from schemas.examples import Example, Prompt, parse_trace
from tasks.contract.reward import Resources, Response, Reward, RewardConfig


class Config(RewardConfig):
    """What is compared.

    Attributes:
        part: the part of the response that is compared.
        against: `trace`: the reasoning of the training row with this prompt; `answer`: the prompt's
            reference answer; `prompt`: the prompt with its context. Where there is none the reward
            abstains.
        enough: the cosine that earns 1.
        sublinear: count a word that occurs tf times as 1 + ln tf.
        ignore_prompt: give the words of the prompt no weight.
    """

    name: Literal["tfidf"] = "tfidf"
    part: Literal["reasoning", "answer"] = "reasoning"
    against: Literal["trace", "answer", "prompt"] = "trace"
    enough: float = Field(default=1.0, gt=0, le=1)
    sublinear: bool = True
    ignore_prompt: bool = False

    @model_validator(mode="after")
    def _leaves_something(self) -> Self:
        if self.ignore_prompt and self.against == "prompt":
            raise ValueError(
                "ignore_prompt leaves nothing to compare with when against is 'prompt'; drop one of"
                " them"
            )
        return self


class Relevance:
    """The config with the vectorizer of the corpus and, for `against = "trace"`, the training rows'
    reasoning by prompt id."""

    def __init__(self, config: Config, vectorizer: Any, traces: dict[str, str]) -> None:
        self.config, self.vectorizer, self.traces = config, vectorizer, traces

    def reference(self, prompt: Prompt) -> str:
        """The reference for a response to `prompt`; empty if there is none."""
        if self.config.against == "trace":
            return self.traces.get(prompt.id, "")
        return prompt.answer if self.config.against == "answer" else prompt.prompt


def dependencies(config: Config, data: Any) -> dict[str, str | int]:
    """The version of scikit-learn, which splits and weighs words."""
    return {"package.scikit-learn": importlib.metadata.version("scikit-learn")}


def prepare(config: Config, resources: Resources) -> Relevance:
    """Fit the vectorizer. Raises InputError: the `prompts` input has no training rows, or no words
    in them."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    from tasks.contract.job import read_jsonl

    path = resources.inputs.get("prompts", Path()) / "train.jsonl"
    rows = read_jsonl(path, Example) if path.is_file() else []
    texts = [f"{row.prompt}\n{row.reasoning}\n{row.answer}" for row in rows]
    vectorizer = TfidfVectorizer(sublinear_tf=config.sublinear)
    if not any(map(vectorizer.build_analyzer(), texts)):
        raise InputError(
            "reward 'tfidf' fits its weights on the training rows of the input `prompts`, and"
            f" {str(path)!r} has none with words; connect a `rebalance` stage that keeps some, or"
            " remove the reward."
        )
    vectorizer.fit(texts)
    words = len(vectorizer.vocabulary_)
    resources.log.info("reward tfidf: %d words in %d training rows", words, len(rows))
    traces = {row.id: row.reasoning for row in rows} if config.against == "trace" else {}
    return Relevance(config, vectorizer, traces)


def cosines(
    vectorizer: Any,
    texts: Sequence[str],
    references: Sequence[str],
    which: Sequence[int],
    without: Sequence[str] | None = None,
) -> np.ndarray:
    """(N,) cosines of N texts and their references, in [0, 1].

    Args:
        which: for each text the index of its reference.
        without: for each reference a text whose words weigh nothing, neither in the reference nor
            in the texts compared with it.
    """
    from sklearn.preprocessing import normalize

    if not texts:
        return np.empty(0)
    left, right = vectorizer.transform(texts), vectorizer.transform(references)
    if without is not None:
        ignored = vectorizer.transform(without) != 0
        left = normalize(left - left.multiply(ignored[which]))
        right = normalize(right - right.multiply(ignored))
    return np.asarray(left.multiply(right[which]).sum(axis=1)).ravel()


def score(
    relevance: Relevance, prompts: Sequence[Prompt], responses: Sequence[Response]
) -> list[float | None]:
    """The formula above; None where there is no reference."""
    config = relevance.config
    by_id = {prompt.id: prompt for prompt in prompts if relevance.reference(prompt).strip()}
    order = {identity: index for index, identity in enumerate(by_id)}
    traces = [
        parse_trace(one.text, prompt.channels) if prompt.id in order else None
        for prompt, one in zip(prompts, responses, strict=True)
    ]
    judged = [index for index, trace in enumerate(traces) if trace is not None]
    found = cosines(
        relevance.vectorizer,
        [getattr(traces[index], config.part) for index in judged],
        [relevance.reference(prompt) for prompt in by_id.values()],
        [order[prompts[index].id] for index in judged],
        [prompt.prompt for prompt in by_id.values()] if config.ignore_prompt else None,
    )
    values: list[float | None] = [0.0 if prompt.id in order else None for prompt in prompts]
    for index, cosine in zip(judged, found, strict=True):
        values[index] = min(1.0, float(cosine) / config.enough)
    return values


REWARD = Reward(version=2, config=Config, score=score, prepare=prepare, dependencies=dependencies)

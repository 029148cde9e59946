"""The router's classifier: TF-IDF of words and of characters, logistic regression, trained on our
own prompts in seconds.

Every process trains it at its first use: the same data, no random start and one solver give the
same weights, so nothing is ever unpickled. The prompts lie in `prompts/<domain>.templates`, one
template a line:

    «a|b»     one of these; a template gives as many prompts as its longest choice has alternatives,
              and uses each of them at least once
    §n §x §m  a whole number, a decimal number, a person's name
    §NAME     a text of `prompts/texts.templates`
    ⏎         a line break; a line that starts with # is a comment

They are no rows of a data set that measures the router
(`tests/end_to_end/tasks/routing/test_router.py` looks for shared n-grams).
"""

import itertools
import random
import re
from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from schemas.examples import Domain

_HEAD, _TAIL = 600, 200
"""Characters of a long prompt that are read: what is asked stands at its beginning or at its
end."""

_AT_A_TIME = 1000

_SHAPES = (
    (re.compile(r"\\[a-zA-Z]+"), r" \g<0> latexmark "),
    (re.compile(r"\d+(?:[.,]\d+)*"), " numbermark "),
)
_WORDS = r"(?u)\\?\b\w+\b|[^\w\s]"


def probabilities(prompts: Sequence[str]) -> Iterator[list[float]]:
    """The probability of each of `schemas.examples.Domain`, in its order, for each prompt; 0 of one
    without templates."""
    for start in range(0, len(prompts), _AT_A_TIME):
        features, model = _trained()
        found = model.predict_proba(features.transform(prompts[start : start + _AT_A_TIME]))
        for row in found.tolist():
            shares = dict(zip(model.classes_.tolist(), row, strict=True))
            yield [shares.get(domain.value, 0.0) for domain in Domain]


@cache
def _trained() -> tuple[Any, Any]:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import FeatureUnion
    from threadpoolctl import threadpool_limits

    weights = partial(TfidfVectorizer, preprocessor=_read, sublinear_tf=True, min_df=2)
    words = weights(token_pattern=_WORDS, ngram_range=(1, 2))
    characters = weights(analyzer="char_wb", ngram_range=(2, 4))
    features = FeatureUnion([("words", words), ("characters", characters)])
    rows = training_prompts()
    matrix = features.fit_transform([prompt for prompt, _ in rows])
    model = LogisticRegression(C=_C, class_weight="balanced", max_iter=1000)
    # sums in one order; and on a busy machine BLAS's threads wait for each other
    with threadpool_limits(limits=1):
        return features, model.fit(matrix, [domain.value for _, domain in rows])


_C = 20.0
"""Inverse strength of the regularization. Four-fold cross-validation over whole templates of our
own says 79 % for 5, 20 and 80 alike."""


def _read(prompt: str) -> str:
    """The text that the classifier sees of a prompt: its beginning and end, lower case, numbers as
    one word."""
    if len(prompt) > _HEAD + _TAIL:
        prompt = f"{prompt[:_HEAD]} … {prompt[-_TAIL:]}"
    for pattern, mark in _SHAPES:
        prompt = pattern.sub(mark, prompt)
    return prompt.lower()


HERE = Path(__file__).parent / "prompts"

_CHOICE = re.compile("«([^«»]*)»")
_TEXT = re.compile("§([A-Z]+[0-9]?)")
_NAMES = (
    "Alice", "Ben", "Carla", "David", "Emma", "Farid", "Grace", "Hugo", "Ines", "Jamal", "Kim",
    "Lena", "Marco", "Nadia", "Oscar", "Priya",
)  # fmt: skip
_FEWEST = 2
"""Prompts of a template without a choice: its numbers and names differ."""


def training_prompts() -> list[tuple[str, Domain]]:
    """(prompt, domain) of every prompt of every template, each prompt once: the same list on every
    machine."""
    texts = dict(line.split(": ", 1) for line in _lines(HERE / "texts.templates"))
    found: dict[str, Domain] = {}
    for domain in Domain:
        file = HERE / f"{domain.value}.templates"
        for line in _lines(file) if file.exists() else ():
            for prompt in _prompts(line, texts):
                found.setdefault(prompt, domain)
    return list(found.items())


def _lines(file: Path) -> list[str]:
    lines = file.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def _prompts(template: str, texts: dict[str, str]) -> list[str]:
    longest = max((choice.count("|") + 1 for choice in _CHOICE.findall(template)), default=_FEWEST)
    return [_filled(template, number, texts) for number in range(longest)]


def _filled(template: str, number: int, texts: dict[str, str]) -> str:
    """The `number`th prompt: of its choice at place p the alternative `number` + p, counted
    round."""
    rng, places = random.Random(f"{template}/{number}"), itertools.count()
    while _CHOICE.search(template) or _TEXT.search(template):
        template = _CHOICE.sub(
            lambda match: (options := match[1].split("|"))[(number + next(places)) % len(options)],
            template,
        )
        template = _TEXT.sub(lambda match: texts[match[1]], template)
    template = re.sub("§n", lambda _: str(rng.randint(2, 99)), template)
    template = re.sub("§x", lambda _: f"{rng.uniform(0.1, 20):.{rng.randint(1, 3)}f}", template)
    return re.sub("§m", lambda _: rng.choice(_NAMES), template).replace("⏎", "\n")

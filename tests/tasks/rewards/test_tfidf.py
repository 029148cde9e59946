"""The TF-IDF reward: scikit-learn's cosines, what it is compared with, and texts that are made of
keywords."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from schemas.base import InputError
from schemas.examples import Domain, Example, Prompt, Trace, prompt_id
from tasks.contract.job import write_jsonl
from tasks.contract.reward import Resources, Response
from tasks.rewards import tfidf

SKY, SHIPS = "Why is the sky blue?", "Why do ships float?"
TRACES = {
    SKY: "Air scatters short wavelengths of sunlight more than long ones, so blue reaches us.",
    SHIPS: "A ship displaces water until this weighs as much as the ship: buoyancy is its weight.",
    "How do plants make sugar?": "Chlorophyll absorbs light, which turns water and air into sugar.",
    "Why does ice float?": "Water expands when it freezes, so ice has a lower density than water.",
}
CLOSE = "Short wavelengths of sunlight are scattered more by air, so blue light comes to us."


def example(prompt: str, reasoning: str, answer: str = "Because of physics.") -> Example:
    fields = {"domain": Domain.SCIENCE, "check": "none", "answer": answer, "reasoning": reasoning}
    return Example(id=prompt_id(prompt), prompt=prompt, **fields)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An artifact of the `prompts` input with the traces above as training rows."""
    root = tmp_path_factory.mktemp("rebalance")
    write_jsonl(root / "train.jsonl", [example(prompt, trace) for prompt, trace in TRACES.items()])
    return {"prompts": root}


def asked(prompt: str = SKY, **changes: Any) -> Prompt:
    return example(prompt, "", **changes).as_prompt()


def written(reasoning: str, answer: str = "Because of physics.") -> str:
    return Trace(reasoning=reasoning, answer=answer).render()


def relevance(inputs, *texts, prompts=None, **config) -> list[float | None]:
    prepared = tfidf.prepare(tfidf.Config(**config), Resources(inputs, answers=None))
    if not isinstance(prompts, list):
        prompts = [prompts or asked()] * len(texts)
    return tfidf.score(prepared, prompts, [Response(text) for text in texts])


def fitted(corpus: list[str]) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(sublinear_tf=True).fit(corpus)


def test_words_left_out_weigh_nothing_on_either_side():
    """As if those words were not in the texts; documents and texts of other references keep
    them."""
    corpus = ["red green blue", "green blue tall", "blue tall wide", "wide round"]
    texts = ["red green tall", "green wide", "red green wide"]
    references, without = ["red green wide", "green tall"], ["green", "red"]
    bare = [["red tall", "wide", "green wide"], ["red wide", "red wide", "green tall"]]
    vectorizer = fitted(corpus)
    expected = tfidf.cosines(vectorizer, *bare, [0, 1, 2])
    found = tfidf.cosines(vectorizer, texts, references, [0, 0, 1], without)
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_the_teachers_own_trace_earns_one_and_others_less(inputs: dict[str, Path]):
    far = TRACES["How do plants make sugar?"]
    own, close, other = relevance(inputs, *map(written, (TRACES[SKY], CLOSE, far)))
    assert own == pytest.approx(1.0)
    assert 0.5 < close < 1.0
    assert 0.0 < other < 0.3


def test_what_it_is_compared_with_and_which_part_is(inputs: dict[str, Path]):
    prompt, other = asked(answer="Light is scattered."), "Chlorophyll absorbs energy."
    for against, reference in (("answer", prompt.answer), ("prompt", SKY)):
        texts = [written(reference), written(other)]
        found = relevance(inputs, *texts, prompts=prompt, against=against)
        assert found == [pytest.approx(1.0), 0.0]
    text = written(other, TRACES[SKY])
    assert relevance(inputs, text, part="answer")[0] == pytest.approx(1.0)
    assert relevance(inputs, text, part="reasoning")[0] < 0.2


def test_it_abstains_where_there_is_no_reference_and_all_keep_their_places(inputs: dict[str, Path]):
    prompts = [asked(), asked("Why is the sea salty?"), asked(SHIPS), asked()]
    ships = written(TRACES[SHIPS])
    values = relevance(inputs, ships, written("salt"), ships, "malformed", prompts=prompts)
    assert values == [pytest.approx(0.1, abs=0.1), None, pytest.approx(1.0), 0.0]
    unanswered = relevance(inputs, ships, "malformed", prompts=asked(answer=""), against="answer")
    assert unanswered == [None, None]


def test_enough_is_as_good_as_a_copy(inputs: dict[str, Path]):
    close = written(CLOSE)
    plain = relevance(inputs, close)[0]
    assert relevance(inputs, close, written(TRACES[SKY]), enough=0.5) == [1.0, 1.0]
    assert relevance(inputs, close, enough=0.9)[0] == pytest.approx(plain / 0.9)


@pytest.mark.parametrize("sublinear", [True, False])
def test_repeating_does_not_pay(inputs: dict[str, Path], sublinear: bool):
    """Neither the whole text over and over, nor its best keyword."""
    text = "Short wavelengths of sunlight are scattered by air."
    again = [" ".join([text] * 20), text + " wavelengths" * 30, "wavelengths " * 30]
    once, *others = relevance(inputs, *map(written, [text, *again]), sublinear=sublinear)
    assert max(others) <= once + 1e-9
    assert max(others[1:]) < once


def test_a_copy_of_the_prompt_earns_nothing_when_its_words_are_ignored(inputs: dict[str, Path]):
    texts = [SKY, "sky blue " * 5, "Air scatters short wavelengths of sunlight more."]
    *copies, honest = relevance(inputs, *map(written, texts), ignore_prompt=True)
    assert copies == [0.0, 0.0]
    assert honest > 0.4
    assert relevance(inputs, written(SKY))[0] > 0.0


def test_keywords_of_the_subject_earn_less_than_an_answer_in_its_words(inputs: dict[str, Path]):
    """A policy that knows the corpus's telling words, not this trace: one of each of the whole
    corpus."""
    words = {word.strip(".,;:") for trace in TRACES.values() for word in trace.split()}
    listed, answered = relevance(inputs, written(" ".join(sorted(words))), written(CLOSE))
    assert listed < 0.8 * answered


def test_a_corpus_without_rows_is_refused(tmp_path: Path):
    (tmp_path / "train.jsonl").write_text("", encoding="utf-8")
    refusal = r"reward 'tfidf' fits its weights on the training rows .* has none"
    for inputs in ({"prompts": tmp_path}, {}):
        with pytest.raises(InputError, match=refusal):
            tfidf.prepare(tfidf.Config(), Resources(inputs, answers=None))

"""Filters: length in the model's own tokens, language, personal data; what they take out of real
records that are fine: nothing."""

import pickle
import re
from typing import Any, get_args

import pytest

from tasks.cleaning.filters import Languages, Length, Pii, PiiKind, language_of, languages, pii_of
from tasks.data.tokens import prompt_tokens, response_tokens
from tasks.models.tiny import tiny_tokenizer

TINY = tiny_tokenizer().model_proto
PII: tuple[PiiKind, ...] = get_args(PiiKind)


def row(prompt: str, reasoning: str = "one and one", answer: str = "2") -> dict[str, Any]:
    return {"prompt": prompt, "reasoning": reasoning, "answer": answer, "domain": "math"}


def test_length_is_that_of_the_tokens_that_a_trainer_sees():
    texts = ("What is 12 + 30?", "x" * 50, "  naïve ☃ <bos> <end_of_turn> \n\n", "", "a b  c   d")
    for text in texts:
        tokens = len(prompt_tokens(tiny_tokenizer(), text))
        assert Length(TINY, prompt=tokens)(row(text)) is None
        found = Length(TINY, prompt=tokens - 1)(row(text))
        assert found == ("too_long", f"the prompt has {tokens} tokens, more than {tokens - 1}")


def test_the_length_of_a_response_is_that_of_the_whole_trace_with_its_terminator():
    trace = "<reasoning>one and one</reasoning>\n<answer>2</answer>"
    tokens = len(response_tokens(tiny_tokenizer(), trace))
    assert Length(TINY, response=tokens)(row("?")) is None
    assert Length(TINY, response=tokens - 1)(row("?")) is not None
    assert Length(TINY, response=1)({"prompt": "?", "answer": "2"}) is None, (
        "a prompt that nobody solved has no response"
    )


def test_filters_survive_pickling_for_they_run_in_other_processes():
    rows = [
        row("Was ist die Hauptstadt von Frankreich? Bitte antworte in einem Satz."),
        row("Ask ada@lyceum.school about the sum."),
    ]
    for filter_ in (Length(TINY, prompt=20), Languages(("en",)), Pii(("email",))):
        copy = pickle.loads(pickle.dumps(filter_))  # noqa: S301
        found = list(map(filter_, rows))
        assert list(map(copy, rows)) == found != [None, None]


LANGUAGES = {
    "Was ist die Hauptstadt von Frankreich? Bitte antworte in einem Satz.": "de",
    "Quelle est la capitale de l'Allemagne ? Répondez en une phrase.": "fr",
    "Ада имеет двенадцать монет и тратит пять. Сколько осталось?": "ru",
    "小明有十二枚硬币，花了五枚，还剩多少？": "zh",
    "Natalia sold clips to 48 of her friends in April. How many clips did she sell?": "en",
    **dict.fromkeys(("x = 3", "1 + 2 = 3", "", "def f(x): return x"), None),
}


def test_the_language_of_a_text_is_told_or_left_open():
    assert {text: language_of(text) for text in LANGUAGES} == LANGUAGES
    assert set(LANGUAGES.values()) - {None} <= set(languages())


def test_rows_in_another_language_are_named_with_their_part_and_language():
    german = "Die Summe von zwölf und fünf ist siebzehn, also bleiben sieben Münzen übrig."
    rows = [row("How many coins are left?", german), row("How many coins are left?")]
    said = ("language", "the response is in language 'de', not in en")
    assert list(map(Languages(("en",)), rows)) == [said, None]
    assert list(map(Languages(("en", "de")), rows)) == [None, None]
    code = row("Add the coins.", "We add them.", german) | {"domain": "coding"}
    assert Languages(("en",))(code) is None, "what stands for code"


FOUND = {
    "email": ["Write to <ada.lovelace+x@analytical-engine.co.uk>."],
    "phone": ["Call <(650) 636-4884> today", "Call <650-636-4884>.", "Ruf <+49 30 1234567> an"],
    "ip": ["from <8.8.8.8> on", "at <2001:4860:4860:0:0:0:0:8888>", "at <2606:4700::1111>."],
    "card": [
        "Visa <4111 1111 1111 1111> please",
        "card <378282246310005>",
        "Visa <4111 1111 1111 1111 12>/27",
    ],
    "iban": ["IBAN <GB82 WEST 1234 5698 7654 32 AND MORE>", "to <DE89370400440532013000> now"],
    "ssn": ["SSN <219-09-9998>."],
}


@pytest.mark.parametrize("kind", FOUND)
def test_personal_data_is_found(kind):
    for text in FOUND[kind]:
        before, found, after = re.split("[<>]", text)
        assert pii_of(before + found + after, PII) == (kind, found)
        assert pii_of(before + found + after, [one for one in PII if one != kind]) is None


HARMLESS = (
    "4111 1111 1111 1112",  # Luhn
    "GB82 WEST 1234 5698 7654 33",  # mod 97
    "0000 0000 0000 0000", "ada@example.com and ada@engine.test",  # RFC 2606
    "192.168.0.1, 10.1.2.3, 127.0.0.1, 300.1.2.3", "5555555555",
    "EC 3.1.1.11 is pectinesterase; version 1.22.3.4", "650-636 = 14 and 555-0199",
    "000-12-3456, 666-12-3456, 912-34-5678, 123-00-4567", "a[1:2:3:4] = 12:30:45:00",
    "x[2000::2], a::b, 2026:11:28, fe80:0:0:1::2, 2000 3000 4000 5000 6000",
    "2^10 = 1024, 3.14159265358979, 1,234,567,890", "self@ property @staticmethod x@y",
    "The ratio is 12-345-6789 : 1234567890123456789012",
)  # fmt: skip


def test_what_only_looks_like_personal_data_is_left_alone():
    assert {text: pii_of(text, PII) for text in HARMLESS} == dict.fromkeys(HARMLESS)


def test_a_dropped_row_does_not_repeat_what_was_found():
    found = Pii(("email",))(row("q", answer="ask ada@lyceum.school"))
    assert found == ("pii", "email: ad… (17 characters)")

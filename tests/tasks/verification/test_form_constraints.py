"""Check `constraints`: every constraint with an answer that satisfies it and one that does not."""

import pytest

from schemas.base import InputError
from schemas.examples import Constraint, Prompt
from tasks.checks.constraints import agrees
from tasks.verification.form_constraints import CONSTRAINTS, paragraphs, sentences, validate, words
from tests.effort import takes_at_most
from tests.tasks.prompts import prompt, told

LONG = "The rain falls on the roof. Does it stop? No, it goes on (all night)!"
LIST = "Here are some:\n- one\n* two\n3. three\nDone"
ENGLISH = "The children were playing in the garden until their mother called them for dinner."
GERMAN = "Die Kinder spielten im Garten, bis ihre Mutter sie zum Abendessen rief."

EXAMPLES: dict[str, tuple[object, str, str]] = {
    "max_words": (3, "one two three", "one two three four"),
    "min_words": (3, "one two-fold don't", "one two"),
    "max_characters": (5, "abcde", "abcdef"),
    "min_characters": (5, "abcde", "abcd"),
    "max_sentences": (2, "One. Two!", LONG),
    "min_sentences": (3, LONG, "One. Two!"),
    "sentences": (3, LONG, "One, e.g. this"),
    "paragraphs": (2, "a\nb\n\nc", "a\nb"),
    "max_paragraphs": (1, "a\nb", "a\n\nb"),
    "min_paragraphs": (3, "a\n\nb\n***\nc", "a\n\n\n\nb"),
    "lines": (2, "a\n\nb\n", "a"),
    "bullets": (3, LIST, "- one\n-two"),
    "max_bullets": (2, "- one", LIST),
    "min_bullets": (3, LIST, "one - two - three"),
    "min_highlights": (2, "a **b c** and *d*", "a ** b ** and 2 * 3 * 4"),
    "min_placeholders": (2, "[name] of [town]", "[name] of []"),
    "includes": (("rain", "the roof"), LONG, "rain on  a roof"),
    "excludes": (("sun",), LONG, "The SUN."),
    "min_counts": (("the: 2", "rain: 1"), LONG, "the rain"),
    "max_counts": (("the: 1",), "the rain then", "The the"),
    "counts": (("it: 2",), LONG, "it"),
    "starts_with": ("Dear Sir", '"dear sir, hello"', "Hello, dear sir"),
    "ends_with": ("Anything else?", "Yes. Anything else?", "Anything else? No."),
    "lower_case": (True, "all is small, é", "Not all"),
    "upper_case": (True, "ALL IS 1 É", "NOT aLL"),
    "no_commas": (True, "a; b", "a, b"),
    "no_digits": (True, "two", "2"),
    "quoted": (True, '"a\nb"', 'a "b"'),
    "json": (True, '```json\n{"a": [1]}\n```', "{'a': 1}"),
    "json_keys": (("a", "b"), '{"a": 1, "b": 2, "c": 3}', '{"a": 1}'),
    "title": (True, "# Rain\nIt falls", "Rain # falls"),
    "one_of": (("yes", "no"), "Yes.", "Yes and no"),
    "language": ("de", GERMAN, ENGLISH),
}


def asked(**constraints: object) -> Prompt:
    return prompt("", "constraints", constraints=told(constraints))


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_constraint_holds_and_is_broken(name: str) -> None:
    value, good, bad = EXAMPLES[name]
    found, broken = (agrees(asked(**{name: value}), text) for text in (good, bad))
    assert (found.ok, broken.ok) == (True, False), found.detail
    assert broken.detail.startswith(f"{name} = ")


def test_every_constraint_must_hold_and_all_broken_ones_are_named() -> None:
    all_three = asked(max_words=2, no_commas=True, includes=("b",))
    assert agrees(all_three, "a b").ok
    broken = ["max_words = 2: found 3", "no_commas = true: found [',']"]
    broken.append('includes = ["b"]: found "no \'b\'"')
    assert agrees(all_three, "a, c d").detail == "; ".join(broken)


def test_quotes_around_a_text_or_of_its_own_may_stand_at_its_ends() -> None:
    for text in ('He said "no"', '"He said "no""', '**He said "no"**'):
        assert agrees(asked(starts_with="he said", ends_with='"no"'), text).ok, text


def test_an_unknown_name_or_a_wrong_value_is_an_error_with_what_is_valid():
    for name, value, message in (
        ("max_word", 3, r"p: unknown constraint 'max_word'.*max_words"),
        ("max_words", "3", r"takes a whole number from 0, not \"3\": at most so many words"),
        ("max_words", True, "takes a whole number"),
        ("max_words", -1, "takes a whole number"),
        ("max_words", 2.5, "takes a whole number"),
        ("no_commas", False, "takes true, not false"),
        ("includes", "rain", "takes a list of texts"),
        ("includes", (), "takes a list of texts"),
        ("counts", ("rain",), r"that end in a count \(\"rain: 2\"\)"),
        ("starts_with", " ", "takes a text"),
        ("language", "german", "ISO 639-1"),
        ("json", "yes", "takes true"),
    ):
        with pytest.raises(InputError, match=message):
            validate([Constraint(name=name, value=value)], "p")


def test_words_sentences_and_paragraphs_are_counted_as_people_do() -> None:
    fact = ["It's", "a", "well-known", "fact", "3", "of", "4"]
    assert words("It's a well-known fact: 3 of 4!") == fact
    said = ['He said "No', " Pi is 3.14", " Really"]
    assert sentences('He said "No." Pi is 3.14... Really?!') == said
    assert len(sentences("雨が降る。止まない。")) == 2
    assert paragraphs("\n\na\n \n\nb\n---\nc\n") == ["a", "b", "c"]


@pytest.mark.parametrize("text", ["[", "*", " ", "\n", "<<", "```\n", "a"])
def test_hostile_texts_cost_little(text: str) -> None:
    text = text * 20_000 + "x"

    def all_of_them() -> None:
        for name, (value, _, _) in EXAMPLES.items():
            if name != "language":
                CONSTRAINTS[name].holds(text, value)

    assert takes_at_most(1, all_of_them)

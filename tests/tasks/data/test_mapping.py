"""Text from a record's columns: values that are no text, the sentence that supports an answer."""

from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from pydantic import ValidationError

from tasks.data.mapping import Pick

QUOTED: dict[str, Any] = {
    "template": 'The context says: "{quote}" {LONG_ANSWER}',
    "quote": {"column": "CONTEXTS", "like": "LONG_ANSWER"},
}
CONTEXTS = [
    "Blood pressure was taken twice. Pressure fell by 12 mmHg in treated patients (p < 0.01).",
    'Patients called the drug "pleasant". Pressure did not fall in the control group of patients.',
]


def test_values_of_parquet_become_text_and_an_empty_cell_none() -> None:
    """A decimal, a date and UTF-8 bytes without quotes; NaN, as pandas leaves a cell, is no word.
    Bytes that are not UTF-8 become lone surrogates, which a row is dropped for."""
    known = ((Decimal("3.50"), "3.50"), (date(2026, 1, 2), "2026-01-02"), ("é".encode(), "é"))
    for value, text in (*known, (float("nan"), ""), (None, ""), (2.5, "2.5"), (True, "true")):
        assert Pick.parse({"column": "a"}).text({"a": value}) == text
        assert Pick.parse({"column": "a"}).text({"a": [value]}) == text
    assert Pick.parse({"column": "a"}).text({"a": b"\xff"}) == "\udcff"


def test_brackets_with_a_column_vanish_when_it_is_empty_and_others_are_text() -> None:
    """Braces and brackets of a value are text, too."""
    pick = Pick.parse({"template": "{q} Say [yes, no] or [[maybe]].[ Answer in {unit}.]"})
    for q, unit, end in (
        ("What is \\frac{1}{2}?", "", ""),
        ("How far?", "\\mathrm{km} [x]", " Answer in \\mathrm{km} [x]."),
    ):
        assert pick.text({"q": q, "unit": unit}) == f"{q} Say [yes, no] or [[maybe]].{end}"


def test_the_sentence_that_shares_most_words_with_the_answer_is_quoted_as_it_stands() -> None:
    """The sentence with most of the answer's words has a <, the next one a quotation mark; of the
    others the last shares four of its seven words of four letters."""
    answer = "The drug let pressure of patients fall; control did not."
    row = {"CONTEXTS": CONTEXTS, "LONG_ANSWER": answer}
    sentence = "Pressure did not fall in the control group of patients."
    assert Pick.parse(QUOTED).text(row) == f'The context says: "{sentence}" {answer}'


def test_where_no_sentence_shares_two_words_there_is_no_text() -> None:
    row = {"CONTEXTS": CONTEXTS, "LONG_ANSWER": "Nothing of the kind, say others."}
    assert Pick.parse(QUOTED).text(row) == ""
    assert set(Pick.parse(QUOTED).columns()) == {"CONTEXTS", "LONG_ANSWER"}


def test_a_quotation_and_its_place_go_together() -> None:
    for bad in ({**QUOTED, "template": "{LONG_ANSWER}"}, {"template": QUOTED["template"]}):
        with pytest.raises(ValidationError, match="go together"):
            Pick.parse(bad)


PARTS: dict[str, Any] = {
    "template": "{think}\n<proof>{proof}</proof>",
    "parts": {
        "think": {"column": "said.1", "after": "<think>", "before": "</think>"},
        "proof": {"column": "said.1", "after": "<proof>", "before": "</proof>"},
    },
}


def test_a_template_is_put_together_from_parts_of_a_column() -> None:
    text = "<think>\nIt says so.\n</think>\n\n<proof>\n- {a}\n</proof>"
    pick = Pick.parse(PARTS)
    assert pick.text({"said": ["?", text]}) == "It says so.\n<proof>- {a}</proof>"
    assert pick.columns() == ["said.1", "said.1"]


def test_a_part_that_is_not_there_leaves_no_text_and_one_that_is_not_used_is_refused() -> None:
    assert Pick.parse(PARTS).text({"said": ["?", "<think>a</think>"]}) == ""
    with pytest.raises(ValidationError, match="part 'proof' is not in the template"):
        Pick.parse({**PARTS, "template": "{think}"})


def test_what_a_regular_expression_finds_is_taken_out() -> None:
    pick = Pick.parse({"column": "a", "before": "####", "without": "<<[^<>]*>>"})
    assert pick.text({"a": "48/2 = <<48/2=24>>24 clips.\n#### 24"}) == "48/2 = 24 clips."
    with pytest.raises(ValidationError, match="is no regular expression"):
        Pick.parse({"column": "a", "without": "("})
    with pytest.raises(ValidationError, match="a template has none of them"):
        Pick.parse({"template": "{a}", "without": "b"})


def test_the_long_words_of_a_column_are_told_with_whether_another_has_them() -> None:
    words = Pick.parse({"column": "question", "after": "?:", "found_in": "CONTEXTS"})
    assert words.columns() == ["question", "CONTEXTS"]
    asked = "Treated?: Does PRESSURE-lowering aspirin help patients or Pressure, or patients?"
    said = words.text({"question": asked, "CONTEXTS": CONTEXTS})
    assert said == "PRESSURE yes, lowering no, aspirin no, patients yes, Pressure yes"
    many = ", ".join(f"word{place} no" for place in range(8))
    asked = "?: " + " ".join(f"word{place}" for place in range(10))
    assert words.text({"question": asked, "CONTEXTS": CONTEXTS}) == many


def test_without_long_words_or_a_place_to_find_them_there_is_no_text() -> None:
    words = Pick.parse({"column": "question", "found_in": "CONTEXTS"})
    assert words.text({"question": "Is it so?", "CONTEXTS": CONTEXTS}) == ""
    for context in ({}, {"CONTEXTS": []}, {"CONTEXTS": ""}):
        assert words.text({"question": "Does pressure fall?", **context}) == ""
    with pytest.raises(ValidationError, match="are for a column; a template has none of them"):
        Pick.parse({"template": "{question}", "found_in": "CONTEXTS"})

"""Text from a record's columns: the sentence that supports an answer."""

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


@pytest.mark.parametrize(
    "bad", [{**QUOTED, "template": "{LONG_ANSWER}"}, {"template": QUOTED["template"]}]
)
def test_a_quotation_and_its_place_go_together(bad: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="go together"):
        Pick.parse(bad)


def test_the_columns_of_a_quotation_are_read() -> None:
    assert set(Pick.parse(QUOTED).columns()) == {"CONTEXTS", "LONG_ANSWER"}

"""What is proposed for rows; whole recipes are drafted in tests/flows/cli/test_init.py."""

import pytest

from flows.recipe.draft import columns_of, propose
from tasks.data.mapping import Pick


def test_the_turns_of_sharegpt_are_read_too():
    said = [{"from": "human", "value": "1+1?"}, {"from": "gpt", "value": "two"}]
    found = propose([{"conversations": said}] * 2)
    only = {"conversations.0.from": ["human"], "conversations.1.from": ["gpt"]}
    asked = {"prompt": "conversations.0.value", "answer": "conversations.1.value"}
    assert found == {**asked, "only": only}


@pytest.mark.parametrize("name", ["{}", "option_{}", "Choice {}"])
def test_choices_in_columns_of_their_own_are_asked_with_the_question(name):
    lettered = {name.format(one): f"{one}1" for one in "AB"}
    line = {"question": "Which?", **lettered, "answer": "B"}
    prompt = Pick.parse(propose([line, line])["prompt"]).text(line)
    assert prompt == "Which?\n\nA. A1\nB. B1\n\nAnswer with the letter of the right choice."
    assert propose([{**line, "answer": "blue"}])["prompt"] == "question"


def test_odd_columns_of_a_spreadsheet_are_known_by_a_word_of_theirs():
    names = ("Sample ID", "Question (text)", "Working / rationale", "Result [g/mol]", "")
    found = propose([dict(zip(names, ("S-1", "H2O?", "2 + 16", "18", ""), strict=True))])
    assert found == dict(zip(("prompt", "reasoning", "answer"), names[1:4], strict=True))
    assert columns_of([{"question": 1, "": "", " ": "", "\ud800": [1, 2]}]) == ["question"]

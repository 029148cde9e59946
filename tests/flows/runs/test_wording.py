"""How things are called in reports."""

import pytest

from flows.runs.wording import short_model


@pytest.mark.parametrize(
    ("model", "called"),
    [
        ("gemma3-1b-it", "gemma3-1b-it"),
        ("hf://google/gemma-3-270m", "hf://google/gemma-3-270m"),
        ("/home/somebody/gemma270m/", "gemma270m"),
        ("../gemma270m", "gemma270m"),
    ],
)
def test_a_directory_of_weights_is_called_by_its_own_name(model: str, called: str) -> None:
    assert short_model(model) == called

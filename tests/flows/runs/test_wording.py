"""How things are called in reports."""

from flows.runs.wording import short_model


def test_a_directory_of_weights_is_called_by_its_own_name() -> None:
    called = {name: name for name in ("gemma3-1b-it", "hf://google/gemma-3-270m")}
    called |= dict.fromkeys(("/home/somebody/gemma270m/", "../gemma270m"), "gemma270m")
    assert {model: short_model(model) for model in called} == called

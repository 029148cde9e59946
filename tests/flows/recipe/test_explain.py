"""Why a stage is cached or not: the fields that differ."""

from flows.recipe.explain import differences_between


def test_new_null_and_removed_fields_are_differences_and_equal_ones_are_none():
    """A config that gained an optional field has another key, so `why` must be able to say
    which."""

    def fields(ours, theirs):
        return [difference.field for difference in differences_between(ours, theirs)]

    assert fields({"config.lora": None, "config.steps": 3}, {"config.steps": 3}) == ["config.lora"]
    assert fields({"a": None, "b": 1}, {"b": 1, "a": None}) == []
    assert fields({}, {"a": 1}) == ["a"]

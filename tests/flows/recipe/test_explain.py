"""Why a stage is cached or not: the fields that differ."""

from flows.recipe.explain import differences_between


def test_a_field_that_is_new_and_null_is_a_difference():
    """A config that gained an optional field has another key, so `why` must be able to say
    which."""
    differences = list(
        differences_between({"config.lora": None, "config.steps": 3}, {"config.steps": 3})
    )
    assert [difference.field for difference in differences] == ["config.lora"]


def test_equal_fields_are_no_difference_and_removed_ones_are():
    assert not list(differences_between({"a": None, "b": 1}, {"b": 1, "a": None}))
    assert [difference.field for difference in differences_between({}, {"a": 1})] == ["a"]

"""The form of the flows in Prefect's UI."""

import jsonschema
import pytest

from flows.post_train import post_train
from flows.recipe.parameters import form


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ({"overrides": ["tiny", "seed=1"]}, ""),
        ({"overrides": ["xtiny"]}, "'xtiny' does not match"),  # the run would fail, later
        ({"overrides": ["seed"]}, "'seed' does not match"),
        ({"target": "v5e-9"}, "'v5e-9' is not one of"),
        ({"receipe": "quickstart"}, "'receipe' was unexpected"),
    ],
)
def test_the_form_refuses_what_no_run_could_use(given, refused):
    schema = form(post_train, "store", [{"const": "quickstart"}])
    errors = [one.message for one in jsonschema.Draft202012Validator(schema).iter_errors(given)]
    assert len(errors) == bool(refused)
    assert all(refused in one for one in errors)

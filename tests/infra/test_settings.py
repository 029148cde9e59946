"""Settings come from the environment, or name the variable that does not fit."""

import pytest

from infra.settings import Settings
from schemas.base import InputError


def test_settings_come_from_the_environment() -> None:
    given = {"LYCEUM_STORE": "/x", "LYCEUM_LEASE_SECONDS": "7.5", "LYCEUM_PARALLEL_JOBS": "3"}
    settings = Settings.from_environment({**given, "OTHER": "1"})
    assert (settings.store, settings.lease_seconds, settings.parallel_jobs) == ("/x", 7.5, 3)
    assert Settings.from_environment({}).store == ".lyceum"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("LYCEUM_POLL_SECONDS", "soon"),
        ("LYCEUM_PARALLEL_JOBS", "0"),
        ("LYCEUM_LEASE_SECONDS", "inf"),
    ],
)
def test_a_setting_that_does_not_fit_names_its_variable(variable: str, value: str) -> None:
    with pytest.raises(InputError, match=f"{variable}='{value}' is not valid"):
        Settings.from_environment({variable: value})

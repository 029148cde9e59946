"""Settings come from the environment, or name the variable that does not fit."""

import pytest

from infra.settings import Settings, TpuSettings
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


@pytest.mark.parametrize(
    ("settings", "wrong", "right"),
    [
        (Settings, "LYCEUM_MAXUSD", "LYCEUM_MAX_USD"),
        (Settings, "LYCEUM_STROE", "LYCEUM_STORE"),
        (TpuSettings, "LYCEUM_TPU_PROJCT", "LYCEUM_TPU_PROJECT"),
        (TpuSettings, "LYCEUM_TPU_TIRE", "LYCEUM_TPU_TIER"),
    ],
)
def test_a_misspelt_setting_is_refused(settings, wrong: str, right: str) -> None:
    """A budget that nobody reads costs money."""
    with pytest.raises(InputError, match=f"{wrong} is no setting. Did you mean {right}?"):
        settings.from_environment({wrong: "5"})


def test_variables_of_other_purposes_are_left_alone() -> None:
    tpu = {f"LYCEUM_TPU_{name.upper()}": "x" for name in TpuSettings.model_fields}
    own = {"LYCEUM_ENDPOINT_KEY": "k", "LYCEUM_SOURCE": "s", "LYCEUM_HOSTS": "4"}
    assert Settings.from_environment(tpu | own) == Settings.from_environment({})

"""Settings come from the environment, or name the variable that does not fit."""

import pwd
from unittest.mock import Mock

import pytest

from infra.settings import Settings, TpuSettings
from schemas.base import InputError


def test_settings_come_from_the_environment() -> None:
    given = {"LYCEUM_STORE": "/x", "LYCEUM_LEASE_SECONDS": "7.5", "LYCEUM_PARALLEL_JOBS": "3"}
    settings = Settings.from_environment({**given, "OTHER": "1"})
    assert (settings.store, settings.lease_seconds, settings.parallel_jobs) == ("/x", 7.5, 3)
    assert Settings.from_environment({}).store == ".lyceum"


@pytest.mark.parametrize(
    ("settings", "variable", "value", "fix"),
    [
        (Settings, "LYCEUM_POLL_SECONDS", "soon", ""),
        (Settings, "LYCEUM_PARALLEL_JOBS", "0", ""),
        (Settings, "LYCEUM_LEASE_SECONDS", "inf", ""),
        (Settings, "LYCEUM_CACHE", "~nobody-of-that-name/cache", ""),
        (Settings, "LYCEUM_PLAN", "maybe", "write 1 or 0"),
        (Settings, "LYCEUM_COMPILE_CACHE", "cache/jax", "give an absolute path, or one that"),
        (TpuSettings, "LYCEUM_TPU_TIER", "cheap", "'spot', 'on-demand' or 'guaranteed'"),
        (TpuSettings, "LYCEUM_TPU_LABELS", "team=nlp,cost:42", "'cost:42' has no =; write key="),
        (TpuSettings, "LYCEUM_TPU_LABELS", "Team=x", "Team=x is no label: lower-case letters"),
        (TpuSettings, "LYCEUM_TPU_LABELS", "team=X Y", "team=X Y is no label"),
        (TpuSettings, "LYCEUM_TPU_LABELS", "lyceum-key=x", "not the prefix lyceum"),
    ],
)
def test_a_value_that_is_not_valid_names_its_variable_and_what_is(settings, variable, value, fix):
    with pytest.raises(InputError) as error:
        settings.from_environment({variable: value})
    assert f"{variable}='{value}' is not valid: " in str(error.value)
    assert fix in str(error.value)


def test_a_directory_begins_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a shell expands no `~`, as in a unit of systemd; workers have another directory."""
    monkeypatch.setenv("HOME", "/home/me")
    settings = Settings.from_environment({"LYCEUM_CACHE": "~/c", "LYCEUM_COMPILE_CACHE": "~/jax"})
    assert (settings.cache, settings.compile_cache) == ("/home/me/c", "/home/me/jax")
    assert Settings.from_environment({"LYCEUM_COMPILE_CACHE": ""}).compile_cache == ""
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which its specification has ignored
    assert Settings.from_environment({"LYCEUM_CACHE": ""}).cache == "/home/me/.cache/lyceum"


@pytest.mark.parametrize("home", [None, "relative"])
def test_without_a_home_the_variable_that_names_one_is_asked_for(
    home: str | None, monkeypatch, tmp_path, lyceum
):
    """As in a container whose user has a number and no name. A relative one was another directory
    for each job."""
    monkeypatch.setattr(pwd, "getpwuid", Mock(side_effect=KeyError))
    for name in ("HOME", "XDG_CACHE_HOME", "PREFECT_HOME"):
        monkeypatch.delenv(name, raising=False)
    if home:
        monkeypatch.setenv("HOME", home)
    assert "Set HOME to a directory" in lyceum("runs", "--store", tmp_path, code=2).err


@pytest.mark.parametrize(
    ("settings", "wrong", "right"),
    [
        (Settings, "LYCEUM_MAXUSD", "LYCEUM_MAX_USD"),
        (Settings, "LYCEUM_STROE", "LYCEUM_STORE"),
        (TpuSettings, "LYCEUM_TPU_PROJCT", "LYCEUM_TPU_PROJECT"),
        (TpuSettings, "LYCEUM_TPU_TIRE", "LYCEUM_TPU_TIER"),
        (TpuSettings, "LYCEUM_TPU_MAX_USD", "LYCEUM_MAX_USD"),
        (TpuSettings, "LYCEUM_TPU_ZONES", "LYCEUM_ZONES"),
        (Settings, "LYCEUM_TIER", "LYCEUM_TPU_TIER"),
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


def test_compiled_code_of_another_processor_lies_elsewhere_where_no_cpuinfo_says_which(monkeypatch):
    """As on macOS: all machines of an architecture shared one cache."""
    monkeypatch.setattr("infra.settings.Path.exists", lambda path: False)
    places = []
    for processor in ("arm", "i386"):
        monkeypatch.setattr("infra.settings.platform.processor", lambda of=processor: of)
        places.append(Settings.from_environment({}).compile_cache)
    assert places[0] != places[1]

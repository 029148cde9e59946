"""What is said of a Prefect API anywhere is heard, and no more than that."""

import os
import pwd
from pathlib import Path
from unittest.mock import Mock

import pytest

from flows.server import unconfigured
from flows.server.key import Api, new_key, write
from schemas.base import InputError

URL = "http://127.0.0.1:4999/api"
SAYING = {
    "profiles.toml": f'active = "mine"\n[profiles.mine]\nPREFECT_API_URL = "{URL}"\n',
    "prefect.toml": f'[api]\nurl = "{URL}"\n',
    "pyproject.toml": f'[tool.prefect.api]\nurl = "{URL}"\n',
    ".env": f"PREFECT_API_URL={URL}\n",
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine where nothing says anything of Prefect, and which has not loaded it."""
    for name in [name for name in os.environ if name.startswith("PREFECT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(unconfigured, "sys", type("Sys", (), {"modules": {}}))
    return tmp_path


def configured() -> str | None:
    """What Prefect makes of it, which reads all of it anew."""
    from prefect.settings import Settings

    return Settings().api.url


def test_a_machine_that_says_nothing_is_unconfigured_and_prefect_agrees(here: Path) -> None:
    (here / "pyproject.toml").write_text('[project]\nname = "prefect-free"\n', encoding="utf-8")
    (here / ".env").write_text("OPENAI_API_KEY=x\n", encoding="utf-8")
    assert unconfigured.is_unconfigured()
    assert configured() is None


@pytest.mark.parametrize("file", SAYING)
def test_every_file_that_prefect_reads_is_heard(here: Path, file: str) -> None:
    (here / file).write_text(SAYING[file], encoding="utf-8")
    assert configured() == URL, "the control"
    assert not unconfigured.is_unconfigured()


def test_a_variable_is_heard_however_it_is_written(here, monkeypatch):
    monkeypatch.setenv("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    assert unconfigured.is_unconfigured(), "what servers of ours are told"
    monkeypatch.setenv("prefect_api_url", URL)
    assert configured() == URL, "the control"
    assert not unconfigured.is_unconfigured()


def test_what_else_is_heard(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile that a variable names, a project file that cannot be read, `lyceum serve`, and
    Prefect once it is loaded: its settings may have been set in memory, as by its harness."""

    def heard() -> bool:
        return not unconfigured.is_unconfigured()

    assert not heard()
    with monkeypatch.context() as patch:
        patch.setenv("PREFECT_PROFILE", "local")
        assert heard()
    (here / "pyproject.toml").write_text("[tool", encoding="utf-8")
    assert heard()
    (here / "pyproject.toml").unlink()
    served = write(here, Api(URL, new_key()))
    assert heard()
    served.unlink()
    assert not heard()
    monkeypatch.setattr(unconfigured, "sys", type("Sys", (), {"modules": {"prefect": None}}))
    assert heard()


def test_a_home_is_one_of_a_person_and_asked_for_where_there_is_none(here, monkeypatch):
    (here / "theirs").mkdir()
    (here / "theirs" / "profiles.toml").touch()
    monkeypatch.setenv("HOME", str(here))
    monkeypatch.setenv("PREFECT_HOME", "~/theirs")
    assert not unconfigured.is_unconfigured()
    monkeypatch.setattr(pwd, "getpwuid", Mock(side_effect=KeyError))
    for name in ("HOME", "PREFECT_HOME"):
        monkeypatch.delenv(name)
    with pytest.raises(InputError, match="Set HOME to a directory"):
        unconfigured.is_unconfigured()

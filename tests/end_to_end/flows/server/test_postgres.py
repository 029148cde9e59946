"""`lyceum serve` on a real PostgreSQL, as a team has it: two flows side by side on it, and the
automation of docs/prefect.md tells of a night that failed."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flows.server.prefect_api import free_port
from infra.process import ROOT
from tests.fakes.http import Handler, HttpServer
from tests.flows.server.served import Served, until

URL = "PREFECT_SERVER_DATABASE_CONNECTION_URL"


def postgres_programs() -> Path | None:
    """Where initdb is: on the path, or where Debian's package has it."""
    found = [Path(one).parent for one in filter(None, [shutil.which("initdb")])]
    return next(iter([*found, *sorted(Path("/usr/lib/postgresql").glob("*/bin"))]), None)


@contextmanager
def postgres() -> Iterator[str]:
    """A server of its own, as a user that is not root; yields the URL that Prefect takes."""
    programs = postgres_programs()
    if programs is None:
        pytest.skip("there is no PostgreSQL here: apt-get install postgresql")
    user: Any = "nobody" if os.geteuid() == 0 else None  # it refuses to run as root
    # pytest closes its own directories to other users, again and again
    with tempfile.TemporaryDirectory(prefix="lyceum-postgres-") as made:
        root, port = Path(made), free_port()
        if user:
            shutil.chown(root, user)
        password, data, log = root / "password", root / "data", root / "log"
        password.write_text("secret", encoding="utf-8")
        asked = ["-D", str(data), "-U", "lyceum", "-A", "scram-sha-256", f"--pwfile={password}"]
        began: Any = {"user": user, "cwd": "/"}
        subprocess.run(
            [str(programs / "initdb"), *asked], check=True, stdout=subprocess.DEVNULL, **began
        )
        started = [str(programs / "postgres"), "-D", str(data), "-p", str(port), "-k", made]
        with log.open("w") as written:
            server = subprocess.Popen(started, stdout=written, stderr=written, **began)
        try:
            until(lambda: "ready to accept" in log.read_text(encoding="utf-8"))
            yield f"postgresql+asyncpg://lyceum:secret@127.0.0.1:{port}/postgres"
        finally:
            server.terminate()
            server.wait(60)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("team")
    with postgres() as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv(URL, url)
        with Served(root) as one:
            yield one
            assert not [*root.glob("prefect/*.db")], "nothing is kept in SQLite"


def test_two_flows_run_side_by_side(served: Served, tiny_recipe: Path, tmp_path: Path) -> None:
    runs = [
        served.start(recipe=str(tiny_recipe), store=str(tmp_path / store)) for store in ("a", "b")
    ]
    assert [served.ended(run)["type"] for run in runs] == ["COMPLETED", "COMPLETED"]
    times = [served.ask(f"/flow_runs/{run}") for run in runs]
    assert max(one["start_time"] for one in times) < min(one["end_time"] for one in times)
    for run in runs:
        assert set(served.stages(run).values()) == {"Completed"}


class Hook(HttpServer):
    """What an automation calls."""

    def __init__(self) -> None:
        told = self.told = list[dict[str, Any]]()

        class Noting(Handler):
            def do_POST(self) -> None:
                told.append(self.body())
                self.answer(204, "")

        super().__init__(Noting)


def test_the_automation_of_the_page_tells_of_a_night_that_failed(served, tmp_path):
    page = (ROOT / "docs" / "prefect.md").read_text(encoding="utf-8")
    section = page.partition("\n## A night that failed\n")[2].partition("\n## ")[0]
    (automation,) = re.findall(r"^```yaml\n(.*?)^```", section, re.M | re.S)
    (hook_script,) = re.findall(r"^```python\n(.*?)^```", section, re.M | re.S)
    hook = Hook()
    url = f"{hook.url}/"
    environment = {**os.environ, **served.reach.environment, "PREFECT_HOME": str(tmp_path)}

    def ours(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return done.stdout

    block = ours("-c", hook_script.replace("https://hooks.example.org/nights", url)).split()[-1]
    file = tmp_path / "automation.yaml"
    file.write_text(automation.replace("BLOCK_ID", block), encoding="utf-8")
    ours("-m", "prefect", "--no-prompt", "automation", "create", "--from-file", str(file))
    assert served.ended(served.start(recipe="quickstat"))["type"] == "FAILED"
    failed = served.start("nightly", recipe="quickstat")
    assert served.ended(failed)["type"] == "FAILED"
    until(lambda: hook.told)
    [told] = hook.told
    assert failed in told["text"], "of the night alone, and not of the other run"
    assert "unknown recipe 'quickstat'" in told["text"]
    hook.stop()

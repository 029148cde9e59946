"""A whole run leaves no secret anywhere, and Prefect is given no result to keep: nothing it stores
is a pickle."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from infra.store.store import open_store
from schemas.base import InputError
from tests.conftest import TINY
from tests.fakes.process import ROOT, until
from tests.infra.canaries import CANARIES, VARIABLES, dump, findings, findings_below
from tests.processes import marked

QUOTING = """
[stages.quoting]
kind = "distill"
[[stages.quoting.config.teachers]]
name = "dataset"
[[stages.quoting.config.teachers.sources]]
path = "rows.jsonl"
prompt = "q"
reasoning = "q"
answer = "a"
domain = { column = "kind", table = { sums = "math" } }
"""
"""A stage that fails, and whose message quotes a secret: the value that it finds in its data is
that of a variable."""


def planted(directory: Path) -> dict[str, str]:
    """An environment with a canary in every place where people keep credentials. Files that hold
    some lie in `directory`."""
    key_file = directory / "service-account.json"
    account = {"type": "service_account", "private_key": CANARIES["private"]}
    key_file.write_text(json.dumps(account), encoding="utf-8")
    proxy = f"http://user:{CANARIES['proxy']}@127.0.0.1:9"
    return {
        **{name: CANARIES[name] for name in VARIABLES.split()},
        "PREFECT_API_AUTH_STRING": f"user:{CANARIES['auth']}",
        "GOOGLE_APPLICATION_CREDENTIALS": str(key_file),
        **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), proxy),
    }


@dataclass(frozen=True)
class Left:
    """What a run left: everything it could write to lies below `place`, what it printed, and the
    command lines it was seen with."""

    place: Path
    code: int
    out: str
    err: str
    command_lines: set[str]

    @property
    def store(self) -> Path:
        return self.place / "work" / "store"


def run(place: Path, secrets: Path, environment: Mapping[str, str]) -> Left:
    """`lyceum run` as a process with canaries in its environment, all of whose directories are
    below `place`."""
    for name in ("work", "home", "tmp"):
        (place / name).mkdir()
    (secrets / "data").mkdir()
    row = {"q": "1 + 1?", "a": "2", "kind": CANARIES["HF_TOKEN"]}
    (secrets / "data" / "rows.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    (place / "work" / "tiny.toml").write_text(TINY + QUOTING, encoding="utf-8")
    where = {
        "HOME": f"{place}/home",
        "XDG_CACHE_HOME": f"{place}/home/cache",
        "PREFECT_HOME": f"{place}/home/prefect",
        "TMPDIR": f"{place}/tmp",
        "PYTHONPATH": str(ROOT),
        "LYCEUM_TEST_MARK": str(place),
    }
    arguments = ["--store", "store", "--data", str(secrets / "data")]
    command = [sys.executable, "-m", "flows.cli.main", "run", "tiny.toml", *arguments]
    given = {**environment, **planted(secrets), **where}
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, cwd=place / "work", env=given, **piped)
    seen: set[str] = set()
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.1):
            seen.update(marked(f"LYCEUM_TEST_MARK={place}").values())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()
        ended.set()
        watcher.join()
    return Left(place, process.returncode, out, err, seen)


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Left:
    """Of a run with a temporary Prefect server, which has the canaries in its environment, and
    whose database is in Prefect's home. The proxy of that environment does not exist; the server on
    this machine is found all the same."""
    variables = os.environ.items()
    environment = {name: value for name, value in variables if not name.startswith("PREFECT_")}
    return run(tmp_path_factory.mktemp("left"), tmp_path_factory.mktemp("secrets"), environment)


def test_no_secret_is_left_by_a_run(left: Left) -> None:
    """The store, Prefect's database and home, caches, the working directory, the terminal, and the
    command lines of all processes: no canary anywhere; and the text that quoted one is in all those
    places without it, so they were rightly looked at."""
    database = left.place / "home" / "prefect" / "prefect.db"
    assert left.code == 2, left.err
    # the server writes logs by and by
    until(lambda: "'***' is not in the table" in dump(database).replace("''", "'"))
    found = findings_below(left.place)
    found += findings(left.out.encode(), "standard output")
    found += findings(left.err.encode(), "standard error")
    found += findings(dump(database).encode(), f"Prefect's database {database}")
    found += findings("\n".join(left.command_lines).encode(), "a command line")
    assert found == []

    quoted = "kind = '***' is not in the table"
    [record], [report] = left.store.glob("runs/*/run.json"), left.store.glob("runs/*/report.html")
    logs = left.store.glob("work/*/*/log.txt")
    [log] = [log for log in logs if "not in the table" in log.read_text(encoding="utf-8")]
    for kept in (record, report, log, log.with_name("status.json")):
        assert quoted in kept.read_text(encoding="utf-8").replace("&#39;", "'"), kept
    assert quoted in left.err
    assert any("tasks.worker" in line for line in left.command_lines)


def test_prefect_is_given_no_results(left: Left) -> None:
    """Nothing in its result storage, and no reference to a result in its database."""
    home = left.place / "home" / "prefect"
    assert [path for path in (home / "storage").rglob("*") if path.is_file()] == []
    assert '"serializer"' not in dump(home / "prefect.db")


class Bomb:
    """Unpickling it creates the file that it names."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


@pytest.mark.usefixtures("prefect_api")
def test_forged_results_in_prefect_s_storage_are_not_read(left, tmp_path, lyceum, monkeypatch):
    """A record that Prefect would run code of, under every name that a stage's result could have:
    the run says `cached` without it."""
    from prefect.results import ResultRecord, ResultRecordMetadata
    from prefect.serializers import PickleSerializer
    from prefect.settings import get_current_settings

    monkeypatch.chdir(left.store.parent)
    exploded, storage = tmp_path / "exploded", get_current_settings().results.local_storage_path
    storage.mkdir(parents=True, exist_ok=True)
    keys = [manifest.key for manifest in open_store(left.store, write=False).artifacts()]
    assert len(keys) == 2
    for key in keys:
        about = {"serializer": PickleSerializer(), "storage_key": str(storage / key)}
        record = ResultRecord(result=Bomb(exploded), metadata=ResultRecordMetadata(**about))
        (storage / key).write_bytes(record.serialize())
    try:
        (left.store.parent / "tiny.toml").write_text(TINY, encoding="utf-8")
        stages = lyceum("run", "tiny.toml", "--store", "store", "--json").json["stages"]
        assert [stage["status"] for stage in stages] == ["cached", "cached"]
        assert not exploded.exists()
        ResultRecord.deserialize((storage / keys[0]).read_bytes())
        assert exploded.exists(), "the record was not forged well enough to prove anything"
    finally:
        for key in keys:
            (storage / key).unlink()


def test_the_exception_of_a_flow_is_not_pickled(prefect_api: str) -> None:
    """Prefect stores it whatever it is told about results."""
    from prefect.settings import get_current_settings

    from flows.post_train import post_train

    storage = get_current_settings().results.local_storage_path
    before = set(storage.rglob("*"))
    with pytest.raises(InputError, match="unknown recipe"):
        post_train(recipe="nope")
    for record in set(storage.rglob("*")) - before:
        assert json.loads(record.read_bytes())["__exc_type__"] == "schemas.base.InputError"

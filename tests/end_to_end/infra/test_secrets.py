"""A whole run leaves no secret anywhere, and Prefect is given no result to keep: nothing it stores
is a pickle."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from flows.cli.main import main
from infra.store.store import open_store
from schemas.base import InputError
from tests.conftest import TINY
from tests.fakes.process import ROOT
from tests.flows.server.served import marked
from tests.infra.canaries import CANARIES, VARIABLES, dump, findings, findings_below

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
    key_file.write_text(
        json.dumps({"type": "service_account", "private_key": CANARIES["private"]}),
        encoding="utf-8",
    )
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
    homes = {
        "HOME": place / "home",
        "XDG_CACHE_HOME": place / "home" / "cache",
        "PREFECT_HOME": place / "home" / "prefect",
    }
    arguments = ["--store", "store", "--data", str(secrets / "data")]
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.cli.main", "run", "tiny.toml", *arguments],
        cwd=place / "work",
        env={
            **environment,
            **planted(secrets),
            **{name: str(path) for name, path in homes.items()},
            "TMPDIR": str(place / "tmp"),
            "PYTHONPATH": str(ROOT),
            "LYCEUM_TEST_MARK": str(place),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
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
def others_results(prefect_api: str) -> set[str]:
    """References to results that tests before these left in the database that all share."""
    return references_to_results()


def references_to_results() -> set[str]:
    return {row for row in dump(harness_database()).splitlines() if '"serializer"' in row}


@pytest.fixture(scope="module")
def left(others_results: set[str], tmp_path_factory: pytest.TempPathFactory) -> Left:
    return run(tmp_path_factory.mktemp("left"), tmp_path_factory.mktemp("secrets"), os.environ)


def assert_kept_no_secret(left: Left, database: Path) -> None:
    """No canary anywhere; and the text that quoted one is in all those places without it, so they
    were rightly looked at."""
    assert left.code == 2, left.err
    deadline = time.monotonic() + 120
    # the server writes logs by and by
    while "'***' is not in the table" not in dump(database).replace("''", "'"):
        assert time.monotonic() < deadline, "the stage's message is not in the database"
        time.sleep(0.2)
    found = (
        findings_below(left.place)
        + findings(left.out.encode(), "standard output")
        + findings(left.err.encode(), "standard error")
    )
    found += findings(dump(database).encode(), f"Prefect's database {database}")
    found += findings("\n".join(left.command_lines).encode(), "a command line")
    assert found == []

    quoted = "kind = '***' is not in the table"
    [record], [report] = left.store.glob("runs/*/run.json"), left.store.glob("runs/*/report.html")
    [log] = [
        log
        for log in left.store.glob("work/*/*/log.txt")
        if "not in the table" in log.read_text(encoding="utf-8")
    ]
    for kept in (record, report, log, log.with_name("status.json")):
        assert quoted in kept.read_text(encoding="utf-8").replace("&#39;", "'"), kept
    assert quoted in left.err
    assert any("tasks.worker" in line for line in left.command_lines)


def harness_database() -> Path:
    """The database of the `prefect_api` fixture's server."""
    from prefect.settings import get_current_settings

    url = get_current_settings().server.database.connection_url
    return Path("/", urlsplit(url.get_secret_value()).path.lstrip("/"))


def test_no_secret_is_left_by_a_run(left: Left) -> None:
    """The store, Prefect's database and home, caches, the working directory, the terminal, and the
    command lines of all processes."""
    assert_kept_no_secret(left, harness_database())


def test_no_secret_is_left_by_a_run_with_a_server_of_its_own(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The same with the temporary Prefect server, which has the canaries in its environment, and
    whose database is in Prefect's home.

    The proxy of that environment does not exist; the server on this machine is found all the same.
    """
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")
    }
    left = run(tmp_path_factory.mktemp("left"), tmp_path_factory.mktemp("secrets"), environment)
    assert_kept_no_secret(left, left.place / "home" / "prefect" / "prefect.db")


def test_prefect_is_given_no_results(left: Left, others_results: set[str]) -> None:
    """Nothing in its result storage, and no reference to a result in its database."""
    assert [
        path for path in (left.place / "home" / "prefect" / "storage").rglob("*") if path.is_file()
    ] == []
    assert references_to_results() <= others_results


class Bomb:
    """Unpickling it creates the file that it names."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def test_forged_results_in_prefect_s_storage_are_not_read(
    left: Left, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
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
        metadata = ResultRecordMetadata(
            serializer=PickleSerializer(), storage_key=str(storage / key)
        )
        (storage / key).write_bytes(
            ResultRecord(result=Bomb(exploded), metadata=metadata).serialize()
        )
    try:
        (left.store.parent / "tiny.toml").write_text(TINY, encoding="utf-8")
        assert main(["run", "tiny.toml", "--store", "store", "--json"]) == 0
        stages = json.loads(capsys.readouterr().out)["stages"]
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

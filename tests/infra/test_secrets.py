"""Secrets never reach what a run leaves or shows, and what Prefect stores is never a pickle, neither written nor read."""

import ast
import base64
import gzip
import json
import os
import pickle
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from flows.cli.main import main
from flows.runs.record import RunLog
from flows.server.prefect_api import answers, bypass_proxy
from infra.backend import FINAL
from infra.local import LocalBackend
from infra.secrets import LEAST, has_userinfo, mask
from infra.settings import Settings
from infra.store.store import open_store
from schemas.base import InputError
from schemas.job import JobSpec
from tests.conftest import TINY

ROOT = Path(__file__).resolve().parents[2]
VARIABLES = (
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "KAGGLE_KEY",
    "WANDB_API_KEY",
    "OPENAI_API_KEY",
    "GEMINI_API_KEY",
    "ANTHROPIC_API_KEY",
    "PREFECT_API_KEY",
    "AWS_SECRET_ACCESS_KEY",
    "GITHUB_TOKEN",
)
CANARIES = {name: f"canary-{number:02}-{name.lower()}" for number, name in enumerate((*VARIABLES, "auth", "private", "proxy", "typed"))}
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
"""A stage that fails, and whose message quotes a secret: the value that it finds in its data is that of a variable."""


def planted(directory: Path) -> dict[str, str]:
    """An environment with a canary in every place where people keep credentials. Files that hold some lie in `directory`."""
    key_file = directory / "service-account.json"
    key_file.write_text(json.dumps({"type": "service_account", "private_key": CANARIES["private"]}), encoding="utf-8")
    proxy = f"http://user:{CANARIES['proxy']}@127.0.0.1:9"
    return {
        **{name: CANARIES[name] for name in VARIABLES},
        "PREFECT_API_AUTH_STRING": f"user:{CANARIES['auth']}",
        "GOOGLE_APPLICATION_CREDENTIALS": str(key_file),
        **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), proxy),
    }


def findings(content: bytes, where: str) -> list[str]:
    """Which canaries some bytes hold, as they are or in base64 (as authorization headers and data URIs have them)."""
    return [f"{name} in {where}" for name, canary in CANARIES.items() if any(form in content for form in _forms(canary))]


def _forms(canary: str) -> Iterator[bytes]:
    yield canary.encode()
    for lead in range(3):  # where in a group of three bytes the canary begins decides its letters; those at the ends depend on neighbours
        yield base64.b64encode(b"\0" * lead + canary.encode())[4:-4]


def findings_below(directory: Path) -> list[str]:
    """Which canaries a directory holds: in names, in files, in compressed files, in SQLite databases; and which files are pickles."""
    found = []
    for path in directory.rglob("*"):
        found += findings(bytes(path.relative_to(directory)), f"the name of {path}")
        if path.is_file():
            content = path.read_bytes()
            found += findings(content, str(path))
            if content[:2] == b"\x1f\x8b":
                found += findings(gzip.decompress(content), f"{path}, unpacked")
            if content.startswith(b"SQLite format 3"):
                found += findings(dump(path).encode(), f"{path}, dumped")
            if content.startswith(b"\x80") or any(start in content for start in (b'"gASV', b'"gAWV')) or content[:4] in (b"gASV", b"gAWV"):
                found.append(f"{path} is a pickle")
    return found


def dump(database: Path) -> str:
    """All rows of a SQLite database, those in its write-ahead log included."""
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        return "\n".join(connection.iterdump())
    finally:
        connection.close()


@dataclass(frozen=True)
class Left:
    """What a run left: everything it could write to lies below `place`, what it printed, and the command lines it was seen with."""

    place: Path
    code: int
    out: str
    err: str
    command_lines: set[str]

    @property
    def store(self) -> Path:
        return self.place / "work" / "store"


def run(place: Path, secrets: Path, environment: Mapping[str, str]) -> Left:
    """`lyceum run` as a process with canaries in its environment, all of whose directories are below `place`."""
    for name in ("work", "home", "tmp"):
        (place / name).mkdir()
    (secrets / "data").mkdir()
    row = {"q": "1 + 1?", "a": "2", "kind": CANARIES["HF_TOKEN"]}
    (secrets / "data" / "rows.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    (place / "work" / "tiny.toml").write_text(TINY + QUOTING, encoding="utf-8")
    homes = {"HOME": place / "home", "XDG_CACHE_HOME": place / "home" / "cache", "PREFECT_HOME": place / "home" / "prefect"}
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.cli.main", "run", "tiny.toml", "--store", "store", "--data", str(secrets / "data")],
        cwd=place / "work",
        env={
            **environment,
            **planted(secrets),
            **{name: str(path) for name, path in homes.items()},
            "TMPDIR": str(place / "tmp"),
            "PYTHONPATH": str(ROOT),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    seen: set[str] = set()
    ended = threading.Event()
    watcher = threading.Thread(target=_watch_command_lines, args=(process.pid, seen, ended))
    watcher.start()
    try:
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()
        ended.set()
        watcher.join()
    return Left(place, process.returncode, out, err, seen)


def _watch_command_lines(pid: int, seen: set[str], ended: threading.Event) -> None:
    """Note the command lines of a process and of its descendants until it ends."""
    while not ended.wait(0.1):
        listed = subprocess.run(["ps", "-eww", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
        processes = {int(one): (int(parent), line) for one, parent, line in (entry.split(maxsplit=2) for entry in listed.splitlines())}
        for one, (_, line) in processes.items():
            while one in processes and one != pid:
                one = processes[one][0]
            if one == pid:
                seen.add(line)


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
    """No canary anywhere; and the text that quoted one is in all those places without it, so they were rightly looked at."""
    assert left.code == 2, left.err
    deadline = time.monotonic() + 30
    while "'***' is not in the table" not in dump(database).replace("''", "'"):  # the server writes logs by and by
        assert time.monotonic() < deadline, "the stage's message is not in the database"
        time.sleep(0.2)
    found = findings_below(left.place) + findings(left.out.encode(), "standard output") + findings(left.err.encode(), "standard error")
    found += findings(dump(database).encode(), f"Prefect's database {database}")
    found += findings("\n".join(left.command_lines).encode(), "a command line")
    assert found == []

    quoted = "kind = '***' is not in the table"
    [record], [report] = left.store.glob("runs/*/run.json"), left.store.glob("runs/*/report.html")
    [log] = [log for log in left.store.glob("work/*/*/log.txt") if "not in the table" in log.read_text(encoding="utf-8")]
    for kept in (record, report, log, log.with_name("status.json")):
        assert quoted in kept.read_text(encoding="utf-8").replace("&#39;", "'"), kept
    assert quoted in left.err
    assert any("tasks.worker" in line for line in left.command_lines)


def harness_database() -> Path:
    """The database of the `prefect_api` fixture's server."""
    from prefect.settings import get_current_settings

    url = get_current_settings().server.database.connection_url
    assert url is not None
    return Path("/", urlsplit(url.get_secret_value()).path.lstrip("/"))


def test_no_secret_is_left_by_a_run(left: Left) -> None:
    """The store, Prefect's database and home, caches, the working directory, the terminal, and the command lines of all processes."""
    assert_kept_no_secret(left, harness_database())


@pytest.mark.slow
def test_no_secret_is_left_by_a_run_with_a_server_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The same with the temporary Prefect server, which has the canaries in its environment, and whose database is in Prefect's home.

    The proxy of that environment does not exist; the server on this machine is found all the same.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    left = run(tmp_path_factory.mktemp("left"), tmp_path_factory.mktemp("secrets"), environment)
    assert_kept_no_secret(left, left.place / "home" / "prefect" / "prefect.db")


def test_a_leak_is_found_wherever_it_is(tmp_path: Path) -> None:
    """The search itself: as text, in a file's name, in base64, compressed, in a database's row; and a pickle."""
    canary = CANARIES["HF_TOKEN"]
    (tmp_path / "log.txt").write_text(f"401 for {canary}", encoding="utf-8")
    (tmp_path / canary).touch()
    (tmp_path / "header").write_bytes(base64.b64encode(f"user:{canary}".encode()))
    (tmp_path / "rows.gz").write_bytes(gzip.compress(canary.encode()))
    (tmp_path / "result").write_bytes(pickle.dumps("value"))
    with sqlite3.connect(tmp_path / "prefect.db") as database:
        database.execute("CREATE TABLE log (message TEXT)")
        database.execute("INSERT INTO log VALUES (?)", (canary,))
    database.close()
    found = "\n".join(findings_below(tmp_path))
    for place in ("log.txt", "the name of", "header", "rows.gz, unpacked", "prefect.db, dumped", "result is a pickle"):
        assert place in found


# What is masked


def test_what_is_masked() -> None:
    environment = {
        "HF_TOKEN": "hf_abcdefgh",
        "DB_PASS": "first-line\nsecond-line",
        "PREFECT_API_AUTH_STRING": "admin:open-sesame",
        "OPENAI_API_KEY_2": "longer-hf_abcdefgh",
        "https_proxy": "http://me:p%40ssw0rd@proxy:3128",
        "TOKEN": "x" * (LEAST - 1),
        "EDITOR": "editor-of-choice",
    }
    masked = {
        "401 for hf_abcdefgh": "401 for ***",
        "longer-hf_abcdefgh": "***",
        "'second-line'": "'***'",
        "admin:open-sesame": "***",
        "nonnumeric port: 'p@ssw0rd@proxy:3128'": "nonnumeric port: '***@proxy:3128'",
        "gs://user:pass@bucket/x and https://token@host": "gs://***@bucket/x and https://***@host",
        "--set stages.a.config.api_key=abcdefgh": "--set stages.a.config.api_key=***",
        "{'token': 'abcdefgh', 'n': 1}": "{'token': '***', 'n': 1}",
        "https://host/o?access_token=abcdefgh&alt=media": "https://host/o?access_token=***&alt=media",
    }
    for text, expected in masked.items():
        assert mask(text, environment) == expected
    for text in ("x" * (LEAST - 1), "editor-of-choice", "tokens: 12345678", "key abcdefgh", "file:///data/a@b", "me@example.org"):
        assert mask(text, environment) == text


def test_prints_logs_and_tracebacks_of_a_masked_process_hold_no_secret() -> None:
    script = """
import logging, os, sys
from infra.backend import FINAL
from infra.local import LocalBackend
from infra.secrets import mask_output
mask_output()
logging.basicConfig(stream=sys.stdout)
logging.error("for %s", os.environ["HF_TOKEN"])
print("to", os.environ["HF_TOKEN"], "\\udc80")
raise SystemError(os.environ["HF_TOKEN"])
"""
    environment = {**os.environ, "HF_TOKEN": CANARIES["HF_TOKEN"]}
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "ERROR:root:for ***\nto *** \\udc80\n"
    assert done.stderr.endswith("SystemError: ***\n")
    assert findings((done.stdout + done.stderr).encode(), "") == []


def test_what_a_worker_prints_is_masked(tmp_path: Path) -> None:
    """Even when it dies of an error that nobody foresaw: here of a job that is none, which the error quotes."""
    (tmp_path / "job.json").write_text(json.dumps({"stage": [CANARIES["HF_TOKEN"]]}), encoding="utf-8")
    command = [sys.executable, "-m", "tasks.worker", str(tmp_path / "job.json")]
    environment = {**os.environ, "HF_TOKEN": CANARIES["HF_TOKEN"]}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert "ValidationError" in done.stderr
    assert "'***'" in done.stderr
    assert findings((done.stdout + done.stderr).encode(), "") == []


def test_what_a_job_printed_is_masked_on_its_way_to_the_flow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that a worker starts and native libraries print past Python: Prefect's logs and the job's error hold no secret even so."""
    monkeypatch.setenv("HF_TOKEN", CANARIES["HF_TOKEN"])
    command = ["/bin/sh", "-c", 'echo "token is $HF_TOKEN"; exit 3']
    backend = LocalBackend(Settings(poll_seconds=0.05), command)
    spec = JobSpec(stage="s", kind="distill", key="0" * 64, attempt="1", store=(tmp_path / "store").as_uri(), target="local", config={})
    handle = backend.submit(spec)
    while (status := backend.poll(handle)).state not in FINAL:
        time.sleep(0.05)
    assert status.error is not None
    assert status.error.endswith("token is ***")
    assert backend.log(handle, 0)[0] == "token is ***\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "tiny.toml", "--set", f"stages.distill.config.api_key={CANARIES['typed']}"],
        ["run", "tiny.toml", "--set", f"stages.distill.config.teachers=[{{ name = 'procedural', token = '{CANARIES['typed']}' }}]"],
        ["run", "tiny.toml", "--set", f"stages.distill.config.seed={CANARIES['HF_TOKEN']}"],
        ["run", "tiny.toml", "--store", f"gs://user:{CANARIES['typed']}@bucket/prefix"],
        ["run", "tiny.toml", "--store", f"gs://bucket/prefix?access_token={CANARIES['typed']}"],
        ["run", "tiny.toml", "--store", f"file://user:{CANARIES['typed']}@host/prefix"],
        ["run", "tiny.toml", "--store", f"s3://user:{CANARIES['typed']}@bucket/prefix"],
        ["run", CANARIES["HF_TOKEN"]],
        ["report", CANARIES["HF_TOKEN"], "--store", "store"],
    ],
)
def test_a_message_about_bad_input_repeats_no_secret(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it was typed. Nothing is written either."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", CANARIES["HF_TOKEN"])
    (tmp_path / "tiny.toml").write_text(TINY, encoding="utf-8")
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("lyceum: ")
    assert "***" in printed.err
    assert findings((printed.out + printed.err).encode(), "the message") == []
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.toml"]


@pytest.mark.parametrize("uri", ["gs://user:secret-pass@bucket/prefix", "gs://token-of-mine@bucket", "gs://bucket/prefix?key=secret-pass"])
def test_a_store_with_credentials_in_its_name_is_refused(uri: str) -> None:
    """It would be in job specs, run records and reports."""
    with pytest.raises(InputError) as error:
        open_store(uri, write=False)
    assert "GOOGLE_APPLICATION_CREDENTIALS" in str(error.value)
    assert "secret-pass" not in str(error.value)
    assert "token-of-mine" not in str(error.value)


def test_the_recorded_command_line_is_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flows.recipe.resolve import resolve

    monkeypatch.setattr("sys.argv", ["lyceum", "run", "quickstart", f"--set=x.token={CANARIES['typed']}", CANARIES["HF_TOKEN"]])
    monkeypatch.setenv("HF_TOKEN", CANARIES["HF_TOKEN"])
    log = RunLog(open_store(tmp_path), resolve("quickstart"), "local", lambda record: None)
    assert log.record.execution["command"] == ["lyceum", "run", "quickstart", "--set=x.token=***", "***"]
    assert findings_below(tmp_path) == []


class TestPrefectUrl:
    """A Prefect API whose URL holds a password, or is no URL at all, and a proxy on the way to it."""

    @pytest.mark.parametrize(
        "url", [f"http://user:{CANARIES['typed']}@127.0.0.1:4200/api", f"https://{CANARIES['typed']}@prefect.example/api"]
    )
    def test_a_password_in_it_is_refused_and_not_repeated(
        self, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from prefect.settings import PREFECT_API_URL, temporary_settings

        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("PREFECT_API_URL", url)
        (tmp_path / "tiny.toml").write_text(TINY, encoding="utf-8")
        with temporary_settings({PREFECT_API_URL: url}):
            assert main(["run", "tiny.toml"]) == 2
            assert main(["doctor", "--json"]) == 1
        printed = capsys.readouterr()
        assert printed.err.count("PREFECT_API_AUTH_STRING") == printed.out.count("PREFECT_API_AUTH_STRING") == 1
        assert findings((printed.out + printed.err).encode(), "the messages") == []

    def test_a_url_that_is_none_does_not_answer(self) -> None:
        for url in ("http://127.0.0.1:port/api", "http://[::1/api", "4200", "http://user:name@127.0.0.1:1/api"):
            assert not answers(url)

    def test_requests_to_this_machine_take_no_proxy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import urllib.request

        monkeypatch.setenv("http_proxy", "http://user:password@127.0.0.1:9")
        monkeypatch.delenv("no_proxy", raising=False)
        for given, expected in (("", "127.0.0.1,localhost"), ("a.example,127.0.0.1", "a.example,127.0.0.1,localhost"), ("*", "*")):
            monkeypatch.setenv("NO_PROXY", given)
            monkeypatch.setenv("no_proxy", given)
            bypass_proxy()
            bypass_proxy()
            assert os.environ["no_proxy"] == os.environ["NO_PROXY"] == expected
            assert urllib.request.proxy_bypass("127.0.0.1:4200")


def test_user_names_and_passwords_in_urls_are_noticed() -> None:
    assert has_userinfo("gs://user:pass@bucket")
    assert has_userinfo("https://token@host/path")
    assert not has_userinfo("https://host/path@1")
    assert not has_userinfo("file:///home/a@b")


# Results


def test_prefect_is_given_no_results(left: Left, others_results: set[str]) -> None:
    """Nothing in its result storage, and no reference to a result in its database."""
    assert [path for path in (left.place / "home" / "prefect" / "storage").rglob("*") if path.is_file()] == []
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
    """A record that Prefect would run code of, under every name that a stage's result could have: the run says `cached` without it."""
    from prefect.results import ResultRecord, ResultRecordMetadata
    from prefect.serializers import PickleSerializer
    from prefect.settings import get_current_settings

    monkeypatch.chdir(left.store.parent)
    exploded, storage = tmp_path / "exploded", get_current_settings().results.local_storage_path
    assert storage is not None
    storage.mkdir(parents=True, exist_ok=True)
    keys = [manifest.key for manifest in open_store(left.store, write=False).artifacts()]
    assert len(keys) == 2
    for key in keys:
        metadata = ResultRecordMetadata(serializer=PickleSerializer(), storage_key=str(storage / key))
        (storage / key).write_bytes(ResultRecord(result=Bomb(exploded), metadata=metadata).serialize())
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
    assert storage is not None
    before = set(storage.rglob("*"))
    with pytest.raises(InputError, match="unknown recipe"):
        post_train(recipe="nope")
    for record in set(storage.rglob("*")) - before:
        assert json.loads(record.read_bytes())["__exc_type__"] == "schemas.base.InputError"


def test_no_code_of_ours_can_load_a_pickle() -> None:
    """No module that unpickles is imported, and no loader is told to allow it."""
    loaders = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "torch"}
    for path in [path for room in ("schemas", "infra", "tasks", "flows") for path in (ROOT / room).rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            imported = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            imported += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found = loaders & {name.split(".")[0] for name in imported}
            if found == {"torch"}:  # which computes there, on weights that transformers may read from safetensors alone
                found = set() if path.name == "round_trip.py" else found
            if path == ROOT / "tasks" / "sandbox" / "bubblewrap.py":  # which sends code into the container, and reads nothing of it
                found -= {"marshal"}
            assert not found, path
            assert not (isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.load"), path
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "AutoModelForCausalLM.from_pretrained":
                assert any(keyword.arg == "use_safetensors" and ast.unparse(keyword.value) == "True" for keyword in node.keywords), path
            assert not (isinstance(node, ast.keyword) and node.arg == "allow_pickle"), path
            inside = ROOT / "tasks" / "sandbox"
            if path not in (inside / "guest.py", inside / "candidate.py"):  # which live in the container, and run what is not ours there
                assert not (isinstance(node, ast.Name) and node.id in ("eval", "exec")), path

"""Secrets never reach what a process says: messages, logs, records of its command line."""

import json
import os
import subprocess
import urllib.request
from pathlib import Path

import pytest

from flows.cli.main import main
from flows.runs.record import RunLog
from flows.server.prefect_api import answers, bypass_proxy
from infra.backend import FINAL
from infra.local import LocalBackend
from infra.secrets import LEAST, mask
from infra.settings import Settings
from infra.store.store import attempt_file, open_store
from schemas.job import JobSpec
from tests.conftest import TINY
from tests.fakes.process import run_python, until
from tests.infra.canaries import CANARIES, findings, findings_below


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
        "https://host/o?access_token=abcdefgh&alt=media": (
            "https://host/o?access_token=***&alt=media"
        ),
    }
    for text, expected in masked.items():
        assert mask(text, environment) == expected
    plain = ("editor-of-choice", "tokens: 12345678", "key abcdefgh", "file:///data/a@b", "me@a.org")
    for text in ("x" * (LEAST - 1), *plain):
        assert mask(text, environment) == text


def with_a_token(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What Python says, which holds no secret."""
    environment = {**os.environ, "HF_TOKEN": CANARIES["HF_TOKEN"]}
    done = run_python(*arguments, env=environment)
    assert findings((done.stdout + done.stderr).encode(), "") == []
    return done


def test_prints_logs_and_tracebacks_of_a_masked_process_hold_no_secret() -> None:
    script = """
import logging, os, sys
from infra.secrets import mask_output
mask_output()
logging.basicConfig(stream=sys.stdout)
logging.error("for %s", os.environ["HF_TOKEN"])
print("to", os.environ["HF_TOKEN"], "\\udc80")
raise SystemError(os.environ["HF_TOKEN"])
"""
    done = with_a_token("-c", script)
    assert done.stdout == "ERROR:root:for ***\nto *** \\udc80\n"
    assert done.stderr.endswith("SystemError: ***\n")


def test_what_a_worker_prints_is_masked(tmp_path: Path) -> None:
    """Even when it dies of an error that nobody foresaw: here of a job that is none, which the
    error quotes."""
    (tmp_path / "job.json").write_text(json.dumps({"stage": [CANARIES["HF_TOKEN"]]}))
    done = with_a_token("-m", "tasks.worker", str(tmp_path / "job.json"))
    assert "ValidationError" in done.stderr
    assert "'***'" in done.stderr


def test_what_a_job_printed_is_masked_on_its_way_to_the_flow_and_a_bucket(gcs_bucket, monkeypatch):
    """Programs that a worker starts and native libraries print past Python: Prefect's logs, the
    job's error and a bucket's copy of the log hold no secret even so."""
    monkeypatch.setenv("HF_TOKEN", CANARIES["HF_TOKEN"])
    command = ["/bin/sh", "-c", 'echo "token is $HF_TOKEN"; exit 3']
    backend = LocalBackend(Settings(poll_seconds=0.05), command)
    given = {"stage": "s", "kind": "distill", "key": "0" * 64, "target": "local", "config": {}}
    handle = backend.submit(JobSpec(**given, attempt="1", store=f"gs://{gcs_bucket}/store"))
    status = until(lambda: backend.poll(handle), lambda status: status.state in FINAL)
    assert status.error.endswith("token is ***")
    assert backend.log(handle, 0)[0] == "token is ***\n"
    log = attempt_file(handle.key, "1", "log.txt")
    assert open_store(handle.store).read_bytes(log) == b"token is ***\n"


@pytest.mark.parametrize(
    "arguments",
    [
        "run tiny.toml --set stages.distill.config.api_key=TYPED",
        "run tiny.toml --set stages.distill.config.teachers=[{name='procedural',token='TYPED'}]",
        "run tiny.toml --set stages.distill.config.seed=TOKEN",
        "run tiny.toml --store gs://user:TYPED@bucket/prefix",
        "run tiny.toml --store gs://bucket/prefix?access_token=TYPED",
        "run tiny.toml --store file://user:TYPED@host/prefix",
        "run tiny.toml --store s3://user:TYPED@bucket/prefix",
        "run TOKEN",
        "report TOKEN --store store",
    ],
)
def test_a_message_about_bad_input_repeats_no_secret(arguments, tmp_path, capsys, monkeypatch):
    """Wherever it was typed. Nothing is written either."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", CANARIES["HF_TOKEN"])
    (tmp_path / "tiny.toml").write_text(TINY, encoding="utf-8")
    typed = arguments.replace("TYPED", CANARIES["typed"]).replace("TOKEN", CANARIES["HF_TOKEN"])
    assert main(typed.split()) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("lyceum: ")
    assert "***" in printed.err
    assert findings((printed.out + printed.err).encode(), "the message") == []
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.toml"]


def test_the_recorded_command_line_is_masked(tmp_path, monkeypatch):
    from flows.recipe.resolve import resolve

    monkeypatch.setenv("HF_TOKEN", CANARIES["HF_TOKEN"])
    typed = f"lyceum run quickstart --set=x.token={CANARIES['typed']} {CANARIES['HF_TOKEN']}"
    monkeypatch.setattr("sys.argv", typed.split())
    log = RunLog(open_store(tmp_path), resolve("quickstart"), "local", lambda record: None)
    masked = "lyceum run quickstart --set=x.token=*** ***"
    assert log.record.execution["command"] == masked.split()
    assert findings_below(tmp_path) == []


@pytest.mark.parametrize(
    "url", ["http://user:TYPED@127.0.0.1:4200/api", "https://TYPED@prefect.example/api"]
)
def test_a_password_in_the_url_of_prefect_is_refused_and_not_repeated(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    url = url.replace("TYPED", CANARIES["typed"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PREFECT_API_URL", url)
    (tmp_path / "tiny.toml").write_text(TINY, encoding="utf-8")
    with temporary_settings({PREFECT_API_URL: url}):
        assert main(["run", "tiny.toml"]) == 2
        assert main(["doctor", "--json"]) == 1
    printed = capsys.readouterr()
    assert [said.count("PREFECT_API_AUTH_STRING") for said in printed] == [1, 1]
    assert findings((printed.out + printed.err).encode(), "the messages") == []


def test_a_url_of_prefect_that_is_none_does_not_answer() -> None:
    wrong = ("//127.0.0.1:port/api", "//[::1/api", "//user:name@127.0.0.1:1/api")
    assert not any(map(answers, (*(f"http:{one}" for one in wrong), "4200")))


def test_requests_to_this_machine_take_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://user:password@127.0.0.1:9")
    for given, expected in (
        ("", "127.0.0.1,localhost"),
        ("a.example,127.0.0.1", "a.example,127.0.0.1,localhost"),
        ("*", "*"),
    ):
        monkeypatch.setenv("NO_PROXY", given)
        monkeypatch.setenv("no_proxy", given)
        bypass_proxy()
        bypass_proxy()
        assert os.environ["no_proxy"] == os.environ["NO_PROXY"] == expected
        assert urllib.request.proxy_bypass("127.0.0.1:4200")

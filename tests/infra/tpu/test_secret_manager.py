"""The key of a judge on a TPU VM: by a name from Secret Manager, masked in all that is kept, and
missed before a machine is paid for."""

import base64
import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import google.auth
import google.auth.credentials
import pytest

from flows import preamble
from flows.preamble import check_away
from flows.recipe.resolve import resolve
from infra.backend import JobHandle
from infra.secrets import mask
from infra.store.store import Store, open_store
from infra.tpu import secret_manager
from infra.tpu.host import masked_lines
from schemas.base import InputError
from schemas.job import JobSpec, JobStatus
from tasks import stage
from tasks.chat.provider import endpoint_of, travelling
from tasks.contract.kinds import stage_kind
from tasks.running import follower
from tasks.running.watch import WATCH, Watch
from tests.conftest import TINY
from tests.fakes.http import Handler, HttpServer
from tests.fakes.vm import Vm, machines, ship_toy, toy_job

CANARY = "sk-canary-of-the-judge-0123456789"
SECRET = "projects/p-1/secrets/judge-key"
JUDGE = {"JUDGE_BASE_URL": "https://judge.example/v1", "JUDGE_API_KEY_SECRET": SECRET}


class SecretManager(HttpServer):
    """Google's REST API, as far as it is asked: `GET /v1/<version>:access` for a bearer of a token.

    Attributes:
        values: version -> its payload. errors: statuses of the next answers. seen: path and token
            of each request.
    """

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {f"{SECRET}/versions/latest": CANARY.encode()}
        self.errors: list[int] = []
        self.seen: list[tuple[str, str]] = []
        super().__init__(_Handler)


class _Handler(Handler):
    server: SecretManager

    def do_GET(self) -> None:
        self.server.seen.append((self.path, self.headers.get("Authorization", "")))
        version = self.path.removeprefix("/v1/").removesuffix(":access")
        if self.server.errors:
            denied = {"message": "Permission 'secretmanager.versions.access' denied"}
            self.answer(self.server.errors.pop(0), {"error": denied})
        elif version not in self.server.values or not self.path.endswith(":access"):
            missing = f"Secret [{version}] not found or has no versions."
            self.answer(404, {"error": {"message": missing, "status": "NOT_FOUND"}})
        else:
            data = base64.b64encode(self.server.values[version]).decode()
            self.answer(200, {"name": version, "payload": {"data": data}})


class _Token(google.auth.credentials.Credentials):  # type: ignore[no-untyped-call,misc]
    def refresh(self, request: Any) -> None:
        self.token = "ya29.test"


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Iterator[SecretManager]:
    server = SecretManager()
    monkeypatch.setattr(secret_manager, "URL", server.url)
    monkeypatch.setattr(secret_manager, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(google.auth, "default", lambda scopes: (_Token(), "p-1"))
    yield server
    server.stop()


def test_a_key_is_read_by_its_name_and_masked_from_then_on(manager: SecretManager) -> None:
    manager.values[f"{SECRET}/versions/latest"] = b"read-here-alone"
    assert mask("401 for read-here-alone", {}) == "401 for read-here-alone"
    assert endpoint_of("judge", JUDGE).key == "read-here-alone"
    assert manager.seen == [(f"/v1/{SECRET}/versions/latest:access", "Bearer ya29.test")]
    assert mask("401 for read-here-alone", {}) == "401 for ***"
    assert masked_lines(b"a read-here-alone\nb\n") == b"a ***\nb\n"


def test_a_version_may_be_named_an_outage_is_waited_for_and_a_key_of_the_environment_comes_first(
    manager: SecretManager,
) -> None:
    manager.values[f"{SECRET}/versions/3"] = b"the-third-key\n"
    manager.errors += [503, 429]
    named = {**JUDGE, "JUDGE_API_KEY_SECRET": f"{SECRET}/versions/3"}
    assert endpoint_of("judge", named).key == "the-third-key"
    assert len(manager.seen) == 3
    assert endpoint_of("judge", {**named, "JUDGE_API_KEY": "my-own-key"}).key == "my-own-key"
    assert len(manager.seen) == 3


def test_names_of_secrets_are_no_secrets() -> None:
    """Else every message about them would be `***`."""
    said = f"cannot read {SECRET}"
    assert mask(said, {"OPENAI_API_KEY_SECRET": SECRET}) == said
    assert mask("it is projects/p", {"CLIENT_SECRET": "projects/p"}) == "it is ***"


def test_what_cannot_be_read_says_what_to_do(manager: SecretManager) -> None:
    def refused(words: str, **environment: str) -> None:
        with pytest.raises(InputError, match=words):
            endpoint_of("openai", environment)

    refused(r"set OPENAI_API_KEY, or OPENAI_API_KEY_SECRET")
    refused(r"OPENAI_API_KEY_SECRET='sk-1' is no name", OPENAI_API_KEY_SECRET="sk-1")
    hint = r"404 .*not found.*gcloud secrets versions add other .*--project=p-1"
    refused(hint, OPENAI_API_KEY_SECRET="projects/p-1/secrets/other")
    manager.errors.append(403)
    hint = r"OPENAI_API_KEY_SECRET: .*403 .*roles/secretmanager\.secretAccessor"
    refused(hint, OPENAI_API_KEY_SECRET=SECRET)
    manager.errors += [500] * 6
    refused("cannot be read: 500", OPENAI_API_KEY_SECRET=SECRET)
    manager.values[f"{SECRET}/versions/latest"] = b"\xff\xfe"
    refused("no text that could be a key", OPENAI_API_KEY_SECRET=SECRET)


# What travels with a job

ENDPOINT = {"name": "endpoint", "provider": "openai", "model": "m"}
JUDGED = {"rewards": [{"name": "format"}, {"name": "rubric_judge", "judge": ENDPOINT}]}


def test_urls_and_names_of_secrets_travel_and_keys_do_not() -> None:
    config = {**JUDGED, "teachers": [{"provider": "my-vllm"}], "model": "x"}
    environment = {
        "OPENAI_API_KEY": CANARY,
        "OPENAI_API_KEY_SECRET": SECRET,
        "MY_VLLM_BASE_URL": "http://10.0.0.7:8000/v1/",
        "HF_TOKEN": CANARY,
    }
    assert travelling(config, environment) == {
        "OPENAI_BASE_URL": "https://api.openai.com/v1",
        "OPENAI_API_KEY_SECRET": SECRET,
        "MY_VLLM_BASE_URL": "http://10.0.0.7:8000/v1",
    }
    assert travelling({"rewards": [{"name": "format"}], "provider": None}, {}) == {}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("", "OPENAI_API_KEY is not sent.*OPENAI_API_KEY_SECRET=projects/"),
        (f"API_KEY={CANARY}", "OPENAI_API_KEY is not sent"),
        (f"BASE_URL=http://10.0.0.7/v1 API_KEY={CANARY}", "OPENAI_API_KEY is not sent"),
        ("BASE_URL=http://127.0.0.1:8000/v1", "URL=http://127.0.0.1:8000/v1: that is this machine"),
        ("BASE_URL=http://localhost/v1", "that is this machine"),
        ("BASE_URL=http://[::1]/v1", "that is this machine"),
        ("API_KEY_SECRET=lyceum-key", "'lyceum-key' is no name of a secret"),
    ],
)
def test_what_cannot_be_had_on_a_vm_is_refused_with_the_variable_to_set(given, words):
    environment = dict(f"OPENAI_{one}".split("=") for one in given.split())
    with pytest.raises(InputError, match=words):
        travelling(JUDGED, environment)


ASKING = """name = "openai_compatible"
provider = "nowhere"
model = "m"
max_response_tokens = 16
prompts = [{ name = "procedural", rows = { summarization = 60 }, grounded = {} }]
"""


def test_a_run_is_refused_before_anything_is_submitted(tmp_path, monkeypatch):
    """Only for stages that will run on the TPU: those that stay at home, and those that are made
    already, ask nothing there."""
    monkeypatch.delenv("NOWHERE_BASE_URL", raising=False)
    recipe = re.sub(r'name = "procedural".*?grounded = {}\n', ASKING, TINY, flags=re.DOTALL)
    (tmp_path / "recipe.toml").write_text(recipe, encoding="utf-8")
    resolved, store = resolve(str(tmp_path / "recipe.toml")), open_store(tmp_path / "store")
    monkeypatch.setenv("LYCEUM_TPU_PROJECT", "a-project")
    check_away(resolved, store, "local", ())
    check_away(resolved, store, "v5e-8", ())  # distill stays at home
    away = replace(stage_kind("distill"), at_home=lambda config, inputs: False)
    monkeypatch.setattr("flows.recipe.resolve.stage_kind", lambda name: away)
    asked = Mock(side_effect=preamble.outlook)
    monkeypatch.setattr(preamble, "outlook", asked)
    with pytest.raises(InputError, match="stage distill: provider 'nowhere': set NOWHERE_BASE_URL"):
        check_away(resolved, store, "v5e-8", ())
    monkeypatch.setattr(preamble, "require_account", Mock(side_effect=InputError("no project")))
    with pytest.raises(InputError, match=r"set NOWHERE_BASE_URL.* no project"):  # both, asked once
        check_away(resolved, store, "v5e-8", ())
    assert asked.call_count == 2
    monkeypatch.setattr(preamble, "require_account", lambda target: None)
    monkeypatch.setenv("LYCEUM_LOCAL_KINDS", "distill")
    check_away(resolved, store, "v5e-8", ())


def test_a_job_for_a_machine_is_told_and_one_for_this_machine_is_not(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY_SECRET", SECRET)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    told: list[dict[str, str]] = []

    def submit(spec: JobSpec) -> JobHandle:
        told.append(spec.environment)
        return JobHandle(spec.store, spec.key, spec.attempt)

    failed = JobStatus(state="failed", heartbeat=0.0, error="that is enough", exit_code=1)
    machines = SimpleNamespace(
        attach=lambda *of: None,
        submit=submit,
        poll=lambda handle: failed,
        log=lambda handle, offset: ("", offset),
        cancel=lambda handle: None,
    )
    monkeypatch.setattr(follower, "backend", lambda target: machines)
    monkeypatch.setattr(stage, "get_run_logger", lambda: logging.getLogger("test"))
    WATCH.set(Watch())
    for target in ("v5e-8", "local"):
        job = {"stage": "s", "kind": "grpo", "key": "0" * 64, "target": target, "config": JUDGED}
        ended = stage.run_stage.fn({**job, "store": (tmp_path / target).as_uri()})
        assert ended.message == "that is enough"
    assert told == [
        {"OPENAI_BASE_URL": "https://api.openai.com/v1", "OPENAI_API_KEY_SECRET": SECRET},
        {},
    ]


# On the VM

CODE = """
import infra.tpu.secret_manager
infra.tpu.secret_manager.URL = {url!r}
from tasks.chat.provider import endpoint_of
endpoint = endpoint_of("judge")
print(f"url {{endpoint.url}} key {{endpoint.key}} {{len(endpoint.key)}}\\n", end="", flush=True)
raise StageFailed(f"the endpoint refuses {{endpoint.key}}")
"""


def test_on_a_vm_the_key_comes_with_the_machine_s_identity_and_is_left_nowhere(
    tmp_path: Path, gcs_bucket: str, manager: SecretManager
) -> None:
    """The real startup script, agent and worker, beside a metadata server: its token reads the
    secret, and no file holds the key."""
    store: Store = open_store(f"gs://{gcs_bucket}/lyceum")
    spec: JobSpec = toy_job(store, CODE.format(url=manager.url), environment=JUDGE)
    with machines() as running:
        vm = Vm(tmp_path, store, spec, ship_toy(store))
        running.append(vm)
        # where google-auth looks whether this is a VM
        vm.environment["GCE_METADATA_IP"] = vm.metadata.address
        del vm.environment["NO_GCE_CHECK"]  # of the bucket's emulator, which asks for no token
        vm.boot()
        final = vm.final(120)
        assert final.error == "the endpoint refuses ***", vm.serial
        assert f"url https://judge.example/v1 key *** {len(CANARY)}" in vm.log(final=True)
        (asked,) = manager.seen
        assert asked == (f"/v1/{SECRET}/versions/latest:access", "Bearer ya29.fake-lyceum-test-1-0")
        kept = {
            name: store.read_bytes(name) or b""
            for name in (one.name for one in store.objects("work"))
        }
        assert {Path(name).name for name in kept} >= {"job.json", "log.txt"}
        on_disk = {str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        assert [name for name, body in {**kept, **on_disk}.items() if CANARY.encode() in body] == []

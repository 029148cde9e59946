"""`lyceum endpoint` refuses what would lay a model open, before it loads anything."""

import socket

import pytest

from tests.flows.runs import synthetic_run


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    store, _ = synthetic_run.write_run(tmp_path_factory.mktemp("endpoint"))
    return ["endpoint", "demo-1", "--store", store.uri]


@pytest.fixture(autouse=True)
def nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LYCEUM_ENDPOINT_KEY", raising=False)
    monkeypatch.setattr("flows.cli.endpoint._find_devices", None)


@pytest.mark.parametrize(
    ("options", "key", "words"),
    [
        (["--host", "0.0.0.0"], None, "--host 0.0.0.0 lets other machines ask, so a key is needed"),
        (["--host", "0.0.0.0"], "short", "a key has at least 8 characters"),
        ([], "with blanks in it", "without blanks"),
        (["--port", "70000"], None, "--port 70000 is not a TCP port"),
        (["--stage", "distill"], None, "has no trained model. Stages with one"),
        (["--host", "192.0.2.1"], "a-key-of-the-test", "cannot be used"),
        (["--host", "x" * 64], "a-key-of-the-test", "(no host has such a name)"),
    ],
)
def test_what_cannot_be_served_is_refused(command, monkeypatch, lyceum, options, key, words):
    if key:
        monkeypatch.setenv("LYCEUM_ENDPOINT_KEY", key)
    said = lyceum(*command, *options, code=2).err
    assert words in said
    assert said.count("\n") == 1
    assert key is None or key not in said


def test_a_port_that_is_taken_is_named(command, lyceum):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"--port {port} cannot be used" in lyceum(*command, "--port", port, code=2).err

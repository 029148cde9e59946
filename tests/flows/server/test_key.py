"""The key of a server of ours: where it is, where it never is, and who is given it.

A server that merely listens on this machine is neither adopted nor given the key.
"""

import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
from prefect.settings import (
    PREFECT_API_AUTH_STRING,
    PREFECT_API_SSL_CERT_FILE,
    PREFECT_API_URL,
    PREFECT_HOME,
    temporary_settings,
)

from flows.server import key as keys
from flows.server import prefect_api as module
from flows.server.key import FILE, Api, as_header, new_key, proof, proves, read, write
from flows.server.port import bound
from flows.server.prefect_api import api_problem, configured_api, prefect_api
from infra.process import ROOT
from infra.secrets import mask
from tests.fakes.http import Handler, HttpServer


class Foreign(HttpServer):
    """A server of somebody else: it says that it is well, and, if told to, relays what it is asked
    to prove. `heard` is all that it was told."""

    def __init__(self, relay: str = "") -> None:
        heard = self.heard = list[str]()

        class Answering(Handler):
            def do_GET(self) -> None:
                heard.append(f"{self.path} {self.headers}")
                asked = relay and "proof" in self.path
                self.answer(200, urlopen(relay + self.path).read() if asked else b"true")

        super().__init__(Answering)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A Prefect home of its own, and no API configured."""
    with temporary_settings(
        {PREFECT_HOME: tmp_path}, restore_defaults={PREFECT_API_URL, PREFECT_API_AUTH_STRING}
    ):
        yield tmp_path


def api_at(server: HttpServer) -> Api:
    return Api(f"{server.url}/api", new_key())


def test_the_file_is_the_users_alone_and_is_not_believed_otherwise(home: Path) -> None:
    api = Api("http://127.0.0.1:4200/api", "me:a pass'word $HOME")
    path = write(home, api)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read(home) == api
    command = ["sh", "-c", f'. "{path}"; echo "$PREFECT_API_AUTH_STRING"']
    assert subprocess.check_output(command, text=True) == "me:a pass'word $HOME\n"
    path.chmod(0o640)
    assert read(home) is None
    for text in ("", "PREFECT_API_URL=x", "'", "PREFECT_API_AUTH_STRING=x"):
        (home / FILE).write_text(text)
        (home / FILE).chmod(0o600)
        assert read(home) is None


def test_a_foreign_server_on_our_port_is_not_ours_and_hears_no_key(home: Path) -> None:
    with Foreign() as foreign:
        api = api_at(foreign)
        write(home, api)
        assert keys.ours(home) is None
        with temporary_settings({PREFECT_API_URL: api.url}):
            configured = configured_api()
        assert configured == Api(api.url), "it is used, because the user says so; without our key"
    assert foreign.heard
    assert not [one for one in foreign.heard if api.key in one or as_header(api.key) in one]


def test_a_proof_that_is_relayed_from_our_server_counts_for_nothing(home: Path) -> None:
    key = new_key()

    class Ours(Handler):
        def do_GET(self) -> None:
            nonce = self.path.partition("nonce=")[2]
            self.answer(200, proof(key, nonce, self.server.server_address[1]))

    with HttpServer(Ours) as server:
        assert proves(Api(f"{server.url}/api", key)), "the control"
        with Foreign(relay=server.url) as foreign:
            assert not proves(Api(f"{foreign.url}/api", key))
            assert any("proof" in one for one in foreign.heard)


def test_a_run_adopts_no_server_that_merely_listens(home, monkeypatch):
    """Not even on Prefect's usual port, with a file that names it."""
    started: list[int] = []

    @contextmanager
    def server(port: int, *_: object, **__: object) -> Iterator[Api]:
        started.append(port)
        yield Api(f"http://127.0.0.1:{port}/api", new_key())

    monkeypatch.setattr(module, "prefect_server", server)
    with Foreign() as foreign:
        write(home, api_at(foreign))
        with prefect_api(threading.Event(), print) as api:
            assert [urlsplit(api.url).port] == started
    assert all("Authorization" not in one for one in foreign.heard)


@pytest.mark.parametrize("health", ["/health", "nowhere"])
def test_an_api_that_asks_for_a_key_is_named(home: Path, health: str) -> None:
    """Prefect Cloud asks also whoever wants to know whether it is healthy."""

    class Asks(Handler):
        def do_GET(self) -> None:
            right = self.headers["Authorization"] == f"Basic {as_header('me:secret-one')}"
            self.answer(200 if right or self.path.endswith(health) else 401, b"")

    with HttpServer(Asks) as server:
        url = f"{server.url}/api"
        assert "asks for a key; set PREFECT_API_AUTH_STRING" in (api_problem(Api(url)) or "")
        assert api_problem(Api(url, "me:secret-one")) is None


@pytest.mark.parametrize("trusted", [True, False])
def test_an_api_with_a_certificate_of_its_own_answers_whom_prefect_trusts(home, trusted):
    made = home / "made.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "1"]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    subprocess.run([*command, "-nodes", "-keyout", made, "-out", made, *names], check=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(made)
    with Foreign() as foreign:
        foreign.socket = tls.wrap_socket(foreign.socket, server_side=True)
        api = Api(f"https://{foreign.address}/api")
        with temporary_settings({PREFECT_API_SSL_CERT_FILE: str(made) if trusted else None}):
            assert (api_problem(api) is None) == trusted


def test_the_key_is_masked_in_every_form(home: Path) -> None:
    api = Api("http://127.0.0.1:1/api", key := new_key())
    password = key.partition(":")[2]
    for text in (key, f"Authorization: Basic {as_header(key)}", f"password {password}"):
        assert password not in mask(text)
        assert as_header(key) not in mask(text)
    assert key not in repr(api)


def test_the_same_server_has_other_names() -> None:
    api = Api("http://127.0.0.1:4300/api")
    others = ("http://localhost:4200", "https://prefect.example:4300", "http://localhost:port")
    same = [keys.same_server(f"{url}/api", api) for url in ("http://localhost:4300", *others)]
    assert same == [True, False, False, False]


def test_a_port_is_held_while_nobody_listens_on_it() -> None:
    """So that a server of another user does not get it between two lives of ours. Sockets of ours
    may share it."""
    with bound("127.0.0.1", 0) as held:
        port = held.getsockname()[1]
        bound("127.0.0.1", port).close()
        with socket.socket() as foreign:
            foreign.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with pytest.raises(OSError, match="in use"):
                foreign.bind(("127.0.0.1", port))
        with bound("127.0.0.1", port) as listening:
            listening.listen()
            with pytest.raises(OSError, match="in use"):
                bound("127.0.0.1", port)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_another_user_cannot_share_the_port() -> None:
    with bound("127.0.0.1", 0) as held:
        code = (
            "import encodings.idna, os, sys; from flows.server.port import bound; os.setuid(65534);"
            " bound('127.0.0.1', int(sys.argv[1]))"
        )
        command = [sys.executable, "-c", code, str(held.getsockname()[1])]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert "Address already in use" in done.stderr

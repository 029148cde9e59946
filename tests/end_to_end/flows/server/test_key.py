"""The temporary Prefect server has a key, and no command line, log, file or environment shows
it."""

import os
import threading
from pathlib import Path

from flows.cli.doctor import _prefect
from flows.server.deploy import exposures
from flows.server.key import FILE, as_header, proves, write
from flows.server.prefect_api import TEMPORARY, free_port, prefect_server
from flows.server.serve import template
from tests.flows.server import test_key

home = test_key.home


def test_the_temporary_server_has_a_key_that_no_command_line_shows(home, monkeypatch):
    """And no log, no file of the Prefect home, and no environment of this process."""
    monkeypatch.setenv("PREFECT_SERVER_API_AUTH_STRING", "not:the-one-of-the-user")
    with prefect_server(free_port(), TEMPORARY, threading.Event(), print, print) as api:
        key = api.key or ""
        assert len(key) > 40
        assert key != "not:the-one-of-the-user"
        assert proves(api)
        assert exposures(api, template()) == [], "what `lyceum deploy` would say of it"
        places = Path("/proc").glob("[0-9]*/cmdline")
        commands = [path.read_bytes() for path in places if path.exists()]
        assert any(b"flows.server.guard" in one for one in commands)
        assert not any(key.encode() in one for one in commands)
        assert key not in os.environ.values()
        assert FILE not in [path.name for path in home.iterdir()]
        file = write(home, api)
        assert _prefect().found.startswith(f"{api} is `lyceum serve`, and has proven it")
        file.unlink()
    files = [path for path in home.rglob("*") if path.is_file()]
    assert files, "the database is there"
    for path in files:
        assert key.encode() not in path.read_bytes(), path
        assert as_header(key).encode() not in path.read_bytes(), path

"""Which pages may use a server of ours, in a real Chromium: none of another origin, nor one whose
name was rebound to us.

`attack.js` is what the hostile page does. The last test is the control: against a server as
`prefect server start` starts it, it works.
"""

import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from flows.server import process_tree
from flows.server.prefect_api import QUIET, answers, free_port
from tests.fakes.chromium import Browser, chromium
from tests.fakes.http import Handler, HttpServer
from tests.flows.server.served import Served, until

ATTACK = Path(__file__).with_name("attack.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module", autouse=True)
def _victim(served: Served) -> None:
    served.ask("/variables/", {"name": "victim", "value": "as it was"})


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium("--host-resolver-rules=MAP evil.test 127.0.0.1") as launched:
        yield launched


class Blank(Handler):
    """The hostile page."""

    def do_GET(self) -> None:
        self.answer(
            200, "<!doctype html><title>hostile</title><body>", {"Content-Type": "text/html"}
        )


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[int]:
    """The port of the hostile page's server."""
    with HttpServer(Blank) as server:
        yield server.server_port


@pytest.mark.parametrize("kind", ["another port", "another name", "a rebound name", "a file"])
def test_a_foreign_page_gets_nothing_and_changes_nothing(
    served: Served, browser: Browser, elsewhere: int, kind: str, tmp_path: Path
) -> None:
    """Of a rebound name the page has the very origin that it asks, `http://evil.test:PORT`, and no
    CORS rule holds it back."""
    rebound = f"http://evil.test:{served.port}"
    (tmp_path / "page.html").write_text("<!doctype html><body>", encoding="utf-8")
    origin, api = {
        "another port": (f"http://127.0.0.1:{elsewhere}", served.api),
        "another name": (f"http://evil.test:{elsewhere}", served.api),
        "a rebound name": (rebound, f"{rebound}/api"),
        "a file": ((tmp_path / "page.html").as_uri(), served.api),
    }[kind]
    page = browser.new_page()
    if kind == "a rebound name":  # what the name stood for before
        page.route(
            f"{rebound}/",
            lambda route: route.fulfill(body="<!doctype html><body>", content_type="text/html"),
        )
    page.goto(origin)
    mark = served.root / f"mark of {kind}".replace(" ", "-")
    found = page.evaluate(ATTACK.replace("MARK", str(mark)), api)
    page.close()
    assert len(found) > 30, "the script came to its end"
    assert {name: got for name, got in found.items() if got is not None} == {}
    assert served.ask("/flows/filter", {"flows": {"name": {"any_": ["attack"]}}}) == []
    assert served.ask("/flow_runs/filter", {"flow_runs": {"name": {"any_": ["attack"]}}}) == []
    assert [one["value"] for one in served.ask("/variables/filter", {})] == ["as it was"]
    assert served.ask("/events/filter", {"filter": {"event": {"name": ["attack"]}}})["events"] == []
    assert not mark.exists()


WORKING = {
    "read deployments, text/plain",
    "create a flow, application/json",
    "create a deployment",
    "read with GET",
    "change a variable",
    "delete a variable",
    "websocket /events/in []",
    "websocket /events/out [prefect]",
}


def victim(api: str) -> urllib.request.Request:
    body = b'{"name": "victim", "value": "1"}'
    return urllib.request.Request(f"{api}/variables/", body, {"Content-Type": "application/json"})


def test_the_attack_works_on_a_server_that_is_open(browser, elsewhere, tmp_path):
    """What the tests above would show if the guard and the key did nothing."""
    port = free_port()
    environment = {
        **os.environ,
        **QUIET,
        "PREFECT_HOME": str(tmp_path),
        "PREFECT_SERVER_API_PORT": str(port),
    }
    api = f"http://127.0.0.1:{port}/api"
    with tempfile.TemporaryFile() as log:
        server = process_tree.start(
            "prefect", "server", "start", "--port", str(port), environment=environment, log=log
        )
        try:
            until(lambda: answers(api))
            page = browser.new_page()
            for origin, asked in (
                (f"http://evil.test:{elsewhere}", api),
                (f"http://evil.test:{port}", f"http://evil.test:{port}/api"),
            ):
                worked: set[str] = set()
                for _ in range(3):  # a server that is busy with the one attack may refuse another
                    with suppress(urllib.error.HTTPError):  # it is there already
                        urllib.request.urlopen(victim(api)).close()
                    page.goto(origin)
                    got = page.evaluate(ATTACK, asked)
                    worked |= {name for name, one in got.items() if one is not None}
                    if worked >= WORKING:
                        break
                assert worked >= WORKING
        finally:
            process_tree.stop(server)

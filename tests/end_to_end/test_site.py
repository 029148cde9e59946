"""The pages of docs/ as a site: what makes its build fail, and how it looks in a real Chromium that
reaches its server alone.

Pictures are kept where LYCEUM_TEST_PICTURES says, for people to look at.
"""

import functools
import http.server
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("mkdocs", reason="it comes with `uv sync --group docs`")

from infra.process import ROOT

PAGES = ("", "troubleshooting/", "recipes/", "security/", "architecture/", "commands/")
PAGES += ("source/infra/", "source/tasks/stages/grpo.py/", "notebooks/kaggle/", "python/")
LINKS = ("gone.md", "../tasks/gone.py", "tpu.md#nowhere", "../infra/README.md#nothing")
"""What the page on models, which is none of PAGES, links to in the copy that is built."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> "subprocess.CompletedProcess[str]":
    """The build of a copy with links that lead nowhere, run in the directory of the copy. MkDocs
    writes all pages to site/ before warnings make it fail."""
    copy = tmp_path_factory.mktemp("copy")
    for one in ROOT.iterdir():
        if one.name not in ("docs", "mkdocs.yml", "build"):
            (copy / one.name).symlink_to(one)
    shutil.copytree(ROOT / "docs", copy / "docs")
    shutil.copy(ROOT / "mkdocs.yml", copy)
    with (copy / "docs" / "models.md").open("a", encoding="utf-8") as page:
        page.writelines(f"\n[a link]({link})\n" for link in LINKS)
    # as in .ci/run: with --quiet MkDocs hears no warnings, so strict finds none
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(copy / "site")]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(built: "subprocess.CompletedProcess[str]") -> Path:
    return Path(built.args[-1])


def test_links_that_lead_nowhere_and_no_others_fail_the_build(built):
    assert built.returncode != 0
    for link in ("gone.md", "../tasks/gone.py", "#nowhere", "#nothing"):
        assert f"{link}'" in built.stderr, built.stderr
    assert built.stderr.count("WARNING") == len(LINKS)


def test_a_file_outside_docs_has_a_page_and_links_back(site: Path) -> None:
    readme = (site / "source" / "index.html").read_text(encoding="utf-8")
    assert 'href="../recipes/"' in readme
    assert 'src="../report.png"' in readme
    code = (site / "source" / "tasks" / "stages" / "grpo.py" / "index.html").read_text("utf-8")
    assert "KIND" in code
    project = (site / "source" / "infra" / "index.html").read_text(encoding="utf-8")
    assert "From an empty Google Cloud project" in project
    kinds = (site / "source" / "tasks" / "stages" / "index.html").read_text(encoding="utf-8")
    assert "<code>grpo.py</code>" in kinds
    tutorial = (site / "notebooks" / "reward" / "index.html").read_text(encoding="utf-8")
    assert 'href="../report/"' in tutorial
    assert 'href="../reward.ipynb">Download' in tutorial


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    handler = functools.partial(Handler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_pages_are_read_on_a_phone_and_in_the_dark_without_a_network(address, width, scheme):
    """No page is wider than the screen, nothing is asked of another host or missing, and text is
    light where the reader's machine is dark."""
    pytest.importorskip("playwright", reason="uv sync --group ci")
    from tests.fakes.chromium import chromium, picture

    with chromium() as browser:
        size = {"width": width, "height": 844}
        page = browser.new_page(viewport=size, color_scheme=scheme)
        asked: list[str] = []
        missing: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.on("response", lambda got: missing.append(got.url) if got.status >= 400 else None)
        for name in PAGES:
            page.goto(address + name)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
            colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
            red = int(colour.partition("(")[2].partition(",")[0])
            assert (red < 80) == (scheme == "dark"), (name, colour)
            shown = name.strip("/").replace("/", "-") or "index"
            picture(page, f"site-{shown}-{width}-{scheme}")
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []
    assert missing == []

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

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
PAGES = ("", "troubleshooting/", "recipes/", "security/", "architecture/", "commands/")
PAGES += ("source/infra/", "source/tasks/stages/grpo.py/", "notebooks/kaggle/", "python/")


def build(checkout: Path, site: Path) -> subprocess.CompletedProcess[str]:
    # as in .ci/run: with --quiet MkDocs hears no warnings, so strict finds none
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(site)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("site")
    built = build(ROOT, place)
    assert built.returncode == 0, built.stderr
    return place


def test_links_that_lead_nowhere_fail_the_build(tmp_path: Path) -> None:
    for one in ROOT.iterdir():
        if one.name not in ("docs", "mkdocs.yml", "build"):
            (tmp_path / one.name).symlink_to(one)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    links = ("gone.md", "../tasks/gone.py", "tpu.md#nowhere", "../infra/README.md#nothing")
    with (tmp_path / "docs" / "models.md").open("a", encoding="utf-8") as page:
        page.writelines(f"\n[a link]({link})\n" for link in links)
    built = build(tmp_path, tmp_path / "site")
    assert built.returncode != 0
    for link in ("gone.md", "../tasks/gone.py", "#nowhere", "#nothing"):
        assert f"{link}'" in built.stderr, built.stderr
    assert built.stderr.count("WARNING") == len(links)


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
    playwright = pytest.importorskip("playwright.sync_api", reason="uv sync --group ci")
    with playwright.sync_playwright() as started:
        try:
            browser = started.chromium.launch(executable_path=CHROMIUM)
        except playwright.Error as error:
            pytest.skip(f"no Chromium: install the package `chromium` ({error.message[:200]})")
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
            if pictures := os.environ.get("LYCEUM_TEST_PICTURES"):
                shown = name.strip("/").replace("/", "-") or "index"
                page.screenshot(path=Path(pictures) / f"site-{shown}-{width}-{scheme}.png")
        browser.close()
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []
    assert missing == []

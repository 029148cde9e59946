"""A real headless Chromium, for tests of pages; they are skipped, and say so, where none is."""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="it comes with `uv sync --group ci`")
from playwright.sync_api import Browser, Error, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = (
    "--no-sandbox",  # root has none, in containers and in CI
    *("--disable-gpu", "--disable-quic", "--disable-sync", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update"),
)


@contextmanager
def chromium(*more: str) -> Iterator[Browser]:
    """Launch it; `more` are arguments of its command line."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    arguments: Sequence[str] = [*ARGUMENTS, *more]
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=found, args=list(arguments))
        except Error as error:
            why = error.message.splitlines()[0]
            pytest.skip(f"no Chromium: install the package `chromium` ({why})")
        yield browser
        browser.close()


def picture(page: Page, name: str) -> None:
    """Keep a picture of a page where LYCEUM_TEST_PICTURES says, for people to look at."""
    directory = os.environ.get("LYCEUM_TEST_PICTURES")
    if directory:
        page.wait_for_timeout(2500)  # for the eye: pages build themselves up
        page.screenshot(path=Path(directory) / f"{name}.png", full_page=True)

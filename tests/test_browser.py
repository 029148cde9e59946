"""`lyceum serve` in a real browser: what people click, and what they see. Needs Chromium (`apt-get install chromium`).

With LYCEUM_SCREENSHOTS=DIR every step leaves a picture there.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.served import FINAL, SLOW, Served, until

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH: apt-get install chromium")]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("browsed")) as running:
        yield running


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1400, "height": 1300})
        tab.set_default_timeout(90_000)
        yield tab
        browser.close()


def look(page: Any, name: str) -> None:
    directory = os.environ.get("LYCEUM_SCREENSHOTS")
    if directory:
        page.wait_for_timeout(2000)  # until what moves has settled
        page.screenshot(path=Path(directory, f"{name}.png"))


def fill_in(served: Served, page: Any, recipe: Path | str, override: str = "") -> str:
    """Open the form as `serve` said, fill it in and submit it; returns the flow run's id."""
    known = {one["id"] for one in served.ask("/flow_runs/filter", {})}
    page.goto(served.said.split("Start a run: ")[1].split()[0])
    if isinstance(recipe, Path):
        page.get_by_role("tab", name="Path of a TOML file").click()
        page.get_by_role("tabpanel").locator("textarea").fill(str(recipe))
    if override:
        page.get_by_role("button", name="Add item").first.click()
        page.get_by_text("Overrides (Optional)").locator("xpath=following::textarea[1]").fill(override)
    look(page, f"form-{len(known)}")
    page.get_by_role("button", name="Submit").press("Enter")
    until(lambda: {one["id"] for one in served.ask("/flow_runs/filter", {})} - known)
    (run,) = {one["id"] for one in served.ask("/flow_runs/filter", {})} - known
    return str(run)


def open_run(served: Served, page: Any, run: str) -> None:
    page.goto(f"{served.ui}/v2/runs/flow-run/{run}")
    page.get_by_role("tab", name="Task Runs").click()


def choose(page: Any, item: str) -> None:
    """An item of the run's menu, and yes to the question that follows."""
    page.locator("main button[aria-haspopup=menu]").first.click()
    page.get_by_role("menuitem", name=item).click()
    page.get_by_role("alertdialog").or_(page.get_by_role("dialog")).get_by_role("button", name=item).last.click()


def test_the_form_asks_for_what_a_run_needs(served: Served, page: Any) -> None:
    page.goto(served.said.split("Start a run: ")[1].split()[0])
    for title in ("Recipe", "Target", "Store", "Overrides", "Data directory", "Run again"):
        page.get_by_text(f"{title} (Optional)").wait_for()
    page.get_by_text("Where jobs run: on the machine that runs the flow, or on a TPU in the cloud.").wait_for()
    page.get_by_text("quickstart", exact=True).first.wait_for()


def test_a_run_goes_wrong_is_retried_and_goes_on_from_what_is_cached(served: Served, page: Any, tiny_recipe: Path) -> None:
    whole = tiny_recipe.read_text(encoding="utf-8")
    tiny_recipe.write_text(whole.replace("train = 20", "train = 2000"), encoding="utf-8")
    run = fill_in(served, page, tiny_recipe)
    until(lambda: served.state(run)["type"] in FINAL)
    open_run(served, page, run)
    panel = page.get_by_role("tabpanel")
    panel.get_by_text("distill").first.wait_for()
    panel.get_by_text("Bad input").first.wait_for()
    look(page, "failed")
    page.get_by_role("tab", name="Details").click()
    page.get_by_text("the quotas ask for more rows than distill produced").first.wait_for()
    look(page, "failed-why")

    tiny_recipe.write_text(whole, encoding="utf-8")
    choose(page, "Retry")
    until(lambda: served.state(run)["type"] == "COMPLETED")
    open_run(served, page, run)
    panel.get_by_text("Cached").first.wait_for()
    panel.get_by_text("Completed").first.wait_for()
    look(page, "retried")
    assert served.stages(run) == {"distill": "Cached", "rebalance": "Completed"}
    page.get_by_role("tab", name="Artifacts").click()
    page.get_by_text("tiny-plan").first.wait_for()
    page.get_by_text("tiny-stages").first.wait_for()
    look(page, "artifacts")


def test_cancel_stops_the_job(served: Served, page: Any, tiny_recipe: Path) -> None:
    run = fill_in(served, page, tiny_recipe, SLOW)
    until(lambda: any("tasks.worker" in command for command in served.processes().values()))
    open_run(served, page, run)
    page.get_by_role("tabpanel").get_by_text("Running").first.wait_for()
    look(page, "running")
    choose(page, "Cancel")
    until(lambda: served.state(run)["type"] == "CANCELLED")
    page.get_by_text("Cancelled").first.wait_for()
    look(page, "cancelled")
    until(lambda: not any("tasks.worker" in command for command in served.processes().values()), seconds=60)
    assert served.records()[-1].status == "cancelled"

"""The Prefect UI as people use it, in a real headless Chromium: the form, a stage that breaks,
Retry, the artifacts, Cancel.

Pictures of every page are kept where LYCEUM_TEST_PICTURES says, for people to look at. What other
pages can do: test_server_browser.py.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="it comes with `uv sync --group ci`")
from playwright.sync_api import Page, expect
from playwright.sync_api import TimeoutError as PlaywrightTimeoutError

from tests.fakes.chromium import chromium, picture
from tests.flows.lab import SLOW
from tests.flows.server.served import PATIENCE, Served, until

NIGHTLY = "/deployments/name/nightly/nightly"


@pytest.fixture(scope="module")
def page(served: Served) -> Iterator[Page]:
    """A browser that was let in by the link that `lyceum serve` printed."""
    with chromium() as browser:
        made = browser.new_page(viewport={"width": 1400, "height": 1300})
        made.set_default_timeout(1000 * PATIENCE)
        expect.set_options(timeout=1000 * PATIENCE)
        said: list[str] = []
        made.on("console", lambda message: said.append(message.text))
        made.on("pageerror", lambda error: said.append(str(error)))
        made.goto(served.link)
        expect(made.get_by_text("What to train: one that comes with Lyceum")).to_be_visible()
        picture(made, "let-in")
        yield made
        # Prefect's pages report what people do to amplitude.com; the hostile text is that of the
        # last test.
        refused = filter(re.compile("Content Security Policy|unsafe-eval").search, said)
        ours = re.compile("amplitude.com|elsewhere.invalid|inline|javascript:")
        kept_out = [text for text in refused if not ours.search(text)]
        assert kept_out == [], "our policy breaks nothing else of Prefect's pages"


def open_form(page: Page, served: Served) -> None:
    """From the front page to the form, by clicking."""
    page.goto(served.ui)
    page.get_by_role("link", name="Deployments").click()
    page.locator("a[href*='/deployments/deployment/']", has_text="post-train").click()
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Custom run").click()
    expect(page.get_by_text("What to train: one that comes with Lyceum")).to_be_visible()


def choose_file(page: Page, path: Path) -> None:
    page.get_by_role("tab", name="Path of a TOML file").click()
    page.get_by_role("tabpanel").locator("textarea").fill(str(path))


def add_override(page: Page, text: str) -> None:
    page.get_by_role("button", name="Add item").first.click()
    page.get_by_text("Overrides (Optional)").locator("xpath=following::textarea[1]").fill(text)


def submit(page: Page, served: Served) -> str:
    """Submit the form and open the page of the run that it made; returns the flow run's id."""
    asked = re.compile(r"/create_flow_run$")
    for _ in range(20):  # it takes nothing before all of it has loaded, and says nothing
        try:
            with page.expect_request(asked, timeout=15_000) as request:
                page.get_by_role("button", name="Submit").press("Enter")
        except PlaywrightTimeoutError:
            continue
        break
    answer = request.value.response()
    assert answer is not None
    assert answer.status == 201, answer.text()  # the guard asks a busy database again
    page.wait_for_url(re.compile(r"/deployments/deployment/[0-9a-f-]*\?"))
    newest = {"sort": "EXPECTED_START_TIME_DESC", "limit": 1}
    run = str(served.ask("/flow_runs/filter", newest)[0]["id"])
    page.goto(f"{served.ui}/v2/runs/flow-run/{run}")
    return run


def menu(page: Page, item: str) -> None:
    """Choose from a run's menu, and confirm."""
    page.locator("main button[aria-haspopup=menu]").first.click()
    page.get_by_role("menuitem", name=item).click()
    page.get_by_role("alertdialog").get_by_role("button").last.click()


def test_the_form_says_what_it_does_not_take(served: Served, page: Page) -> None:
    open_form(page, served)
    for field in ("Recipe", "Target", "Store", "Overrides", "Data directory", "Run again"):
        expect(page.get_by_text(f"{field} (Optional)")).to_be_visible()
    expect(page.get_by_role("tab", name="Comes with Lyceum")).to_be_visible()
    picture(page, "form")
    add_override(page, "stages.distill.config.seed")
    page.get_by_role("button", name="Submit").press("Enter")
    expect(page.get_by_text("does not match").first).to_be_visible()
    picture(page, "form-refused")


def test_a_run_breaks_is_retried_and_shows_what_it_made(served, page, tiny_recipe):
    whole = tiny_recipe.read_text(encoding="utf-8")
    tiny_recipe.write_text(
        whole.replace("summarization = { train", "science = { train"), encoding="utf-8"
    )

    open_form(page, served)
    choose_file(page, tiny_recipe)
    add_override(page, "stages.distill.config.seed=3")
    run = submit(page, served)

    expect(page.get_by_text("Failed", exact=True).first).to_be_visible()
    page.get_by_role("tab", name="Task Runs").click()
    expect(page.get_by_text("1 Completed").first).to_be_visible()
    picture(page, "failed-stages")
    page.get_by_role("tab", name="Details").click()
    expect(
        page.get_by_text("stage rebalance: the quotas ask for more rows than distill produced")
    ).to_be_visible()
    picture(page, "failed-details")
    page.get_by_role("tab", name="Logs").click()
    expect(page.get_by_text("Beginning flow run").first).to_be_visible()
    expect(page.get_by_text("Traceback")).to_have_count(0)
    picture(page, "failed-logs")

    tiny_recipe.write_text(whole, encoding="utf-8")
    menu(page, "Retry")
    expect(page.get_by_text("Completed", exact=True).first).to_be_visible()
    page.get_by_role("tab", name="Task Runs").click()
    expect(page.get_by_text("1 Cached").first).to_be_visible()
    picture(page, "retried-stages")
    assert served.stages(run) == {"distill": "Cached", "rebalance": "Completed"}

    artifacts = f"{served.ui}/v2/runs/flow-run/{run}?tab=Artifacts"
    page.goto(artifacts)
    expect(page.get_by_role("link", name="tiny-plan").first).to_be_visible()
    picture(page, "artifacts")
    for name, shown in (
        ("plan", "To run: "),
        ("stages", "rebalance"),
        ("report", "succeeded"),
        ("plots", "Time per stage"),
    ):
        page.goto(artifacts)
        page.get_by_role("link", name=f"tiny-{name}").first.click()
        page.locator("a[href*='/artifacts/artifact/']").first.click()  # the newest of its versions
        expect(page.get_by_text(shown).first).to_be_visible()
        picture(page, f"artifact-{name}")
    plot = page.locator("img[src^='data:image/svg']").first
    expect(plot).to_be_visible()
    assert plot.evaluate("image => image.naturalWidth") > 0, "the browser can draw it"


def test_cancel_leaves_nothing(served: Served, page: Page, tiny_recipe: Path) -> None:
    open_form(page, served)
    choose_file(page, tiny_recipe)
    add_override(page, SLOW)
    run = submit(page, served)
    expect(page.get_by_text("Running", exact=True).first).to_be_visible()
    until(lambda: any("tasks.worker" in command for command in served.processes().values()))
    picture(page, "running")
    menu(page, "Cancel")
    expect(page.get_by_text("Cancelled", exact=True).first).to_be_visible()
    picture(page, "cancelled")
    assert served.records()[-1].status == "cancelled"
    assert "Beginning flow run" in served.logs(run)
    of_a_run = re.compile(r"tasks\.worker|engine")
    until(lambda: not any(map(of_a_run.search, served.processes().values())), seconds=60)


def test_one_click_switches_the_nightly_schedule_on_and_off(served: Served, page: Page) -> None:
    """It is off at first."""
    page.goto(f"{served.ui}/v2/deployments")
    expect(page.get_by_text(re.compile("At 02:00 AM")).first).to_be_visible()
    expect(page.get_by_text("Paused").first).to_be_visible()
    picture(page, "deployments")
    page.locator("a[href*='/deployments/deployment/']", has_text="nightly").click()
    schedule = page.locator("main").get_by_role("switch").last
    expect(schedule).not_to_be_checked()

    def switched(active: bool) -> bool:
        """Prefect's page loses a click while it loads, or still writes the one before."""
        schedule.click()
        with suppress(AssertionError):
            expect(schedule).to_be_checked(checked=active, timeout=20_000)
        return schedule.is_checked() == active

    for active in (True, False):
        until(partial(switched, active))
        until(lambda wanted=active: served.ask(NIGHTLY)["schedules"][0]["active"] == wanted)
        if active:
            picture(page, "schedule")
            page.reload()
            expect(schedule).to_be_checked()


def test_a_link_that_was_used_lets_nobody_in(served: Served, page: Page) -> None:
    other = page.context.browser
    stranger = other.new_page()
    stranger.goto(served.link)
    expect(stranger.get_by_text("This link was used before, or has expired.")).to_be_visible()
    assert stranger.evaluate("localStorage.length") == 0
    picture(stranger, "link-used")
    stranger.close()


def test_the_login_page_takes_the_key(served: Served, page: Page) -> None:
    other = page.context.browser
    stranger = other.new_page()
    stranger.goto(f"{served.ui}/v2/deployments")
    field = stranger.locator("input[type=password]")
    expect(field).to_be_visible()
    field.fill("lyceum:guessed")
    with stranger.expect_response(lambda answer: answer.status == 401):
        field.press("Enter")
    expect(field).to_be_visible()
    picture(stranger, "login")
    field.fill(served.reach.key or "")
    field.press("Enter")
    expect(field).to_have_count(0)  # the page keeps the key only once the server has answered
    stranger.goto(f"{served.ui}/v2/deployments")
    expect(stranger.get_by_text("post-train").first).to_be_visible()
    stranger.close()


def test_the_older_pages_work_too(served: Served, page: Page, tiny_recipe: Path) -> None:
    run = served.start(recipe=str(tiny_recipe))
    page.goto(f"{served.ui}/deployments")
    expect(page.get_by_text("post-train").first).to_be_visible()
    picture(page, "v1-deployments")
    page.goto(f"{served.ui}/runs/flow-run/{run}")
    expect(page.get_by_text("Beginning flow run").first).to_be_visible()
    picture(page, "v1-run")
    served.ended(run)


HOSTILE = """
<script>window.owned = 1</script><img src=x onerror="window.owned = 1">
<svg onload="window.owned = 1"></svg> <iframe srcdoc="<script>parent.owned = 1</script>"></iframe>
![pixel](http://elsewhere.invalid/pixel?a=1) [link](javascript:window.owned=1)

harmless
"""


def test_text_of_a_model_runs_no_script_in_the_pages(served: Served, page: Page) -> None:
    """Held-out answers are shown as a Prefect artifact, and the page that shows it has the key."""
    made = served.ask("/artifacts/", {"key": "hostile", "type": "markdown", "data": HOSTILE})
    asked: list[str] = []
    page.on("requestfinished", lambda request: asked.append(request.url))
    for place in ("/v2/artifacts/artifact", "/artifacts/artifact"):
        page.goto(f"{served.ui}{place}/{made['id']}")
        expect(page.get_by_text("harmless").first).to_be_visible()
        for link in page.locator("a[href^='javascript:']").all():
            link.click()
        page.wait_for_timeout(500)
        assert page.evaluate("window.owned") is None
        assert page.evaluate("localStorage.getItem('prefect-password')"), (
            "the control: a script would have found it"
        )
    assert not [url for url in asked if "elsewhere.invalid" in url]

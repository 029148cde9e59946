"""The report as people see it, in a real headless Chromium: offline, on a phone, in the dark, with
its filters, however large the run.

Pictures are kept where LYCEUM_TEST_PICTURES says, for people to look at.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="it comes with `uv sync --group ci`")
from playwright.sync_api import Locator

from flows.report.comparison import render_comparison
from flows.runs.compare import compare_runs
from schemas.evaluation import HELDOUT
from tests.fakes.chromium import Browser, Page, chromium, picture
from tests.flows.report.reading import report_file
from tests.flows.runs.synthetic_run import SKILL, write_run

DESK, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
MOST_BYTES = 5_000_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as launched:
        yield launched


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The report of a run with suites, samples and requests, and its comparison with two others."""
    root = tmp_path_factory.mktemp("store")
    store, record = write_run(root, suites=(HELDOUT, "gsm8k"), samples=2, requests=40)
    skills = {n: {**SKILL, "grpo": 0.9 - n / 10} for n in (2, 3)}
    others = [write_run(root, f"demo-{n}", skill=skill)[1] for n, skill in skills.items()]
    comparison = render_comparison(store, compare_runs(store, record, others))
    return {"report": report_file(store, record), "comparison": Path(comparison)}


def opened(
    browser: Browser, path: Path, viewport: dict[str, int], scheme: str = "light"
) -> tuple[Page, list[str]]:
    """The page with all that can be unfolded unfolded, and whatever it said on the console or asked
    of the network."""
    page = browser.new_page(viewport=viewport, color_scheme=scheme)  # type: ignore[arg-type]
    heard: list[str] = []
    page.on("console", lambda message: heard.append(message.text))
    page.on("pageerror", lambda error: heard.append(str(error)))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    picture(page, f"{path.stem}-{viewport['width']}-{scheme}")
    return page, heard + [url for url in asked if not url.startswith(("file:", "data:"))]


@pytest.mark.parametrize("name", ["report", "comparison"])
@pytest.mark.parametrize(
    ("viewport", "scheme"),
    [
        pytest.param(DESK, "light", id="desk"),
        pytest.param(PHONE, "light", id="phone"),
        pytest.param(PHONE, "dark", id="dark phone"),
    ],
)
def test_it_fits_every_screen_and_asks_for_nothing(browser, pages, name, viewport, scheme):
    page, heard = opened(browser, pages[name], viewport, scheme)
    assert heard == []
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    ink, paper = (
        brightness(page.evaluate(f"getComputedStyle(document.body).{what}"))
        for what in ("color", "backgroundColor")
    )
    assert (ink > 180 and paper < 60) if scheme == "dark" else (ink < 60 and paper > 180)
    page.close()


def brightness(colour: str) -> float:
    """Of a CSS colour, rgb(r, g, b), from 0 to 255."""
    return sum(map(float, colour.removeprefix("rgb(").removesuffix(")").split(","))) / 3


def test_plots_are_drawn_in_the_colours_of_the_page(browser, pages):
    shades = []
    for scheme in ("light", "dark"):
        page, _ = opened(browser, pages["report"], PHONE, scheme)
        shades.append(
            brightness(page.evaluate("getComputedStyle(document.querySelector('.plot text')).fill"))
        )
        page.close()
    assert shades[0] < 60 < 180 < shades[1]


def test_samples_are_filtered_without_a_script(browser: Browser, pages: dict[str, Path]) -> None:
    page, _ = opened(browser, pages["report"], DESK)
    samples = page.locator(".sample")
    every = shown(samples)
    assert 100 < every == samples.count()
    assert counted(page) == every

    page.get_by_label("prompts", exact=True).select_option(label="gsm8k: math")
    of_group = shown(samples)
    assert 0 < of_group < every
    assert counted(page) == of_group
    assert {one.split()[0] for one in summaries(samples)} == {"gsm8k:"}

    page.get_by_label("outcome", exact=True).select_option("gained")  # wrong by base, right by grpo
    gained = shown(samples)
    page.get_by_label("outcome", exact=True).select_option("wrong")
    assert gained + shown(samples) == of_group
    page.get_by_label("outcome", exact=True).select_option("lost")
    assert shown(samples) == 0

    page.get_by_label("prompts", exact=True).select_option("all")
    page.get_by_label("outcome", exact=True).select_option("gained")
    page.get_by_label("before", exact=True).select_option(label="simpo")  # 40 % right, grpo 70 %
    assert all("simpo ✗" in one and "grpo ✓" in one for one in summaries(samples))
    assert 0 < shown(samples) < every
    page.close()


def test_two_models_stand_side_by_side_or_all_of_them(browser, pages):
    page, _ = opened(browser, pages["report"], DESK)
    answers = page.locator(".sample").first.locator(".answer")
    left, right = (one.bounding_box() for one in answers.all() if one.is_visible())
    assert left["y"] == right["y"]
    assert left["x"] + left["width"] <= right["x"]
    page.get_by_label("every model's answer").check()
    assert shown(answers) == 4
    page.close()


def counted(page: Page) -> int:
    """How many samples the page says that it shows."""
    nodes = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    text = "".join(node["name"]["value"] for node in nodes if node["role"]["value"] == "StaticText")
    found = re.search(r"(\d+) of \d+ prompts", text)
    return int(found[1])


def shown(found: Locator) -> int:
    """How many of these are visible."""
    return int(found.evaluate_all("all => all.filter(one => one.offsetParent !== null).length"))


def summaries(samples: Locator) -> list[str]:
    """The first lines of the visible samples."""
    texts: list[str] = samples.evaluate_all(
        "all => all.filter(one => one.offsetParent !== null).map(one =>"
        " one.querySelector('summary').innerText)"
    )
    return texts


def test_a_large_run_has_a_page_that_can_be_sent(tmp_path: Path) -> None:
    """Long answers, full of what has to be escaped: 288 prompts could be shown, and not all of them
    fit."""
    suites, text = (HELDOUT, "gsm8k", "mmlu", "mbpp"), "<b>&</b> long " * 120
    store, record = write_run(tmp_path, suites=suites, per_domain=12, text=text)
    page = report_file(store, record)
    assert 2_000_000 < page.stat().st_size < MOST_BYTES
    assert 100 < page.read_text(encoding="utf-8").count('<details class="card sample') < 288

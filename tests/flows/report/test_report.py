"""The report of a run: what it shows, that it shows anything a run leaves, and that nothing in a
run can make it do more than show."""

from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

from flows.report.page import report_of
from flows.report.sample_choice import samples
from flows.report.sections.effects import heat_maps
from flows.report.sections.training import curves
from flows.runs.compare import compare_runs
from flows.runs.results import RunResults, read_results
from infra.process_identity import this_process
from infra.store.store import Store
from schemas.reports import RunRecord, StageRecord
from tests.flows.report.reading import report_file
from tests.flows.runs.synthetic_run import STAGES, manifest_of, remade, without, write_run

ATTACK = "<script>alert('x')</script><img src=http://evil.example onerror=alert(1)> & $x$"
VOID = {"meta", "br", "img", "link", "input", "hr", "path", "use", "stop"}


class Page(HTMLParser):
    """Collects a page's tags, attributes and text, and whether its tags are balanced."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(html)

    @property
    def links(self) -> list[str]:
        outside = ("src", "href", "xlink:href", "action", "srcset")
        return [value for name, value in self.attributes if name in outside]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def path(written: tuple[Store, RunRecord]) -> Path:
    return report_file(*written)


def rendered(store: Store, record: RunRecord) -> str:
    """The text of a run's report."""
    return report_file(store, record).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


def test_it_is_one_file_beside_the_run_record_and_always_the_same(run, path):
    assert (path.name, path.parent.name) == ("report.html", "demo-1")
    assert (path.parent / "run.json").is_file()
    assert path.stat().st_size < 1_000_000
    assert report_of(run).html() == path.read_text(encoding="utf-8")


def test_it_loads_nothing_runs_nothing_and_is_well_formed(page: Page) -> None:
    assert not {"script", "link", "iframe", "object", "embed", "form", "base"} & set(page.tags)
    inside = ("#", "data:application/toml;base64,", "data:image/svg+xml;base64,")
    assert [link for link in page.links if not link.startswith(inside)] == []
    assert [name for name, _ in page.attributes if name.startswith("on")] == []
    assert page.open == []
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(ids) == len({*ids})


def test_colours_of_plots_follow_the_page(path: Path) -> None:
    """Every placeholder colour became a CSS custom property; a dark page redefines those."""
    html = path.read_text(encoding="utf-8")
    assert "prefers-color-scheme: dark" in html
    assert not [number for number in range(1, 11) if f"#{3 * f'{number:02x}'}" in html]
    assert "var(--series-1)" in html


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a run whose texts, prompts and error all attack it."""
    everywhere = {"text": ATTACK, "prompts": ATTACK, "failure": ATTACK}
    root = tmp_path_factory.mktemp("attacked")
    return rendered(*write_run(root, stop_before="safety_eval", **everywhere))


def test_the_data_card_is_shown_as_a_page_and_what_it_quotes_as_text(attacked: str) -> None:
    card = attacked[attacked.index('<div class="markdown">') :].partition("</details>")[0]
    assert "<h3>Training data</h3>" in card
    assert "pretty_name" not in card
    assert "<table>" in card
    assert 'src="data:image/svg+xml;base64,' in card
    assert "&lt;script&gt;" in card
    assert "<a " not in card


def test_samples_are_chosen_by_their_stated_rule(run: RunResults) -> None:
    items = sorted(run.models["grpo"].items("reasoning_eval"), key=lambda item: item.id)
    right = [item.id for item in items if item.domain == "math" and item.exact]
    wrong = [item.id for item in items if item.domain == "math" and not item.exact]
    shown = [sample for sample in samples(run) if sample.group == "math"]
    assert [sample.id for sample in shown] == right[:12] + wrong
    assert [sample.mark for sample in shown] == ["right"] * 12 + ["wrong"] * 6
    assert [answer.model for answer in shown[0].answers] == ["base", "sft", "simpo", "grpo"]
    assert shown[0].answers[0].notes == ["malformed"]


SHOWN = [
    "sft: loss",
    "simpo: preference accuracy",
    "grpo: KL to the initial policy",
    "Training-token proof of sft",
    "Preference pairs of simpo",
    "Rollouts of grpo at step 39",
    "Passing code of grpo that looks like a trick: the first 1",
    "imports gc",
    "30 of 30",
    "broken_json",
    "a.jsonl:4: Expecting value",
    "consider dropping it",
    "lyceum run ./demo.toml --data 'my data' --code mine.py --store ",
    "1.5 GB",
    "learning_rate = 1e-05",
]


def test_the_page_shows_every_part_key_and_digest(run: RunResults, page: Page) -> None:
    assert [shown for shown in SHOWN if shown not in page.text] == []
    command, run_id = f"--store {run.record.store}", run.record.run_id
    for shown in (f"--code mine.py {command}", f"lyceum report {run_id} {command}"):
        assert shown in page.text
    for stage in run.stages.values():
        assert stage.manifest.key in page.text
        assert stage.manifest.digest in page.text


def test_text_of_models_data_and_errors_is_shown_and_never_interpreted(attacked: str) -> None:
    page = Page(attacked)
    assert "script" not in page.tags
    assert page.tags["img"] == 1, "the data card's plot, none of the attack's"
    assert page.text.count(ATTACK) > 50
    assert f"Stage safety_eval failed{ATTACK}" in page.text.replace("\n", "")
    assert page.open == []


def test_long_texts_do_not_make_a_large_page(tmp_path: Path) -> None:
    path = report_file(*write_run(tmp_path, text="long " * 400))
    assert path.stat().st_size < 2_000_000
    assert "more characters)" in path.read_text(encoding="utf-8")


def test_a_failed_run_has_a_report_that_begins_with_what_failed(tmp_path: Path) -> None:
    page = Page(rendered(*write_run(tmp_path, stop_before="distill", failure="EXHAUSTED: 9 GiB")))
    assert page.open == []
    places = ("Stage distill failed", "EXHAUSTED: 9 GiB", "Verdict")
    assert sorted(places, key=page.text.index) == list(places)


def test_a_cancelled_run_says_that_it_can_be_continued(tmp_path: Path) -> None:
    text = Page(rendered(*write_run(tmp_path, stop_before="simpo"))).text
    assert "The same command continues it" in text
    assert "grpo has no model (not run)" in text
    assert "Of simpo and grpo alone nothing can be said: no evaluation." in text


def test_a_run_that_has_just_begun_has_a_report(tmp_path: Path) -> None:
    store, record = write_run(tmp_path, stop_before="distill")
    stage = StageRecord(name="distill", kind="distill", key="f" * 64, status="running")
    begun = {"status": "running", "finished": None, "stages": (stage,), "execution": {}}
    begun |= {"process": this_process()}
    text = Page(rendered(store, record.model_copy(update=begun))).text
    assert "had not ended" in text
    assert "Time per stage" not in text
    assert "No model was evaluated" in text
    begun |= {"process": this_process().model_copy(update={"pid": 2**30})}
    gone = record.model_copy(update=begun)
    text = Page(rendered(store, gone)).text
    assert "interrupted · " in text
    assert "The process of the run is gone. The same command goes on" in text
    assert compare_runs(store, gone, [gone])[0]["a"]["status"] == "interrupted"


def test_a_recipe_without_evaluations_has_a_report(written: tuple[Store, RunRecord]) -> None:
    store, record = written
    asked = [stage.name for stage in STAGES if stage.kind.endswith("eval")]
    page = Page(report_of(read_results(store, without(record, *asked))).html())
    assert "No model was evaluated" in page.text
    assert "sft: loss" in page.text


def test_an_artifact_that_is_gone_is_named_and_not_used(tmp_path: Path) -> None:
    """What is damaged: tests/flows/test_damaged.py."""
    store, record = write_run(tmp_path)
    manifest = manifest_of(store, record, "sft_eval")
    store.path(f"artifacts/{manifest.kind}/{manifest.key}/manifest.json").unlink()
    run = read_results(store, record)
    assert "no longer in the store" in (run.stages["sft_eval"].problem or "")
    assert "sft since base" not in next(heat_maps(run))[1].columns


def test_what_another_version_left_is_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    store, record = write_run(tmp_path)
    metrics = {**manifest_of(store, record, "rebalance").metrics}
    del metrics["top_ups"]
    old = remade(store, record, "rebalance", {"rows.jsonl": []}, metrics=metrics)
    text = Page(rendered(store, old)).text
    assert "made by another version of Lyceum (without 'top_ups'). Run the recipe again" in text
    assert "Time per stage" in text


def test_values_that_are_not_finite_are_left_out_of_curves(tmp_path: Path) -> None:
    store, record = write_run(tmp_path)
    stage = read_results(store, record).stages["grpo"]
    (store.local_dir(stage.manifest) / "curves.jsonl").write_text(
        '{"step": 1, "loss": NaN, "kl": 0.5}\n{"step": 2, "loss": Infinity, "kl": 0.25}\n'
    )
    assert [one.title for one in curves(stage)[0]] == ["grpo: KL to the initial policy"]


def test_the_data_part_says_what_was_asked_for_what_came_and_what_became_of_the_rest(page):
    text = " ".join(page.text.split())
    for words in (
        "30 of 30 (41)",
        "27 of 27 (36)",  # a cell that was asked for by difficulty
        "30 (36)",  # a cell that was not
        "300 read, 3 dropped, 117 left that no quota asks for",
        "contaminated31.0%b.jsonl:7: the same as exam item 1",
        "exam 2, heldout 1",
        "mit 180",
        "20 rows asked of the teachers, 18 given, 0.25 US dollars",
        "samples: verified 50, wrong 22",
        "70 requests, 2 answered from the store, 1,000 tokens, 1.50 US dollars",
        "domains said by: rule 30, classifier 6",
        "66.7% of 3 rows of a known domain go there",
        "math10100050.0%",
    ):
        assert words in text, words
    assert any(link.startswith("data:image/svg+xml;base64,") for link in page.links)


def test_prompts_of_two_files_that_have_one_number_are_no_sample(tmp_path: Path) -> None:
    """The base was asked other questions under the ids of two of them, as of a changed suite."""
    run = read_results(*write_run(tmp_path, per_domain=4))
    asked = run.models["base"].evaluations["reasoning_eval"][0].items
    asked[:2] = [one.model_copy(update={"prompt": "another question"}) for one in asked[:2]]
    shown = {sample.id for sample in samples(run)}
    assert [one.id in shown for one in asked[:3]] == [False, False, True]

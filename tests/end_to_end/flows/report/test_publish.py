"""A run as Prefect artifacts: what they say, that no text of a model can break out of them, and
that they are only a view."""

import base64
import re
import xml.dom.minidom
from pathlib import Path
from unittest.mock import Mock

import httpx
import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.context import FlowRunContext

from flows.recipe.resolve import ResolvedRecipe, resolve
from flows.report import publish
from flows.report.blocks import Figure, walk
from flows.report.markdown import markdown
from flows.report.page import Report, report_of, run_page
from flows.report.sample_choice import right_and_wrong, samples
from flows.report.sections.samples import sample_blocks
from flows.report.summaries import plan_page
from flows.runs.results import RunResults, read_results
from infra.store.store import Store, open_store
from tests.flows.growing_stores import commit_stage
from tests.flows.runs.synthetic_run import write_run


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> RunResults:
    return read_results(*write_run(tmp_path_factory.mktemp("synthetic")))


@pytest.fixture(scope="module")
def report(results: RunResults) -> Report:
    return report_of(results)


def plan(resolved: ResolvedRecipe, store: Store) -> str:
    return markdown(list(plan_page(resolved, store, "local")))


def test_the_plan_says_what_is_cached_what_runs_and_why(tmp_path: Path, tiny_recipe: Path) -> None:
    store, resolved = open_store(tmp_path / "store"), resolve(str(tiny_recipe))
    empty = plan(resolved, store)
    assert "2 stages. To run: distill and rebalance.\n\nNo estimate yet: no earlier run" in empty
    assert "| rebalance | rebalance | **would run** | ? | waits for distill |" in empty

    commit_stage(store, resolved.stages[0], tmp_path / "out")
    cached = plan(resolved, store)
    assert "| distill | distill | cached | 0.0 s | its artifact exists and verifies |" in cached
    assert "2 stages, 1 cached: distill. To run: rebalance." in cached

    changed = plan(resolve(str(tiny_recipe), ["stages.distill.config.seed=7"]), store)
    assert "| distill | distill | **would run** | 12 s | no artifact has this key |" in changed
    assert "| stage | differs in | nearest artifact | here |" in changed
    assert "| distill | `config.seed` | 0 | 7 |" in changed


def test_the_plots_are_the_report_s_as_images_that_need_nothing_else(report: Report) -> None:
    seen = walk(report.main, folded=False)
    text = markdown([one for one in seen if isinstance(one, Figure)])
    titles = re.findall(r"^### (.*)$", text, re.MULTILINE)
    assert {"Safety against helpfulness", "sft: loss", "grpo: reward"} <= set(titles)
    assert "sft: learning rate" not in titles, "the report folds it away"
    images = re.findall(r"\]\(data:image/svg\+xml;base64,([^)]*)\)", text)
    assert len(images) == len(titles)
    for image in images:
        drawing = base64.b64decode(image).decode()
        xml.dom.minidom.parseString(drawing)
        assert drawing.startswith("<svg")
        defined = set(re.findall(r"(--[\w-]+):", drawing))
        assert set(re.findall(r"var\((--[\w-]+)\)", drawing)) <= defined, "every colour is"


def test_answers_show_one_right_and_one_wrong_per_group(results: RunResults) -> None:
    shown = samples(results)
    text = markdown(sample_blocks(right_and_wrong(shown)))
    groups = {(sample.group, sample.mark) for sample in shown}
    assert text.count("<details>") == text.count("</details>") == len(groups)
    assert "<summary>math base ✗ sft ✓ simpo ✓ grpo ✓ held math " in text
    assert "**base: wrong (malformed)**" in text
    assert "<reasoning>I look.</reasoning>" in text


def test_no_text_of_a_model_breaks_out_of_its_block(tmp_path: Path) -> None:
    evil = "\n```\n````\n</details><script>alert(1)</script>\n"
    run = read_results(*write_run(tmp_path, text=evil, prompts="<b>held</b>"))
    text = markdown(sample_blocks(right_and_wrong(samples(run))))
    assert "<summary>math base ✗ sft ✓ simpo ✓ grpo ✓ &lt;b&gt;held&lt;/b&gt;" in text
    for block in re.findall(r"^(`{5,})text\n(.*?)\n\1$", text, re.DOTALL | re.MULTILINE):
        text = text.replace(block[1], "")
    assert "script" not in text, "outside of its fence, which is longer than any of its own"


def test_the_page_of_a_failed_run_says_why_and_where_the_report_is(tmp_path: Path) -> None:
    store, record = write_run(tmp_path, stop_before="simpo", failure="the disk\nis full")
    run = read_results(store, record.model_copy(update={"report": "gs://bucket/demo/report.html"}))
    page = markdown(run_page(run))
    assert page.startswith("# demo\n\n**failed** · ")
    assert "### Stage simpo failed\n\n```text\nthe disk\nis full\n```" in page
    assert "`gs://bucket/demo/report.html`" in page
    assert "(https://storage.cloud.google.com/bucket/demo/report.html)" in page


def test_a_run_is_shown_under_its_own_name(prefect_api, results, report, tmp_path, tiny_recipe):
    @flow
    def shown() -> str:
        publish.announce(results.record, resolve(str(tiny_recipe)), open_store(tmp_path / "store"))
        publish.publish(report)
        context = FlowRunContext.get()
        return str(context.flow_run.id)

    run_id = shown()
    with get_client(sync_client=True) as client:
        assert client.read_flow_run(run_id).name == results.record.run_id  # type: ignore[arg-type]
        of_run = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run_id]))
        found = client.read_artifacts(artifact_filter=of_run)
    pages = dict.fromkeys(("plan", "report", "plots", "samples"), "markdown")
    types = {artifact.key.removeprefix("demo-"): artifact.type for artifact in found}
    assert types == {**pages, "stages": "table"}


@pytest.mark.parametrize("error", [httpx.ConnectError("gone"), OSError("the bucket is gone")])
def test_it_is_only_a_view(report, monkeypatch, error):
    monkeypatch.setattr(publish, "get_client", Mock(side_effect=error))
    monkeypatch.setattr(publish, "get_run_logger", logger := Mock())
    publish.publish(report)
    logger().warning.assert_called_once_with("the run could not be shown in Prefect: %s", error)

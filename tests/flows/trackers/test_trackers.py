"""Runs sent to MLflow, Trackio and Weights & Biases, by fakes of their interfaces; the packages
themselves are in tests/campaign."""

import logging
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any
from unittest.mock import Mock

import prefect
import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows import post_train, trackers
from flows.runs.record import record_name
from flows.runs.results import RunResults, read_results
from flows.server import flow_process, prefect_view
from flows.trackers import mlflow as mlflow_tracker
from flows.trackers import track
from infra.store.objects import Damaged
from infra.store.store import Store
from schemas.job import JobStatus, Progress
from schemas.reports import RunRecord
from tasks.running.watch import WATCH, Watch
from tests.fakes.process import until
from tests.fakes.trackers import Mlflow, Trackio, Wandb
from tests.flows.runs.synthetic_run import with_stage, write_run

GRPO_EVAL = 9
"""The place of that stage in the recipe."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, RunRecord]:
    root, config = tmp_path_factory.mktemp("store"), {"sft": {"a b?": [1, 2]}}
    return write_run(root, per_domain=4, config=config)


@pytest.fixture
def run(made: tuple[Store, RunRecord]) -> RunResults:
    return read_results(*made)


@pytest.fixture(autouse=True)
def unconfigured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in trackers.TRACKERS.names():
        for variable in (*trackers.TRACKERS[name].variables, "MLFLOW_EXPERIMENT_NAME"):
            monkeypatch.delenv(variable, raising=False)
    # what the trackers set stays with this test
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
    monkeypatch.setenv("WANDB_LOGIN_TIMEOUT", "30")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Trackio:
    """Trackio, configured."""
    made = Trackio()
    made.install(monkeypatch)
    return made


def begun(record: RunRecord, said: Callable[[str], None] = str) -> Watch:
    """The watch of a run that has begun; `said` gets what it says."""
    watch = trackers.followed(Watch(say=lambda about, text: said(text)))
    watch.record(record.model_copy(update={"status": "running"}))
    return watch


def sent(run: RunResults) -> list[str]:
    """Send a run; returns the warnings."""
    warnings: list[str] = []
    track(run, warnings.append)
    return warnings


def test_nothing_is_imported_or_said_where_nothing_is_configured(run, monkeypatch):
    for name in trackers.TRACKERS.names():
        monkeypatch.setitem(sys.modules, name, None)  # to import it would raise
    assert trackers.TRACKERS.names() == ("mlflow", "trackio", "wandb")
    assert sent(run) == []
    watch = Watch()
    assert trackers.followed(watch) is watch


def test_mlflow_gets_curves_metrics_and_configs(run, monkeypatch, capsys):
    (fake := Mlflow()).install(monkeypatch)
    monkeypatch.setattr(mlflow_tracker, "MOST_METRICS", 7)
    assert sent(run) == []
    assert fake.experiments == ["demo"]
    created = fake.created
    assert (created["run_name"], created["start_time"]) == ("demo-1", 1_700_000_000_000)
    assert fake.ended == ("FINISHED", 1_700_000_372_000)
    assert created["tags"]["lyceum.store"] == run.record.store
    losses = [fake.metrics["sft/loss", step] for step in (1, 2, 39)]
    assert losses == [3.0, 1.5, pytest.approx(3 / 39)]
    assert fake.metrics["grpo/reward/format", 1] == 0.9
    assert fake.metrics["grpo_eval/metrics/exact_answer", GRPO_EVAL] == 0.75
    expected = {"model": "gemma3-tiny", "simpo.beta": "2.0", "sft.a b_.1": "2"}
    assert fake.parameters.items() >= expected.items()
    assert capsys.readouterr().out == "", "standard output is for --json"


def test_the_experiment_can_be_named_and_a_failed_run_is_a_failed_one(tmp_path, monkeypatch):
    (fake := Mlflow()).install(monkeypatch)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "ours")
    failed = write_run(tmp_path, stop_before="sft", failure="the loss is nan")
    assert sent(read_results(*failed)) == []
    assert fake.experiments == ["ours"]
    assert fake.ended[0] == "FAILED"


@pytest.mark.parametrize(
    ("variable", "project"), [("WANDB_PROJECT", "science"), ("WANDB_API_KEY", "lyceum")]
)
def test_wandb_gets_curves_metrics_and_the_recipe(run, monkeypatch, variable, project):
    (fake := Wandb()).install(monkeypatch, variable)
    assert sent(run) == []
    told = (fake.given["project"], fake.given["id"], fake.given["group"])
    assert told == (project, "demo-1", "demo")
    assert fake.given["config"]["stages"][6]["config"] == {"beta": 2.0}
    assert fake.steps["sft/*"] == "sft/step"
    [second] = [row for row in fake.rows if row.get("sft/step") == 2]
    values = {"loss": 1.5, "grad_norm": 1.0, "learning_rate": 1e-3, "step": 2}
    assert second == {f"sft/{name}": value for name, value in values.items()}
    assert fake.summary["grpo_eval/metrics/exact_answer"] == 0.75
    assert fake.code == 0


def test_a_tracker_that_fails_is_one_warning_without_secrets_and_the_others_go_on(run, monkeypatch):
    class Broken(Mlflow):
        def set_experiment(self, name: str) -> Any:
            raise SystemExit("401 for token hf_abcdefghijklmnopqrstuvwxyzabcdefgh")

    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnopqrstuvwxyzabcdefgh")
    Broken().install(monkeypatch)
    (well := Wandb()).install(monkeypatch)
    [warning] = sent(run)
    assert "not sent to mlflow, which MLFLOW_TRACKING_URI asks for: SystemExit: 401" in warning
    assert "abcdefghijklmnopqrstuvwxyz" not in warning
    assert well.code == 0


def test_a_flow_sends_its_run_with_the_place_of_its_report_and_survives_a_tracker(
    made: tuple[Store, RunRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(post_train, "get_run_logger", lambda: logging.getLogger("test"))
    monkeypatch.setattr(post_train, "publish", lambda report: None)  # Prefect's
    (fake := Wandb()).install(monkeypatch)
    Mlflow().install(monkeypatch)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    said: list[tuple[str, str]] = []
    watch = Watch(say=lambda about, text: said.append((about, text)))
    post_train.publish_report(made[0], Mock(record=made[1]), watch)
    assert str(fake.summary["report"]).endswith("runs/demo-1/report.html")
    why = "it is not installed; `uv pip install mlflow-skinny`"
    asked = "run demo-1 was not sent to mlflow, which MLFLOW_TRACKING_URI asks for"
    assert said == [("trackers", f"{asked}: {why}")]


def training(done: int, **values: float) -> JobStatus:
    progress = Progress(done=done, total=39, values=values)
    return JobStatus(state="running", heartbeat=0.0, progress=progress)


def test_what_a_stage_says_is_sent_while_it_runs_and_the_rest_once_in_the_end(run, fake):
    watch = begun(run.record)
    watch.progress("sft", training(0))  # nothing to be drawn
    watch.progress("sft", training(2, loss=1.5))
    watch.progress("sft", training(2, loss=1.5))  # the next look at the same step
    assert fake.logged.wait(30), "nothing was sent while the stage ran"
    assert fake.curve("sft/loss") == [(2, 1.5)]
    assert fake.finished == 0
    watch.record(run.record)
    assert sent(run) == []
    assert sorted(step for step, _ in fake.curve("sft/loss")) == list(range(1, 40))
    assert len(fake.curve("sft/grad_norm")) == 39, "what the stage did not say live comes later"
    assert fake.curve("grpo_eval/metrics/exact_answer") == [(GRPO_EVAL, 0.75)]
    assert (fake.finished, fake.given["project"], fake.given["group"]) == (1, "science", "demo")
    assert fake.given["private"] is True


def test_a_run_that_a_worker_started_is_sent_while_it_goes_on(run, fake, monkeypatch):
    """Those of `lyceum serve` were not sent before they had ended."""
    watches: list[Watch] = []
    engine = lambda *given, **more: watches.append(WATCH.get())  # noqa: E731
    monkeypatch.setattr(flow_process.runpy, "run_module", engine)
    monkeypatch.setattr(prefect_view, "prefect_view", lambda *given, **more: nullcontext())
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:1/api"}):
        copy_context().run(flow_process.main)
    Mlflow().install(monkeypatch)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    monkeypatch.setattr("prefect.get_run_logger", Mock())
    for status in ("running", "cancelled"):
        watches[0].record(run.record.model_copy(update={"status": status}))
    assert (list(fake.runs), fake.finished) == (["demo-1"], 1)
    [logged] = prefect.get_run_logger().warning.call_args_list
    assert "not sent to mlflow" in str(logged)


@pytest.mark.parametrize("ended", ["cancelled", "failed"])
def test_a_run_that_goes_on_is_in_the_curve_of_the_one_before(tmp_path, fake, ended):
    """A run that was stopped has sent what its stages had said by then, one that failed all."""
    store, first = write_run(tmp_path, stop_before="grpo")
    first = first.model_copy(update={"status": ended})
    store.write_json(record_name(first.run_id), first)
    watch = begun(first)
    watch.progress("sft", training(1, loss=3.0))
    watch.record(first)
    if ended == "failed":
        assert sent(read_results(store, first)) == []
    assert fake.finished == 1, "a run that was stopped is closed, too"
    _, second = write_run(tmp_path, "demo-2")
    later = with_stage(second, "sft", status="cached")
    later = later.model_copy(update={"started": first.started + 1000, "recipe": first.recipe})
    assert sent(read_results(store, later)) == []
    assert list(fake.runs) == ["demo-1"], "the second run has no curves of its own"
    steps = [step for step, _ in fake.curve("sft/loss")]
    assert steps == [1] * (ended == "cancelled") + [*range(1, 40)]
    assert len(fake.curve("grpo/loss")) > 1


def test_a_run_goes_on_with_those_since_the_last_that_succeeded(made):
    def one(number: int, status: Any, **changes: Any) -> RunRecord:
        told = {"run_id": f"r{number}", "status": status, "started": float(number), **changes}
        return made[1].model_copy(update=told)

    other = made[1].recipe.model_copy(update={"seed": 5})
    elsewhere = one(3, "running", process=None)  # killed there, as far as anybody can tell
    known = [one(1, "failed"), one(2, "succeeded"), elsewhere]
    known += [one(4, "failed", recipe=other), one(5, "paused")]
    assert trackers.continued(one(6, "running"), known) == ("r3", set())
    name, whole = trackers.continued(one(2, "running"), known)
    assert (name, {"sft", "grpo_eval"} <= whole) == ("r1", True)
    assert trackers.continued(one(6, "running", target="v5e-8"), known) == ("r6", set())


def test_a_tracker_that_was_lost_gets_the_rest_in_the_end(run, fake):
    said: SimpleQueue[str] = SimpleQueue()
    watch = begun(run.record, said.put)
    watch.progress("sft", training(1, loss=3.0))
    assert fake.logged.wait(30)
    fake.away = True
    watch.progress("sft", training(2, loss=1.5))
    assert said.get(timeout=30).endswith("no route to host; it is tried again when the run ends")
    fake.away = False
    assert sent(run) == []
    assert [step for step, _ in fake.curve("sft/loss")] == [*range(1, 40)]
    assert (fake.finished, said.empty()) == (1, True)


def test_a_run_whose_curves_cannot_be_read_is_ended_all_the_same(run, fake, monkeypatch):
    """Its thread died, nobody said so, and the tracker's run went on for ever."""
    monkeypatch.setattr(trackers, "curve", Mock(side_effect=Damaged(["curves.jsonl is cut"])))
    assert sent(run) == ["run demo-1: the rest of its curves cannot be read: curves.jsonl is cut"]
    assert fake.finished == 1


def test_no_stage_waits_for_a_tracker_and_no_run_for_ever(run, fake, monkeypatch, capsys):
    begin, init = threading.Event(), fake.init

    def slow(**given: Any) -> Any:
        print("a tracker's own words")  # noqa: T201
        assert begin.wait(30)
        return init(**given)

    monkeypatch.setattr(sys.modules["trackio"], "init", slow)
    monkeypatch.setattr(trackers, "END_SECONDS", 0.01)
    said: list[str] = []
    watch = begun(run.record, said.append)
    for step in range(1, 40):
        watch.progress("sft", training(step, loss=3.0 / step))
    assert sent(run) == []
    assert said == ["run demo-1: trackio did not take it in 0.01 s"]
    print("{}")  # noqa: T201  an answer
    begin.set()
    until(lambda: fake.finished)
    assert len(fake.curve("sft/loss")) == 39
    assert capsys.readouterr() == ("{}\n", "a tracker's own words\n")


def test_a_watch_that_sees_two_runs_sends_both_while_they_go_on(run, fake):
    watch = trackers.followed(Watch())
    for name in ("demo-8", "demo-9"):
        begun = run.record.model_copy(update={"run_id": name, "status": "running"})
        watch.record(begun)
        watch.progress("sft", training(2, loss=1.5))
        watch.record(begun.model_copy(update={"status": "paused"}))
        assert fake.curve("sft/loss", name) == [(2, 1.5)]
    assert fake.finished == 2

"""What a run was planned to take is kept, what it took is measured, and the report compares the
two."""

import json
import logging
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jax
import pytest

from flows import post_train, preamble
from flows.planning import stage_plans as planning
from flows.report.blocks import Box, Sentences, Table
from flows.report.markdown import markdown
from flows.report.section import SECTIONS
from flows.runs.record import RunLog, read_plan, read_run
from flows.runs.results import read_results
from infra.store.store import Store, open_store
from schemas.base import DoesNotFit, InputError
from schemas.job import JobStatus, Progress, Usage
from schemas.reports import RunRecord
from tasks.worker.usage import Meter, peak_device_bytes
from tests.effort import Clock
from tests.flows.report.reading import rows
from tests.flows.runs.synthetic_run import with_stage, write_run
from tests.tasks.running.test_follower import JOB, Bench, Scripted, bench  # noqa: F401
from tests.tasks.worker.test_worker import WRITE
from tests.tasks.worker.test_worker import Bench as Workers

GB = 10**9


def paced(*reports: tuple[int, float, str]) -> Usage:
    """What a meter that began at 100 s measures of `(done, at, unit)`."""
    clock = Clock()
    clock.now = 100.0
    meter = Meter(clock)
    for done, at, unit in reports:
        clock.now = at
        meter.note(Progress(done=done, total=10, unit=unit))
    return meter.usage()


def test_the_pace_of_steps_is_measured_without_what_came_before_the_second() -> None:
    """60 s until step 1 (compiled), then 2 s, then 4 s a step: (120 - 108) / 3. Work of another
    unit is measured on its own."""
    times = {0: 101.0, 1: 160.0, 2: 162.0, 3: 166.0, 5: 174.0}
    steps = [(done, at, "steps") for done, at in times.items()]
    usage = paced(*steps)
    assert (usage.unit, usage.unit_seconds, usage.seconds) == ("steps", pytest.approx(4.0), 74.0)
    assert paced(*steps[:3]).unit_seconds is None, "one interval, which may hold a compilation"
    prompts = [(done, 180.0 + done, "prompts") for done in (64, 128, 192)]
    assert paced(*steps, *prompts).unit_seconds == pytest.approx(1.0)
    rolled_back = [(done, 100.0 + done, "steps") for done in (7, 8, 1, 2, 3)]
    assert paced(*rolled_back).unit_seconds == pytest.approx(1.0)


class Device:
    def __init__(self, peak: int | None) -> None:
        self.peak = peak

    def memory_stats(self) -> dict[str, int] | None:
        return None if self.peak is None else {"peak_bytes_in_use": self.peak, "bytes_in_use": 1}


def test_the_peak_is_that_of_the_fullest_device_and_none_where_devices_do_not_tell(monkeypatch):
    assert peak_device_bytes() is None, "CPUs do not"
    monkeypatch.setattr(jax, "local_devices", lambda: [Device(3), Device(7), Device(5)])
    assert peak_device_bytes() == 7
    assert paced().peak_device_bytes is None, (
        "of a job that computes on no device JAX is not even asked"
    )
    none = RuntimeError("Unable to initialize backend 'tpu'")
    monkeypatch.setattr(jax, "local_devices", Mock(side_effect=none))
    assert peak_device_bytes() is None


def test_a_worker_measures_what_its_job_took_and_the_artifact_remembers_it(tmp_path: Path) -> None:
    workers = Workers(tmp_path)
    steps = "for n in range(1, 5): time.sleep(0.02); job.progress(n, 4, 'steps')"
    spec, status = workers.run(WRITE + steps)
    manifest = workers.store.valid("toy", spec.key)
    assert status.usage.unit_seconds >= 0.02  # type: ignore[operator]
    told = {"unit": "steps", "unit_seconds": status.usage.unit_seconds, "peak_device_bytes": None}
    assert {name: manifest.execution.get(name) for name in told} == told
    assert status.usage.seconds >= manifest.execution["seconds"]
    _, failed = workers.run("raise ValueError", attempt="2", key="1" * 64)
    assert failed.state == "failed"
    assert failed.usage is not None, "also of a job that failed: of what, memory may tell"


def test_what_the_worker_measured_reaches_the_flow(bench: Bench) -> None:  # noqa: F811
    first, last = (Usage(seconds=seconds, peak_rss_bytes=1) for seconds in (1.0, 2.0))
    lost = JobStatus(state="failed", heartbeat=0.0, lost=True, error="preempted", usage=first)
    running = JobStatus(state="running", heartbeat=0.0)
    done = JobStatus(state="succeeded", heartbeat=0.0, usage=last)
    bench.run(Scripted([[lost], [running, done]]))
    assert bench.watch.usages == {JOB.stage: last}


# Keeping the plan


def planned(
    name: str, seconds: float | None, usd: float | None, *hbm: int, cached: bool = False
) -> dict[str, Any]:
    """A stage as `lyceum plan --json` prints it, as far as anybody reads it here."""
    programs = [{"hbm_bytes": count} for count in hbm]
    expected = {"seconds": seconds, "cost_usd": usd}
    return {"name": name, "cached": cached, **expected, "programs": programs}


def planned_run(root: Path, *stages: dict[str, Any]) -> tuple[Store, RunRecord]:
    """A finished run whose sft took 600 s, 1.50 USD and 12 GB, its grpo 100 s; with a plan, if any
    stages are given."""
    store, record = write_run(root)
    used = Usage(seconds=250.0, peak_rss_bytes=1, peak_device_bytes=12 * GB)
    record = with_stage(record, "sft", seconds=600.0, cost_usd=1.5, usage=used)
    used = Usage(seconds=90.0, peak_rss_bytes=1, unit="steps", unit_seconds=1.25)
    record = with_stage(record, "grpo", seconds=100.0, usage=used)
    if stages:
        plan = json.dumps({"stages": stages}).encode()
        store.write_bytes(f"runs/{record.run_id}/plan.json", plan)
    return store, record


def test_a_run_keeps_its_plan_and_a_store_that_does_not_take_it_ends_no_run(tmp_path, monkeypatch):
    store = open_store(tmp_path / "store")
    _, record = write_run(tmp_path / "other")
    resolved: Any = type("Resolved", (), {"recipe": record.recipe, "stages": ()})
    log = RunLog(store, resolved, "v5e-8", lambda record: None)
    assert read_plan(store, log.record.run_id) is None
    log.plan({"stages": [], "seconds": 1.0})
    assert read_plan(store, log.record.run_id) == {"stages": [], "seconds": 1.0}
    monkeypatch.setattr(store, "write_bytes", Mock(side_effect=OSError("no space left")))
    log.plan({"stages": []})
    assert read_run(store, log.record.run_id).run_id == log.record.run_id


class Began(Exception):
    """The run began; a test needs no more of it."""


@pytest.fixture
def flow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_recipe: Path) -> Any:
    """The flow as Prefect's UI starts it, without Prefect, up to where its first stage would
    begin."""
    monkeypatch.setattr(post_train, "get_run_logger", lambda: logging.getLogger("test"))
    # a bucket is not what this is about
    monkeypatch.setattr(preamble, "check_reach", lambda target, store: None)
    monkeypatch.setattr(preamble, "travelling", lambda config: {})
    monkeypatch.setenv("LYCEUM_TPU_PROJECT", "a-project")
    monkeypatch.setattr(planning, "has_compiler", lambda: True)
    monkeypatch.setattr(post_train, "announce", Mock(side_effect=Began))
    given = {"recipe": str(tiny_recipe), "target": "v5e-8", "store": str(tmp_path / "store")}
    return lambda: post_train.post_train.fn(**given)


def test_a_run_from_the_ui_is_planned_before_it_begins_if_it_fits(flow, monkeypatch, tmp_path):
    wrong = "Stage sft: train_step needs 18.00 of 15.75 GiB a device."
    plan = {"fits": False, "problems": [wrong], "suggestion": []}
    monkeypatch.setattr(planning, "make_plan", lambda resolved, store, target: plan)
    state, store = flow(), open_store(tmp_path / "store")
    assert state.is_failed()
    assert f"nothing was submitted. {wrong}" in state.message
    assert isinstance(state.data, DoesNotFit)
    assert store.list_runs() == []
    plan = {"fits": True, "target": "v5e-8", "stages": [planned("sft", 1.0, 2.0)]}
    with pytest.raises(Began):
        flow()
    [run_id] = store.list_runs()
    assert read_plan(store, run_id) == plan


# Comparing


def test_planned_and_real_figures_stand_side_by_side_and_what_was_far_off_is_said(tmp_path):
    """sft: 600 s of 200 planned, 12 GB of 14 (within a quarter), 1.50 USD of 1.40; grpo: 100 s of
    360, no price."""
    store, record = planned_run(
        tmp_path,
        # the first was found cached when its turn came; nothing was said of the second's time
        planned("distill", 9.0, 0.0),
        planned("rebalance", 0.0, 0.0, cached=True),
        planned("sft", 200.0, 1.4, 3 * GB, 14 * GB),
        planned("grpo", 360.0, None, 5 * GB),
    )
    sentences, frame, _ = SECTIONS["plan_and_actual"].blocks(read_results(store, record))
    assert isinstance(sentences, Sentences)
    assert isinstance(frame, Box)
    [table] = [one for one in frame.blocks if isinstance(one, Table)]
    shown = rows(table)
    time, memory, price = (f"{name} planned → real" for name in HEAD)
    assert list(shown) == ["sft", "grpo", "all"]
    assert shown["sft"][time] == "3 min 20 s → 10 min 0 s 3.00×"
    assert shown["sft"][memory] == "14.0 GB → 12.0 GB 0.86×"
    assert shown["sft"][price] == "1.40 USD → 1.50 USD 1.07×"
    assert shown["grpo"][memory] == "5.0 GB → –", "its devices did not tell"
    assert shown["grpo"]["its worker"] == "1 min 30 s, 1.25 s for each of its steps"
    assert shown["all"][time] == "9 min 20 s → 11 min 40 s 1.25×"
    assert shown["all"][price] == "1.40 USD → 1.50 USD 1.07×", "grpo's is in neither sum"
    assert [text for _, text in sentences.items] == [
        "sft took 10 min 0 s where 3 min 20 s was planned, 3 times as much.",
        "grpo took 1 min 40 s where 6 min 0 s was planned, 0.28 times as much.",
    ]


HEAD = ("time", "memory of one device", "list price")


def said(store: Store, record: RunRecord) -> str:
    return markdown(SECTIONS["plan_and_actual"].blocks(read_results(store, record)))


def test_the_report_says_what_was_far_off_right_not_planned_or_damaged(tmp_path: Path) -> None:
    """More memory than the compiler said is a finding before it is a crash."""
    shown = said(*planned_run(tmp_path / "off", planned("sft", 500.0, 1.4, 9 * GB)))
    held = "sft held, on its fullest device, 12.0 GB where 9.0 GB was planned, 1.3 times as much."
    assert f"- {held}\n\n" in shown
    near = said(*planned_run(tmp_path / "well", planned("sft", 500.0, 1.4, 14 * GB)))
    assert "Nothing was far off" in near
    # hours of waiting for a machine; then a stage of which nothing was planned that is known
    waited = said(*planned_run(tmp_path / "waited", planned("sft", 5.0, None)))
    assert "10 min 0 s where 5.0 s was planned, 120 times as much." in waited
    unknown = said(*planned_run(tmp_path / "unknown", planned("rebalance", None, None)))
    assert "Nothing was far off" not in unknown
    store, record = planned_run(tmp_path)
    shown = said(store, record)
    assert "Nothing was planned: only a run on a TPU is, and this one ran on local" in shown
    assert "|" not in shown
    store.write_bytes(f"runs/{record.run_id}/plan.json", b"{")
    with pytest.raises(InputError, match=r"runs/demo-1/plan\.json is damaged"):
        said(store, record)

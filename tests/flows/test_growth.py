"""What must not grow with a store: how much is asked of a bucket for runs, plans and garbage."""

from pathlib import Path

import pytest

from flows.cli.gc import collect_garbage
from flows.cli.needs import Needs
from flows.promotion.nights import decision_name, last_nightly, name_rematches
from flows.recipe import explain
from flows.recipe.resolve import ResolvedRecipe, resolve
from flows.runs.record import read_run, read_runs
from flows.runs.results import read_results
from infra.settings import Settings
from infra.store.lease import hold
from infra.store.store import Store, open_store
from schemas.artifact import Manifest
from schemas.base import InputError
from tests.fakes.gcs_emulator import Emulator
from tests.flows.growing_stores import commit_chain, fill_artifacts, fill_runs, write_recipe
from tests.flows.promotion.gate_runs import decided

RUNS = 12
CHANGED = "stages.rebalance.config.seed=99"


class Lab:
    """A bucket with a recipe of three stages, their artifacts, and runs of it."""

    def __init__(self, gcs: Emulator, bucket: str, directory: Path) -> None:
        self._gcs, self.directory, self.recipe = gcs, directory, directory / "growth.toml"
        self.resolved: ResolvedRecipe = write_recipe(self.recipe, 3)
        self.store: Store = open_store(f"gs://{bucket}/lab")
        self.made: list[Manifest] = commit_chain(self.store, self.resolved, directory / "scratch")
        fill_runs(self.store, self.resolved, self.made, range(RUNS))
        gcs.forget_requests()

    def asked(self) -> dict[str, int]:
        """What the bucket was asked since the last time."""
        asked = self._gcs.requests()
        self._gcs.forget_requests()
        return asked


@pytest.fixture
def lab(gcs: Emulator, gcs_bucket: str, tmp_path: Path) -> Lab:
    return Lab(gcs, gcs_bucket, tmp_path)


def test_runs_are_listed_once_and_each_record_is_read_once(lab: Lab) -> None:
    assert [record.started for record in read_runs(lab.store)] == [
        1_735_689_600.0 + 60 * number for number in range(RUNS)
    ]
    assert lab.asked() == {"GET list": 1, "GET download": RUNS}


def test_one_run_costs_one_request_and_its_absence_one_listing(lab: Lab) -> None:
    run_id = lab.store.list_runs()[3]
    assert lab.asked() == {"GET list": 1}
    assert read_run(lab.store, run_id).run_id == run_id
    assert lab.asked() == {"GET download": 1}
    for wrong in (run_id[:-1] + "x", "../runs", f"{run_id}/x", ""):
        with pytest.raises(InputError, match=f"unknown run {wrong!r}.*Valid: growth-"):
            read_run(lab.store, wrong)


def test_of_a_run_that_is_read_only_what_is_asked_for_is_looked_at_and_once(lab: Lab) -> None:
    record = read_run(lab.store, lab.store.list_runs()[0])
    lab.asked()
    run = read_results(lab.store, record)
    assert lab.asked() == {}
    for _ in range(2):
        assert [stage.manifest for stage in run.of_kind("distill")] == lab.made[:1]
    assert lab.asked() == {"GET download": 1, "GET list": 1}


def test_a_look_back_over_runs_that_decided_nothing_is_one_listing(lab: Lab) -> None:
    assert last_nightly(lab.store, "growth") is None
    assert lab.asked() == {"GET list": 1}


def test_a_look_for_what_runs_need_reads_what_may_have_changed(lab: Lab) -> None:
    """Of a night that waits for evaluations which; nothing any more once it has decided."""
    run = lab.store.list_runs()[0]
    name_rematches(lab.store, run, ["0" * 64])
    needs = Needs(lab.store, ())
    lab.asked()
    needs.look()
    assert lab.asked() == {"GET list": 1, "GET download": 1}
    lab.store.write_json(decision_name(run), decided(run))
    needs.look()
    lab.asked()
    needs.look()
    assert lab.asked() == {"GET list": 1}
    assert "0" * 64 in needs.keys


def test_a_plan_reads_the_newest_artifacts_of_each_kind_once(lab, monkeypatch):
    """However many there are, and however many stages of that kind would run."""
    monkeypatch.setattr(explain, "COMPARED", 4)
    [rebalance] = [one for one in lab.resolved.stages if one.kind == "rebalance"]
    only = ResolvedRecipe(lab.resolved.recipe, (rebalance,))
    fill_artifacts(lab.store, only, range(10), lab.directory / "scratch")
    outlooks = explain.outlook(resolve(str(lab.recipe), [CHANGED]), lab.store)
    lab.asked()
    neighbours = explain.Neighbours(outlooks, lab.store)
    for _ in range(3):
        nearest = neighbours.nearest("rebalance")
        # the recipe's own would be nearer; it is older than four others, committed in any order
        assert nearest[0].config["seed"] >= 1_000_000
    assert lab.asked() == {"GET list": 1, "GET download": 4}


def test_a_cached_stage_s_own_artifact_is_nearest_however_old_it_is(lab, monkeypatch):
    monkeypatch.setattr(explain, "COMPARED", 1)
    fill_artifacts(lab.store, lab.resolved, range(6), lab.directory / "scratch")
    lab.asked()
    for stage, manifest in zip(lab.resolved.stages, lab.made, strict=True):
        neighbours = explain.Neighbours(explain.outlook(lab.resolved, lab.store), lab.store)
        assert neighbours.nearest(stage.name) == (manifest, [])
    # of three times three outlooks, nothing of the search
    assert lab.asked() == {"GET download": 9, "GET list": 9}


def test_the_newest_artifacts_are_those_committed_last(lab: Lab) -> None:
    fill_artifacts(lab.store, lab.resolved, range(6), lab.directory / "scratch")
    filled = [manifest for manifest in lab.store.artifacts("sft") if manifest not in lab.made]
    assert len(filled) == 2
    assert list(lab.store.artifacts("sft", newest=2)) == filled
    assert len(list(lab.store.artifacts(newest=1))) == 3
    assert len(list(lab.store.artifacts())) == 9


def test_a_pick_of_one_file_below_each_name_finds_nothing_deeper_and_nothing_else(lab, tmp_path):
    for store in (lab.store, open_store(tmp_path / "store")):
        for name in ("a/x.json", "b/x.json", "b/deep/x.json", "c/y.json", "x.json"):
            store.write_bytes(f"top/{name}", b"123")
        lab.asked()
        found = {found.name: found.size for found in store.each("top", "x.json")}
        assert found == {"top/a/x.json": 3, "top/b/x.json": 3}
        both = [found.name for found in store.each("top", "x.json", "y.json")]
        assert both == [*found, "top/c/y.json"]
        assert store.read_all(["top/b/x.json", "top/none", "top/x.json"]) == [b"123", None, b"123"]
        assert list(store.each("nothing", "x.json")) == []


def test_leases_of_garbage_are_not_listed_again(lab: Lab) -> None:
    """What the sweep has listed tells which there are; a key without working files has none."""
    for run in lab.store.list_runs():
        lab.store.remove(f"runs/{run}")
    fill_artifacts(lab.store, lab.resolved, range(20), lab.directory / "scratch")
    lab.asked()
    garbage = collect_garbage(lab.store, (), False, Settings.from_environment(), lambda text: None)
    assert len([item for item in garbage if item.kind == "artifact"]) == 23
    asked = lab.asked()
    # runs with their decisions, artifacts, work, champions, nights; the cache is of this machine
    assert asked["GET list"] <= 8
    assert asked["GET download"] == 20  # is the lease released


def test_a_live_lease_is_seen_by_the_sweep_also_where_nothing_of_the_work_is_garbage(lab):
    """A stage of a run is made again: its old manifest was set aside, and would be garbage if
    nobody worked on the key."""
    old = lab.made[1]
    lab.store.discard(old.kind, old.key)

    settings = Settings.from_environment().model_copy(update={"lease_seconds": 1.0})

    def aside() -> list[str]:
        found = collect_garbage(lab.store, (), False, settings, lambda text: None)
        return [item.kind for item in found if item.key == old.key]

    with hold(lab.store, old.key, "rebalance", seconds=1.0, poll_seconds=0.1):
        assert aside() == []
    assert aside() == ["set aside", "attempt"]

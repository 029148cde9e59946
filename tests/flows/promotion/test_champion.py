"""The champion of a recipe: an atomic pointer with a history that races, damage and lagging
listings do not break."""

import json
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import Mock

import pytest

from flows.cli import show
from flows.promotion import champion as champions
from flows.promotion.champion import (
    Champion,
    current,
    history,
    line,
    promote,
    promote_by_hand,
    rollback,
    withdrawn,
)
from infra.store.store import Store, open_store
from schemas.base import InputError
from schemas.reports import RunRecord
from tests.fakes.process import python
from tests.flows.runs.synthetic_run import damage as damage_file
from tests.flows.runs.synthetic_run import write_run

RACER = """
import sys
from flows.promotion.champion import current, promote
from flows.runs.record import read_run
from infra.store.store import open_store
store, run = open_store(sys.argv[1]), sys.argv[2]
record, before = read_run(store, run), current(store, "demo")
print("ready", flush=True)
sys.stdin.readline()
entry = promote(store, record, "race", by="nightly", replacing=before)
print(entry.number if entry else None, flush=True)
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with four finished runs, each with a model of its own, and no champion."""
    root = tmp_path_factory.mktemp("store")
    for name in ("a", "b", "c", "d"):
        write_run(root, name, text=name)
    return root


@pytest.fixture
def store(finished: Path) -> Store:
    opened = open_store(finished)
    opened.remove("champions")
    return opened


def record(store: Store, run: str) -> RunRecord:
    return store.read_json(f"runs/{run}/run.json", RunRecord)


def crown(store: Store, *runs: str) -> list[Champion]:
    return [promote_by_hand(store, run, f"because {run}") for run in runs]


def reigning(store: Store) -> str | None:
    entry = current(store, "demo")
    return entry and entry.run_id


def damage(store: Store, number: int, text: bytes = b"{") -> None:
    store.write_bytes(f"champions/demo/{number:06d}.json", text)


def test_a_promoted_run_is_the_champion_and_the_pointer_says_all_about_it(store: Store) -> None:
    assert current(store, "demo") is None
    crown(store, "a")
    entry = promote(
        store, record(store, "b"), "a bounded win", by="nightly", replacing=current(store, "demo")
    )
    assert current(store, "demo") == entry
    grpo = next(stage for stage in record(store, "b").stages if stage.name == "grpo")
    assert (entry.number, entry.change, entry.run_id) == (2, "promotion", "b")
    assert (entry.stage, entry.model) == ("grpo", grpo.artifact)
    assert (entry.why, entry.by) == ("a bounded win", "nightly")
    assert (entry.replaces, entry.restores) == (1, None)
    assert entry.metrics["exact_answer"] == pytest.approx(0.7)
    assert entry.metrics["safe_rate"] == pytest.approx(0.7)
    assert store.path(f"{entry.weights}/curves.jsonl").is_file()
    assert [one.run_id for one in history(store, "demo")] == ["a", "b"]


def test_a_rollback_undoes_promotions_one_by_one_and_not_to_and_fro(store: Store) -> None:
    crown(store, "a", "b", "c")
    back = rollback(store, "demo", "c answers in verse")
    assert (back.run_id, back.change, back.why) == ("b", "rollback", "c answers in verse")
    assert (back.replaces, back.restores) == (3, 2)
    assert reigning(store) == "b"
    assert rollback(store, "demo", "b too").run_id == "a"
    with pytest.raises(InputError, match="before its champion, run a, there is none"):
        rollback(store, "demo", "a too")
    assert [one.number for one in history(store, "demo")] == [1, 2, 3, 4, 5]


def test_a_rollback_after_a_rollback_and_a_promotion_leads_to_what_that_promotion_replaced(store):
    crown(store, "a", "b")
    rollback(store, "demo", "b lost")
    crown(store, "c")
    assert [one.run_id for one in line(history(store, "demo"))] == ["a", "c"]
    assert rollback(store, "demo", "c lost").run_id == "a"


def test_a_model_that_was_rolled_back_is_remembered_until_it_is_promoted_again(store):
    crown(store, "a", "b")
    model = record(store, "b").stages[8].artifact
    assert withdrawn(history(store, "demo")) == {}
    back = rollback(store, "demo", "b lost")
    assert withdrawn(history(store, "demo")) == {model.digest: back}
    crown(store, "b")
    assert withdrawn(history(store, "demo")) == {}


@pytest.mark.parametrize("what", ["no JSON", "another run's id", "another place's"])
def test_a_damaged_entry_is_passed_over_with_a_warning(store, caplog, what):
    crown(store, "a", "b")
    first, second = (store.read_bytes(f"champions/demo/00000{n}.json") or b"" for n in (1, 2))
    changed = json.dumps(json.loads(second) | {"run_id": "d"}).encode()
    damage(store, 2, {"no JSON": b"\xff{", "another run's id": changed}.get(what, first))
    assert reigning(store) == "a"
    assert "champions/demo/000002.json is damaged and is passed over" in caplog.text
    [entry] = crown(store, "c")
    assert (entry.number, entry.replaces) == (3, 1)
    assert rollback(store, "demo", "c lost").run_id == "a"


def test_a_rollback_whose_target_is_damaged_still_counts(store: Store) -> None:
    """Entry 4 returned to number 2, which cannot be read any more; from there one goes back to
    a."""
    crown(store, "a", "b", "c")
    rollback(store, "demo", "c lost")
    damage(store, 2)
    assert reigning(store) == "b"
    assert [one.run_id for one in line(history(store, "demo"))] == ["a", "b"]
    assert rollback(store, "demo", "b lost").run_id == "a"
    assert [one.run_id for one in line(history(store, "demo"))] == ["a"]


def test_a_listing_that_lags_behind_hides_no_champion(store, monkeypatch):
    crown(store, "a", "b", "c")
    complete = store.children
    for listed in ([], ["000001.json"]):
        monkeypatch.setattr(
            store,
            "children",
            lambda name, listed=listed: listed if name == "champions/demo" else complete(name),
        )
        assert reigning(store) == "c"
    [entry] = crown(store, "d")
    assert entry.number == 4


def test_a_promotion_decided_against_another_champion_changes_nothing(store: Store) -> None:
    crown(store, "a")
    before = current(store, "demo")
    crown(store, "b")
    assert promote(store, record(store, "c"), "late", by="nightly", replacing=before) is None
    assert promote(store, record(store, "c"), "later", by="nightly", replacing=None) is None
    assert reigning(store) == "b"


def test_of_racing_promotions_by_hand_each_makes_an_entry_of_its_own(store: Store) -> None:
    """Each of them says what it replaced, so none is lost."""
    threads = [threading.Thread(target=crown, args=(store, run)) for run in ("a", "b", "c", "d")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entries = history(store, "demo")
    assert sorted(one.run_id for one in entries) == ["a", "b", "c", "d"]
    assert [(one.number, one.replaces) for one in entries] == [(1, None), (2, 1), (3, 2), (4, 3)]


def test_of_racing_processes_one_wins_in_a_bucket_too(gcs_bucket, finished):
    """Two runs of one directory store, copied into a bucket as they are."""
    here, bucket = open_store(finished), open_store(f"gs://{gcs_bucket}/some/where")
    copy(here, bucket, ["b", "c"])
    assert sorted(race(bucket, ["b", "c"]), key=str) == [1, None]
    entry = current(bucket, "demo")
    shown = champions.entry_json(bucket, entry)
    assert shown["location"] == f"gs://{gcs_bucket}/some/where/{entry.weights}"


def race(store: Store, runs: Sequence[str]) -> list[int | None]:
    """What `promote` returned in a process for each run, all of which had read the same champion
    before: a number or None."""
    racers = [python("-c", RACER, store.uri, run, stdin=subprocess.PIPE) for run in runs]
    for racer in racers:
        assert racer.stdout.readline() == "ready\n"
    answers = []
    for racer in racers:
        racer.stdin.write("\n")
        racer.stdin.flush()
    for racer in racers:
        answers.append(racer.communicate(timeout=60)[0].strip())
        assert racer.returncode == 0
    return [None if answer == "None" else int(answer) for answer in answers]


def copy(source: Store, target: Store, runs: Sequence[str]) -> None:
    for name in runs:
        for stage in record(source, name).stages:
            place = f"artifacts/{stage.artifact.kind}/{stage.artifact.key}"
            for found in source.objects(place):
                target.write_bytes(found.name, source.read_bytes(found.name) or b"")
        target.write_json(
            f"runs/{name}/run.json", record(source, name).model_copy(update={"store": target.uri})
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"status": "failed"}, "its status is failed. Only a run that succeeded"),
        ({"status": "running", "process": None}, "its status is running"),
        ({"stages": ()}, "has no trained model"),
    ],
)
def test_a_run_without_a_finished_model_is_refused(store, changes, message):
    run = record(store, "a").model_copy(update={"run_id": "x", **changes})
    with pytest.raises(InputError, match=message):
        promote(store, run, "", by="me", replacing=None)
    assert history(store, "demo") == []


@pytest.mark.parametrize("stage", ["grpo", "rebalance"])
def test_a_run_with_a_damaged_artifact_is_refused(tmp_path: Path, stage: str) -> None:
    store, run = write_run(tmp_path)
    damage_file(store, run, stage)
    with pytest.raises(
        InputError, match=f"cannot be promoted: stage {stage}: its artifact is damaged"
    ):
        promote_by_hand(store, run.run_id, "")


def test_the_champion_is_not_promoted_again(store: Store) -> None:
    crown(store, "a")
    with pytest.raises(InputError, match=r"is the champion of recipe demo already \(number 1\)"):
        promote_by_hand(store, "a", "")


def test_a_rollback_to_a_model_that_is_gone_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path, "a", text="a")
    store, _ = write_run(tmp_path, "b", text="b")
    first, _ = crown(store, "a", "b")
    store.discard(first.model.kind, first.model.key)
    with pytest.raises(
        InputError,
        match=r"the champion before was run a, .* it is gone from the store. The champion stays",
    ):
        rollback(store, "demo", "")
    assert reigning(store) == "b"


def test_a_rollback_that_somebody_else_was_faster_than_is_refused(store, monkeypatch):
    """Both meant the same champion; going back twice would be one too many."""
    crown(store, "a", "b", "c")
    create = store.create_json

    def slow(name: str, value: Champion) -> bool:
        monkeypatch.setattr(store, "create_json", create)
        rollback(store, "demo", "faster")
        return create(name, value)

    monkeypatch.setattr(store, "create_json", slow)
    with pytest.raises(InputError, match="somebody else changed the champion in this moment"):
        rollback(store, "demo", "slower")
    assert reigning(store) == "b"


def test_a_recipe_without_a_champion_is_named_with_those_that_have_one(store: Store) -> None:
    crown(store, "a")
    with pytest.raises(
        InputError, match=r"recipe 'dmo' has no champion .*Did you mean 'demo'\? Valid: demo\."
    ):
        rollback(store, "dmo", "")
    with pytest.raises(InputError, match=r"recipe .* has no champion"):
        rollback(store, "../runs", "")


def test_the_history_is_shown_with_what_a_rollback_would_do(store, capsys):
    crown(store, "a", "b")
    value = champions.history_json(store, "demo")
    json.dumps(value)
    assert [one["run_id"] for one in value["history"]] == ["a", "b"]
    assert value["rollbacks"] == [1]
    show.show(show.champions(value))
    shown = capsys.readouterr().out
    assert "because b" in shown
    assert "A rollback would lead to number 1." in shown
    show.show(show.champion(value["history"][1]))
    shown = capsys.readouterr().out
    assert "Champion of demo, number 2: promoted run b (because b)." in shown
    assert value["history"][1]["location"] in shown


def test_who_promotes_is_known_even_without_a_user_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "@" in champions.whoever()
    monkeypatch.setattr("getpass.getuser", Mock(side_effect=KeyError("uid not found")))
    assert champions.whoever().split("@")[0].isdecimal()

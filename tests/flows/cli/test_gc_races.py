"""`lyceum gc` beside runs that begin, commit or wait meanwhile, and killed anywhere."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from flows.cli import gc, needs
from flows.cli.main import main
from infra.store.lease import hold
from infra.store.store import Store, open_store
from tests.flows.cli.gc_yard import Yard, key, short


def test_a_run_that_begins_meanwhile_loses_nothing(yard, meanwhile):
    """Between the listing and the removal a run adopts artifact 1, and another one begins to work
    on key 2."""
    for number in (1, 2, 3):
        yard.commit(number)
        yard.store.discard("sft", key(2))
    meanwhile(gc, "unheld", after=lambda *_: (yard.run("begun", 1), yard.attempt(2)))
    removed = yard.gc("--delete")
    gone = {short(item["name"])[-1]: item["deleted"] for item in removed["items"]}
    assert gone == {"1": False, "2": False, "3": True}
    assert yard.store.valid("sft", key(1))
    assert yard.names() >= {"work/2/1/lease.json", "work/2/kept/step-10/seal.json"}


def test_a_run_that_begins_while_keys_are_removed_loses_nothing(yard, monkeypatch, meanwhile):
    """Before the first lease gc sleeps, as a laptop does: a run adopts artifact 2."""
    for number in (1, 2):
        yard.commit(number)

    def slept(store: Store, where: str, *_: Any) -> None:
        if where == key(1):
            yard.run("begun", 2)
            monkeypatch.setattr(needs, "LOOK_SECONDS", -1.0)

    meanwhile(gc, "seize", before=slept)
    removed = yard.gc("--delete")
    gone = {short(item["name"]): item["deleted"] for item in removed["items"]}
    assert gone == {"artifacts/sft/1": True, "artifacts/sft/2": False}
    assert yard.store.valid("sft", key(2))


@pytest.mark.parametrize("number", [1, 2])
def test_an_artifact_that_a_run_found_before_it_was_set_aside_comes_back(yard, meanwhile, number):
    """Between gc's last look at the records and the artifact's manifest: the run has ended by the
    time at which it could find anything gone."""
    for each in (1, 2):
        yard.commit(each)
    yard.attempt(number)
    found = yard.store.lookup("sft", key(number))

    def cached(store: Store, kind: str, where: str, why: str) -> None:
        if where == key(number):
            yard.run("cached", number, status="succeeded")

    meanwhile(Store, "discard", before=cached)
    removed = yard.gc("--delete")
    gone = {short(item["name"]): item["deleted"] for item in removed["items"]}
    assert [name for name, deleted in gone.items() if deleted] == [f"artifacts/sft/{3 - number}"]
    assert yard.store.valid("sft", key(number)) == found
    assert yard.names() >= {f"work/{number}/1/{name}" for name in gc.SMALL}


def test_an_artifact_comes_back_when_nobody_can_tell_whether_it_is_needed(yard, meanwhile):
    """A record has rotted since gc looked last."""
    yard.commit(1)
    rots = "runs/rotten/run.json", b"{"
    meanwhile(Store, "discard", before=lambda *_: yard.store.write_bytes(*rots))
    yard.gc("--delete", code=2)
    assert yard.store.valid("sft", key(1))


def test_an_artifact_comes_back_with_the_next_gc_when_this_one_is_killed(yard, monkeypatch):
    """A run has found it, and gc is killed as soon as its manifest is aside. Not what was made anew
    since, nor what somebody discarded."""
    for number in (1, 2, 3):
        yard.commit(number)
    found = yard.store.lookup("sft", key(1))
    discard = Store.discard

    def killed(store: Store, kind: str, where: str, why: str) -> None:
        yard.run("cached", 1, 2, 3, status="succeeded")
        for number in (1, 2):
            discard(store, kind, key(number), why)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Store, "discard", killed)
        with pytest.raises(Killed):
            main(["gc", "--store", yard.store.uri, "--delete"])
    made = yard.commit(2, attempt="2", text="the same")
    yard.store.discard("sft", key(3))
    assert yard.gc("--delete")["items"]
    assert yard.store.valid("sft", key(1)) == found
    assert yard.store.valid("sft", key(2)) == made
    assert yard.store.valid("sft", key(3)) is None
    assert yard.gc("--delete")["items"] == []


def test_files_that_were_committed_meanwhile_stay(yard, meanwhile):
    """The job was in its commit when the store was listed: files without a manifest. Then it
    released its lease."""
    yard.run("running", 1)
    manifest = yard.commit(1)
    name = f"artifacts/sft/{key(1)}/manifest.json"
    content = yard.store.read_bytes(name) or b""
    yard.store.remove(name)
    meanwhile(gc, "unheld", before=lambda *_: yard.store.write_bytes(name, content))
    [item] = yard.gc("--delete")["items"]
    assert (item["kind"], item["deleted"]) == ("attempt", False)
    assert yard.store.valid("sft", key(1)) == manifest


def test_a_copy_of_what_was_committed_meanwhile_stays(bucket_yard, meanwhile):
    """After gc had listed a bucket's artifacts, and before it looked at this machine's copies of
    them: the next job of the run reads it here, and failed."""
    yard, copies = bucket_yard, list[Path]()
    yard.run("running", 1)

    def commit(_: Any) -> None:
        copies.append(yard.store.local_dir(yard.commit(1)))

    meanwhile(gc._Sweep, "_cache", before=commit)
    items = yard.gc("--delete")["items"]
    assert {(item["kind"], item["deleted"]) for item in items} == {("cache", False)}
    assert (copies[0] / "model.txt").read_text() == "weights"


def test_while_a_key_is_removed_nobody_runs_its_stage(yard, monkeypatch):
    """Whoever wants to, waits, and finds a clean field."""
    yard.commit(1)
    yard.attempt(1)
    removing = threading.Event()
    seen: list[str] = []
    remove = Store.remove

    def slowly(store: Store, name: str) -> None:
        removing.set()
        time.sleep(0.1)
        remove(store, name)

    def take() -> None:
        removing.wait(10)
        patience = {"seconds": 5, "poll_seconds": 0.01, "waiting": seen.append}
        with hold(yard.store, key(1), "run", **patience) as lease:
            seen.append(lease.attempt)
            seen.append(str(sorted(yard.names())))

    monkeypatch.setattr(Store, "remove", slowly)
    other = threading.Thread(target=take)
    other.start()
    yard.gc("--delete")
    other.join()
    assert "lyceum gc" in seen[0]
    assert seen[-1] == str([f"work/1/{seen[-2]}/lease.json"])


def test_the_lease_of_a_key_is_the_last_that_goes(yard, meanwhile):
    """After each removal: whether the lease under which gc removes is still there."""
    yard.attempt(1)
    held: list[bool] = []

    def look(store: Store, name: str) -> None:
        held.append(store.read_bytes(f"work/{key(1)}/2/lease.json") is not None)

    meanwhile(Store, "remove", after=look)
    yard.gc("--delete")
    assert held == [True] * (len(held) - 1) + [False]
    assert len(held) > 1


def test_a_gc_that_stood_still_removes_nothing_of_a_run_that_took_over(yard, meanwhile):
    """After its first removal of a key it sleeps, as a laptop does, and its lease runs out: a run
    takes the lease and begins to work."""
    for attempt in ("1", "2"):
        yard.attempt(1, attempt)
    removed: list[str] = []

    def stood_still(store: Store, name: str) -> None:
        if not removed:
            yard.attempt(1, "4")
        removed.append(name)

    meanwhile(Store, "remove", after=stood_still)
    [item] = yard.gc("--delete")["items"]
    assert not item["deleted"]
    assert len(removed) == 1, "not even its own lease: it was taken over"
    assert {name for name in yard.names() if name.startswith("work/1/4/")}


class Killed(BaseException):
    pass


def kill_at(patch: pytest.MonkeyPatch, number: int) -> None:
    """Let the store's changes raise Killed from the `number`-th on: a dead process does nothing
    more."""
    left = [number]

    def wrapped(change: Any) -> Any:
        def perform(*arguments: Any) -> Any:
            left[0] -= 1
            if left[0] <= 0:
                raise Killed
            return change(*arguments)

        return perform

    for name in ("remove", "discard", "create_json"):
        patch.setattr(Store, name, wrapped(getattr(Store, name)))


def test_a_gc_that_is_killed_anywhere_leaves_whole_artifacts_or_none_and_the_next_one_finishes(
    tmp_path, impatient, tiny_recipe, capsys, monkeypatch
):
    """At each of its changes to the store in turn. All that may be left in the end is its lease of
    a key that is needed."""
    monkeypatch.setenv("LYCEUM_LEASE_SECONDS", "0.05")
    number, killed = 0, True
    while killed:
        number, killed = number + 1, False
        each = Yard(open_store(tmp_path / str(number)), tiny_recipe, capsys, tmp_path)
        each.run("failed", 2)
        each.commit(2)
        each.store.discard("sft", key(2))
        each.commit(2, attempt="2")
        each.commit(4)
        each.attempt(4)
        with monkeypatch.context() as patch:
            kill_at(patch, number)
            try:
                main(["gc", "--store", each.store.uri, "--delete"])
            except Killed:
                killed = True
        capsys.readouterr()
        assert each.store.valid("sft", key(2))
        unneeded = each.store.lookup("sft", key(4))
        assert unneeded is None or each.store.verify(unneeded) == []
        each.gc("--delete")
        left = {name for name in each.names() if not name.endswith("/lease.json")}
        kept = {f"artifacts/sft/2/{name}" for name in ("manifest.json", "data/2/model.txt")}
        assert left == {"runs/failed/run.json", *kept}
    assert number > 9

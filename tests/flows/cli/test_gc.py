"""`lyceum gc`: exactly the garbage is listed and removed, and nothing that a run needs or a live
lease holds."""

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from flows.cli import gc
from flows.cli.main import main
from flows.runs.record import record_name
from infra.store.lease import hold, this_process
from infra.store.store import Store, attempt_file, open_store
from tests.flows.cli.gc_yard import ELSEWHERE, Yard, key, short


@pytest.fixture
def impatient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases expire soon, and this machine's cache is the test's own."""
    monkeypatch.setenv("LYCEUM_LEASE_SECONDS", "0.3")
    monkeypatch.setenv("LYCEUM_POLL_SECONDS", "0.05")
    monkeypatch.setenv("LYCEUM_CACHE", str(tmp_path / "cache"))


@pytest.fixture(params=["directory", "bucket"])
def yard(
    impatient: None,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    tiny_recipe: Path,
    capsys: pytest.CaptureFixture[str],
) -> Yard:
    place = (
        tmp_path / "store"
        if request.param == "directory"
        else f"gs://{request.getfixturevalue('gcs_bucket')}/some/where"
    )
    return Yard(open_store(place), tiny_recipe, capsys, tmp_path)


@pytest.fixture
def here(
    impatient: None, tmp_path: Path, tiny_recipe: Path, capsys: pytest.CaptureFixture[str]
) -> Yard:
    """In a directory, for what concerns directories only."""
    return Yard(open_store(tmp_path / "store"), tiny_recipe, capsys, tmp_path)


def litter(yard: Yard) -> set[tuple[str, str]]:
    """All kinds of garbage around two artifacts that are needed: 1 as it should be, and 2 with a
    past. Returns the garbage."""
    store = yard.store
    yard.run("failed", 1, 2, 3)
    yard.commit(1)
    yard.attempt(1)
    yard.commit(2, attempt="1")
    store.discard("sft", key(2))
    yard.commit(2, attempt="2")
    store.write_bytes(f"artifacts/sft/{key(2)}/data/3/model.txt", b"killed before its manifest")
    yard.attempt(3)  # killed in the middle: its checkpoints are what it resumes from
    store.write_bytes(f"artifacts/sft/{key(3)}/data/1/model.txt", b"killed before its manifest")
    yard.commit(4)
    yard.attempt(4)
    store.write_bytes(f"work/{key(5)}/1/out/model.txt", b"half-deleted: no lease, no job")
    [aside] = [
        name
        for name in store.children(f"artifacts/sft/{key(2)}")
        if name.startswith("manifest.discarded")
    ]
    assert aside
    return {
        ("artifact", "artifacts/sft/4"),
        ("attempt", "artifacts/sft/2/data/1"),
        ("attempt", "artifacts/sft/2/data/3"),
        ("attempt", "artifacts/sft/3/data/1"),
        ("set aside", "artifacts/sft/2"),
        ("work", "work/1"),
        ("work", "work/4"),
        ("work", "work/5"),
    }


NEEDED = {
    "runs/failed/run.json",
    "artifacts/sft/1/manifest.json",
    "artifacts/sft/1/data/1/model.txt",
    "artifacts/sft/2/manifest.json",
    "artifacts/sft/2/data/2/model.txt",
    *(f"work/1/1/{name}" for name in ("lease.json", "job.json", "status.json", "log.txt")),
    *(
        f"work/3/1/{name}"
        for name in ("lease.json", "job.json", "status.json", "log.txt", "out/model.txt")
    ),
    "work/3/kept/step-10/seal.json",
}


def test_all_garbage_is_listed_with_its_size_and_nothing_is_changed(yard: Yard) -> None:
    expected = litter(yard)
    before, sizes = (
        yard.names(),
        {
            short(found.name): found.size
            for top in ("artifacts", "work")
            for found in yard.store.objects(top)
        },
    )
    listed = yard.gc()
    assert {(item["kind"], short(item["name"])) for item in listed["items"]} == expected
    assert yard.names() == before
    assert listed["bytes"] == sum(sizes[name] for name in before - NEEDED)
    assert sum(item["objects"] for item in listed["items"]) == len(before - NEEDED)
    assert listed["totals"]["attempt"]["count"] == 3
    assert sum(total["bytes"] for total in listed["totals"].values()) == listed["bytes"]
    assert not any(item["deleted"] for item in listed["items"])
    assert time.time() - 60 < min(item["written"] for item in listed["items"])


def test_delete_removes_what_is_listed_and_nothing_else(yard: Yard) -> None:
    expected = litter(yard)
    removed = yard.gc("--delete")
    assert {
        (item["kind"], short(item["name"])) for item in removed["items"] if item["deleted"]
    } == expected
    assert removed["deleted_bytes"] == removed["bytes"]
    assert yard.names() == NEEDED
    assert yard.found() == set()
    for number in (1, 2):
        assert yard.store.valid("sft", key(number))
    assert yard.store.children("work") == [key(1), key(3)]


def test_the_table_says_what_why_how_big_and_what_to_do(
    yard: Yard, capsys: pytest.CaptureFixture[str]
) -> None:
    litter(yard)
    assert main(["gc", "--store", yard.store.uri]) == 0
    shown = capsys.readouterr().out
    for text in (
        "no run needs it",
        "no manifest names it",
        "its stage is committed",
        f"artifacts/sft/{key(4)[:12]}",
        "--delete removes it",
    ):
        assert text in shown
    assert main(["gc", "--store", yard.store.uri, "--delete"]) == 0
    assert "were removed from" in capsys.readouterr().out
    assert main(["gc", "--store", yard.store.uri]) == 0
    assert "is garbage" in capsys.readouterr().out


def test_an_empty_store_has_no_garbage_and_is_not_created(impatient: None, tmp_path: Path) -> None:
    assert main(["gc", "--store", str(tmp_path / "none"), "--delete"]) == 0
    assert not (tmp_path / "none").exists()


def test_what_lyceum_did_not_make_is_left_alone(yard: Yard) -> None:
    """A store may be given as a directory that holds other things, too."""
    for name in (
        "work/project/main.py",
        "artifacts/build/today/log.txt",
        "artifacts/notes.txt",
        f"work/{'f' * 63}/a.txt",
        "runs/mine/a.txt",
    ):
        yard.store.write_bytes(name, b"mine")
    before = yard.names()
    assert yard.found("--delete") == set()
    assert yard.names() == before


def test_temporary_files_of_killed_processes_are_removed_once_they_are_old(here: Yard) -> None:
    here.run("failed", 1)
    here.commit(1)
    for place, age in (
        (f"artifacts/sft/{key(1)}/.manifest.json.aa", 7200),
        (f"work/{key(1)}/1/.status.json.bb", 7200),
        ("runs/failed/.run.json.cc", 0),
    ):
        path = here.store.path("runs").parent / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("half")
        os.utime(path, (time.time() - age,) * 2)
    assert here.found("--delete") == {
        ("temporary", "artifacts/sft/1/.manifest.json.aa"),
        ("temporary", "work/1/1/.status.json.bb"),
    }
    assert [name for name in here.names() if "/." in name] == ["runs/failed/.run.json.cc"]


def test_what_a_live_lease_holds_stays_and_so_do_its_job_s_inputs(yard: Yard) -> None:
    """The job of key 1 reads artifact 2. No run names either, because the store did not take the
    run's record."""
    yard.commit(2)
    yard.commit(3)
    with hold(yard.store, key(1), "sft", seconds=0.3, poll_seconds=0.05):
        yard.attempt(1, inputs=(2,))
        before = yard.names()
        assert yard.found("--delete") == {("artifact", "artifacts/sft/3")}
        assert "1 leases may be held; watching for up to 0.3 s" in yard.messages
        assert before - yard.names() == {
            "artifacts/sft/3/manifest.json",
            "artifacts/sft/3/data/1/model.txt",
        }


def test_silent_leases_of_other_machines_are_waited_for_together(yard: Yard) -> None:
    for number in range(5):
        yard.attempt(number, process=ELSEWHERE)
    began = time.monotonic()
    assert len(yard.found("--delete")) == 5
    assert time.monotonic() - began > 0.3
    assert yard.messages.count("5 leases may be held") == 1
    assert yard.names() == set()


def test_a_damaged_run_record_ends_the_matter(yard: Yard) -> None:
    """Nobody can tell what that run needs. It can be given up by name."""
    yard.run("good", 1)
    yard.commit(1)
    yard.commit(2)
    yard.store.write_bytes(record_name("bad"), b"{")
    before = yard.names()
    yard.gc("--delete", code=2)
    assert "what run bad needs" in yard.messages
    assert "--drop-run bad" in yard.messages
    assert yard.names() == before
    assert yard.found("--delete", "--drop-run", "bad") == {
        ("run", "runs/bad"),
        ("artifact", "artifacts/sft/2"),
    }
    assert yard.store.valid("sft", key(1))


def test_dropping_a_run_makes_garbage_of_what_only_it_needs(yard: Yard) -> None:
    yard.run("old", 1, 2)
    yard.run("new", 2)
    yard.store.write_bytes("runs/old/report.html", b"report")
    for number in (1, 2):
        yard.commit(number)
    before = yard.names()
    expected = {("run", "runs/old"), ("artifact", "artifacts/sft/1")}
    assert yard.found("--drop-run", "old") == expected
    assert yard.names() == before
    assert yard.found("--drop-run", "old", "--delete") == expected
    assert yard.store.list_runs() == ["new"]
    assert yard.names() == {
        "runs/new/run.json",
        "artifacts/sft/2/manifest.json",
        "artifacts/sft/2/data/1/model.txt",
    }


def test_a_run_that_is_unknown_or_still_running_is_not_dropped(yard: Yard) -> None:
    yard.run("live", 1, status="running", process=this_process())
    yard.gc("--drop-run", "lives", code=2)
    assert "Did you mean 'live'?" in yard.messages
    yard.gc("--drop-run", "live", "--delete", code=2)
    assert "stop it before dropping it" in yard.messages
    assert yard.store.list_runs() == ["live"]


def test_a_run_that_begins_meanwhile_loses_nothing(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the listing and the removal a run adopts artifact 1, and another one begins to work
    on key 2."""
    for number in (1, 2, 3):
        yard.commit(number)
        yard.store.discard("sft", key(2))
    watched = gc.unheld

    def meanwhile(*arguments: Any, **named: Any) -> dict[str, int]:
        free = watched(*arguments, **named)
        yard.run("begun", 1)
        yard.attempt(2)
        return free

    monkeypatch.setattr(gc, "unheld", meanwhile)
    removed = yard.gc("--delete")
    assert {(short(item["name"]), item["deleted"]) for item in removed["items"]} == {
        ("artifacts/sft/1", False),
        ("artifacts/sft/2", False),
        ("artifacts/sft/3", True),
    }
    assert yard.store.valid("sft", key(1))
    assert {name for name in yard.names() if name.startswith("work/2/")} >= {
        "work/2/1/lease.json",
        "work/2/kept/step-10/seal.json",
    }


def test_files_that_were_committed_meanwhile_stay(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job was in its commit when the store was listed: files without a manifest. Then it
    released its lease."""
    yard.run("running", 1)
    manifest = yard.commit(1)
    name = f"artifacts/sft/{key(1)}/manifest.json"
    content = yard.store.read_bytes(name) or b""
    yard.store.remove(name)
    watched = gc.unheld

    def meanwhile(*arguments: Any, **named: Any) -> dict[str, int]:
        yard.store.write_bytes(name, content)
        return watched(*arguments, **named)

    monkeypatch.setattr(gc, "unheld", meanwhile)
    [item] = yard.gc("--delete")["items"]
    assert (item["kind"], item["deleted"]) == ("attempt", False)
    assert yard.store.valid("sft", key(1)) == manifest


def test_while_a_key_is_removed_nobody_runs_its_stage(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        with hold(
            yard.store, key(1), "run", seconds=5, poll_seconds=0.01, waiting=seen.append
        ) as lease:
            seen.append(lease.attempt)
            seen.append(str(sorted(yard.names())))

    monkeypatch.setattr(Store, "remove", slowly)
    other = threading.Thread(target=take)
    other.start()
    yard.gc("--delete")
    other.join()
    assert "lyceum gc" in seen[0]
    assert seen[-1] == str([f"work/1/{seen[-2]}/lease.json"])


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
    tmp_path: Path,
    impatient: None,
    tiny_recipe: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
        assert left == {
            "runs/failed/run.json",
            "artifacts/sft/2/manifest.json",
            "artifacts/sft/2/data/2/model.txt",
        }
    assert number > 9


def test_of_a_bucket_this_machine_s_copies_and_working_files_go_with_what_they_belong_to(
    impatient: None,
    gcs_bucket: str,
    tmp_path: Path,
    tiny_recipe: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Artifact 1 is needed, but not its former attempt; 2 is garbage, 3 was removed by another
    machine; of 4 a job left an output here."""
    yard = Yard(open_store(f"gs://{gcs_bucket}"), tiny_recipe, capsys, tmp_path)
    yard.run("failed", 1, 4)
    copies = {
        number: yard.store.local_dir(yard.commit(number)) / "model.txt" for number in (1, 2, 3)
    }
    yard.store.remove(f"artifacts/sft/{key(3)}")
    former = copies[1].parents[1] / "0" / "model.txt"
    former.parent.mkdir()
    former.write_text("former")
    for number in (1, 2, 4):
        out = yard.store.path(attempt_file(key(number), "1", "out/model.txt"))
        out.parent.mkdir(parents=True)
        out.write_text("half")
        (out.parent.parent / "log.txt").write_text("log")
    cached = {("cache", f"trees/artifacts/sft/{number}") for number in (1, 2, 3)} | {
        ("cache", f"work/{number}") for number in (1, 2)
    }
    parts = {("cache", "parts/artifacts/sft/2"), ("cache", "parts/artifacts/sft/3")}
    assert yard.found() - parts == {("artifact", "artifacts/sft/2"), *cached}
    assert {number for number, path in copies.items() if path.exists()} == {1, 2, 3}
    yard.gc("--delete")
    assert {number for number, path in copies.items() if path.exists()} == {1}
    assert not former.exists()
    work = yard.store.path("work")
    assert sorted(short(path.relative_to(work).as_posix()) for path in work.rglob("*.txt")) == [
        "1/1/log.txt",
        "4/1/log.txt",
        "4/1/out/model.txt",
    ]
    assert yard.found() == set()

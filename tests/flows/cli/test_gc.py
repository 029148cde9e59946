"""`lyceum gc`: exactly the garbage is listed and removed, and nothing that a run needs or a live
lease holds."""

import os
import time
from pathlib import Path

from flows.cli import gc
from flows.cli.main import main
from flows.recipe.resolve import resolve
from flows.runs.record import RunLog, record_name
from infra.process_identity import this_process
from infra.store.lease import hold
from infra.store.store import attempt_file
from schemas.reports import StageRecord
from tests.flows.cli.gc_yard import ELSEWHERE, Yard, key, short

HEX = "0" * 32


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
    children = store.children(f"artifacts/sft/{key(2)}")
    assert [name.startswith("manifest.discarded") for name in children].count(True) == 1
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
    *(f"work/{number}/1/{name}" for number in (1, 3) for name in gc.SMALL),
    "work/3/1/out/model.txt",
    "work/3/kept/step-10/seal.json",
}


def test_all_garbage_is_listed_with_its_size_and_nothing_is_changed(yard: Yard) -> None:
    began = time.time()
    expected = litter(yard)
    before = yard.names()
    listed = [found for top in ("artifacts", "work") for found in yard.store.objects(top)]
    sizes = {short(found.name): found.size for found in listed}
    listed = yard.gc()
    assert {(item["kind"], short(item["name"])) for item in listed["items"]} == expected
    assert yard.names() == before
    assert listed["bytes"] == sum(sizes[name] for name in before - NEEDED)
    assert sum(item["objects"] for item in listed["items"]) == len(before - NEEDED)
    assert listed["totals"]["attempt"]["count"] == 3
    assert sum(total["bytes"] for total in listed["totals"].values()) == listed["bytes"]
    assert not any(item["deleted"] for item in listed["items"])
    assert began - 2 < min(item["written"] for item in listed["items"])


def test_delete_removes_what_is_listed_and_nothing_else(yard: Yard) -> None:
    expected = litter(yard)
    removed = yard.gc("--delete")
    gone = [item for item in removed["items"] if item["deleted"]]
    assert {(item["kind"], short(item["name"])) for item in gone} == expected
    assert removed["deleted_bytes"] == removed["bytes"]
    assert yard.names() == NEEDED
    assert yard.found() == set()
    for number in (1, 2):
        assert yard.store.valid("sft", key(number))
    assert yard.store.children("work") == [key(1), key(3)]


def test_the_table_says_what_why_how_big_and_what_to_do(yard, lyceum):
    litter(yard)
    place = "gc", "--store", yard.store.uri
    shown = lyceum(*place).out
    whys = ("no run needs it", "no manifest names it", "its stage is committed")
    for text in (*whys, f"artifacts/sft/{key(4)[:12]}", "--delete removes it"):
        assert text in shown
    assert "were removed from" in lyceum(*place, "--delete").out
    assert "is garbage" in lyceum(*place).out


def test_an_empty_store_has_no_garbage_and_is_not_created(impatient: None, tmp_path: Path) -> None:
    assert main(["gc", "--store", str(tmp_path / "none"), "--delete"]) == 0
    assert not (tmp_path / "none").exists()


def test_what_lyceum_did_not_make_is_left_alone(yard: Yard) -> None:
    """A store may be given as a directory that holds other things, too."""
    names = "work/project/main.py artifacts/build/today/log.txt artifacts/notes.txt runs/mine/a.txt"
    for name in (*names.split(), f"work/{'f' * 63}/a.txt"):
        yard.store.write_bytes(name, b"mine")
    if yard.store.is_directory:
        for name in ("runs/.env", "work/.gitignore", "runs/mine/.a.txt.swp"):
            path = yard.store.path("runs").parent / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("mine")
            os.utime(path, (time.time() - 7200,) * 2)
    before = yard.names()
    assert yard.found("--delete") == set()
    assert yard.names() == before


def test_temporary_files_of_killed_processes_are_removed_once_they_are_old(here: Yard) -> None:
    here.run("failed", 1)
    here.commit(1)
    for place, age in (
        (f"artifacts/sft/{key(1)}/.manifest.json.{HEX}", 7200),
        (f"work/{key(1)}/1/.status.json.{HEX}", 7200),
        (f"runs/failed/.run.json.{HEX}", 0),
    ):
        path = here.store.path("runs").parent / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("half")
        os.utime(path, (time.time() - age,) * 2)
    assert here.found("--delete") == {
        ("temporary", f"artifacts/sft/1/.manifest.json.{HEX}"),
        ("temporary", f"work/1/1/.status.json.{HEX}"),
    }
    assert [name for name in here.names() if "/." in name] == [f"runs/failed/.run.json.{HEX}"]


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
        gone = {f"artifacts/sft/3/{name}" for name in ("manifest.json", "data/1/model.txt")}
        assert before - yard.names() == gone


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
    gone = {("run", "runs/bad"), ("artifact", "artifacts/sft/2")}
    assert yard.found("--delete", "--drop-run", "bad") == gone
    assert yard.store.valid("sft", key(1))


def test_what_a_killed_run_had_on_record_of_its_stages_is_needed(yard, tiny_recipe):
    yard.commit(1)
    yard.commit(2)
    log = RunLog(yard.store, resolve(str(tiny_recipe)), "local", lambda record: None)
    log.stage(StageRecord(name="distill", kind="distill", key=key(1), status="running"))
    assert yard.found("--delete") == {("artifact", "artifacts/sft/2")}


def test_dropping_a_run_makes_garbage_of_what_only_it_needs(yard: Yard) -> None:
    yard.run("old", 1, 2)
    yard.run("new", 2)
    yard.store.write_bytes("runs/old/report.html", b"report")
    for number in (1, 2):
        yard.commit(number)
    before = yard.names()
    expected = {("run", "runs/old"), ("artifact", "artifacts/sft/1")}
    assert yard.found("--drop-run", "old") == expected
    twice = yard.gc("--drop-run", "old", "--drop-run", "old")
    assert twice["totals"]["run"]["count"] == 1
    assert yard.names() == before
    assert yard.found("--drop-run", "old", "--delete") == expected
    assert yard.store.list_runs() == ["new"]
    left = {f"artifacts/sft/2/{name}" for name in ("manifest.json", "data/1/model.txt")}
    assert yard.names() == {"runs/new/run.json", *left}


def test_a_run_that_is_unknown_or_still_running_is_not_dropped(yard: Yard) -> None:
    yard.run("live", 1, status="running", process=this_process())
    yard.gc("--drop-run", "lives", code=2)
    assert "Did you mean 'live'?" in yard.messages
    yard.gc("--drop-run", "live", "--delete", code=2)
    assert "stop it before dropping it" in yard.messages
    assert yard.store.list_runs() == ["live"]


def test_of_a_bucket_this_machine_s_copies_and_working_files_go_with_what_they_belong_to(
    bucket_yard: Yard,
) -> None:
    """Artifact 1 is needed, but not its former attempt; 2 is garbage, 3 was removed by another
    machine; of 4 a job left an output here."""
    yard = bucket_yard
    yard.run("failed", 1, 4)
    made = {number: yard.commit(number) for number in (1, 2, 3)}
    copies = {number: yard.store.local_dir(one) / "model.txt" for number, one in made.items()}
    yard.store.remove(f"artifacts/sft/{key(3)}")
    former = copies[1].parents[1] / "0" / "model.txt"
    former.parent.mkdir()
    former.write_text("former")
    for number in (1, 2, 4):
        out = yard.store.path(attempt_file(key(number), "1", "out/model.txt"))
        out.parent.mkdir(parents=True)
        out.write_text("half")
        (out.parent.parent / "log.txt").write_text("log")
    cached = {("cache", f"trees/artifacts/sft/{number}") for number in (1, 2, 3)}
    cached |= {("cache", f"work/{number}") for number in (1, 2)}
    parts = {("cache", f"parts/artifacts/sft/{number}") for number in (2, 3)}
    assert yard.found() - parts == {("artifact", "artifacts/sft/2"), *cached}
    assert {number for number, path in copies.items() if path.exists()} == {1, 2, 3}
    yard.gc("--delete")
    assert {number for number, path in copies.items() if path.exists()} == {1}
    assert not former.exists()
    work = yard.store.path("work")
    left = {short(path.relative_to(work).as_posix()) for path in work.rglob("*.txt")}
    assert left == {"1/1/log.txt", "4/1/log.txt", "4/1/out/model.txt"}
    assert yard.found() == set()

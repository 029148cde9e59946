"""One point of `benchmarks.growth`, in a process of its own:

    python -m benchmarks.growth_axes AXIS SIZE DIRECTORY [STORE]

Prints, as one JSON object, what each measure took: {"lyceum runs": {"seconds": 0.02, "MB": 1.5}}.
Seconds are the best of up to three; MB is how far the memory that the process and its children hold
rose above where it was before. Where the store is in a bucket it is {"requests": 12, "listed": 40}:
what the fake of Cloud Storage answered, and the objects and prefixes in its listings. Everything
was called once before, on the same store or a smaller input, so that imports and first connections
count nowhere.
"""

import contextlib
import gc
import io
import json
import os
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.paired import resident
from schemas.reports import RunRecord, StageRecord

if TYPE_CHECKING:
    from flows.recipe.resolve import ResolvedRecipe
    from infra.store.store import Store

Point = dict[str, dict[str, float]]
CHANGE = "stages.rebalance.config.seed=99"
"""An override with which the second stage, and so all after it, are not cached."""
LONG = 5.0
"""Seconds from which a call is made only once: nothing of it is the noise of a start."""


class Meter:
    """Measures calls; see above."""

    def __init__(self) -> None:
        self.point: Point = {}
        self._url = os.environ.get("STORAGE_EMULATOR_HOST")
        self._listed = 0
        if self._url:
            self._count_listings()

    def measure(self, name: str, call: Callable[[], object], *, warm: bool = True) -> None:
        """Call once without a look if `warm`, and then with."""
        if warm:
            call()
        self.point[name] = self._asked(call) if self._url else self._took(call)

    def _took(self, call: Callable[[], object]) -> dict[str, float]:
        best, rise = float("inf"), 0.0
        for _ in range(3):
            gc.collect()
            # The peak starts again from what is resident now.
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
            before = _memory("VmRSS")
            with _children() as children:
                began = time.perf_counter()
                call()
                best = min(best, time.perf_counter() - began)
            rise = max(rise, _memory("VmHWM") - before + max(children))
            if best > LONG:
                break
        return {"seconds": best, "MB": rise}

    def _asked(self, call: Callable[[], object]) -> dict[str, float]:
        self._listed = 0
        self._control("forget_requests")
        call()
        requests = sum(json.loads(self._control("requests")).values())
        return {"requests": requests, "listed": self._listed}

    def _control(self, verb: str) -> bytes:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self._url}/_control/{verb}", b"{}", headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return bytes(answer.read())

    def _count_listings(self) -> None:
        from infra.gcs.bucket import Bucket

        pages = Bucket._pages

        def counted(bucket: Bucket, prefix: str, **options: Any) -> Any:
            for blobs, prefixes in pages(bucket, prefix, **options):
                self._listed += len(blobs) + len(prefixes)
                yield blobs, prefixes

        Bucket._pages = counted  # type: ignore[method-assign]


def _memory(field: str) -> float:
    """A field of /proc/self/status, MB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) / 1024


@contextlib.contextmanager
def _children() -> Iterator[list[float]]:
    """Collects, a few times a second, the MB that this process's children hold together."""
    seen, done = [0.0], threading.Event()

    def look() -> None:
        while not done.wait(0.25):
            seen.append(resident(os.getpid()) / 2**20 - _memory("VmRSS"))

    looker = threading.Thread(target=look)
    looker.start()
    try:
        yield seen
    finally:
        done.set()
        looker.join()


def rows(meter: Meter, size: int, directory: Path, _: str) -> None:
    """The whole rebalance stage."""
    from benchmarks.rebalance_scale import make
    from infra.store.store import open_store
    from infra.store.workspace import Workspace
    from tasks.contract.job import Job
    from tasks.stages import rebalance

    def stage(count: int, where: Path) -> Callable[[], object]:
        source = where / "examples"
        source.mkdir(parents=True)
        make(source, count)
        with (source / "examples.jsonl").open("wb") as joined:
            for shard in sorted(source.glob("rows-*.jsonl")):
                joined.write(shard.read_bytes())
                shard.unlink()
        for name in ("unsolved", "pairs", "dropped"):
            (source / f"{name}.jsonl").touch()
        teacher, spent = {"name": "procedural", "rows": {"math": count}}, {"usd": 0.0, "tokens": 0}
        about = {"teachers": [teacher], "seed": 0, "spent": [spent]}
        (source / "teachers.json").write_text(json.dumps(about), encoding="utf-8")
        quota = {"train": count // 2, "validation": count // 100, "heldout": count // 20}
        config = rebalance.Config.parse({"quotas": {"math": quota}, "top_up": 0})

        def run() -> None:
            out = where / f"out-{time.monotonic_ns()}"
            out.mkdir()
            work = Workspace(open_store(where / "store"), "key", "0")
            rebalance.run(Job(config, {"examples": source}, out, work))

        return run

    stage(1000, directory / "warm")()
    meter.measure("rebalance stage", stage(size, directory / "rows"), warm=False)


def sequence(meter: Meter, size: int, directory: Path, _: str) -> None:
    """A step of the sft stage's trainer, four rows of so many tokens."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import numpy as np

    from tasks.data.packing import pack
    from tasks.models.loading import base_model
    from tasks.stages import sft

    draw = np.random.default_rng(0).integers
    texts = [(draw(10, 200, 20).tolist(), draw(10, 200, 44).tolist()) for _ in range(size // 16)]
    packed = pack(texts, size, 0)
    table = {"model": "gemma3-tiny", "steps": 1000, "optimizer": {"learning_rate": 1e-3}}
    config = sft.Config.parse({**table, "batch_size": 4, "sequence_length": size})
    trainer = sft.trainer_of(config, base_model("gemma3-tiny", 0))
    batch = sft.batch(packed, np.arange(4), 1 / packed.mask[:4].sum())
    meter.measure("SFT step", lambda: float(trainer.step(batch)[0]))


def stages(meter: Meter, size: int, directory: Path, _: str) -> None:
    """What is done with a recipe of so many stages, the artifacts of which exist."""
    from benchmarks.growth_stores import commit_chain, hurried, write_recipe
    from flows.recipe.resolve import resolve
    from flows.report.page import report_of
    from flows.runs.record import read_run
    from flows.runs.results import read_results
    from infra.store.store import open_store

    store, recipe = open_store(directory / "store"), directory / "growth.toml"
    small = directory / "small.toml"
    write_recipe(small, 3)  # the first stages of the other
    resolved = write_recipe(recipe, size)
    with hurried():
        commit_chain(store, resolved, directory / "scratch")
    meter.measure("resolve", lambda: resolve(str(recipe)))
    _plans(meter, recipe, store.uri)
    _run(small, store.uri)
    made: list[str] = []
    meter.measure("cached run", lambda: made.append(_run(recipe, store.uri)), warm=False)
    record = read_run(store, made[-1])
    meter.measure("of it the run's record", lambda: _record(store, resolved, record), warm=False)
    meter.measure(
        "of it the report", lambda: report_of(read_results(store, record)).html(), warm=False
    )


def artifacts(meter: Meter, size: int, directory: Path, uri: str) -> None:
    """What is done with a store of so many artifacts and ten runs."""
    from flows.recipe.resolve import resolve
    from flows.report.markdown import markdown
    from flows.report.summaries import plan_page
    from infra.store.store import open_store

    recipe, changed = directory / "growth.toml", ["--store", uri, "--set", CHANGE]
    store = open_store(uri, write=False)
    first, other = resolve(str(recipe)).stages[0], resolve(str(recipe), [CHANGE])
    meter.measure("lookup of one artifact", lambda: store.valid(first.kind, first.key({})))
    why = ["why", str(recipe), "rebalance", *changed]
    meter.measure("lyceum why, stage changed", lambda: _lyceum(*why))
    _plans(meter, recipe, uri)
    meter.measure("plan shown as a run starts", lambda: markdown(list(plan_page(other, store))))
    _commands(meter, recipe, uri)


def runs(meter: Meter, size: int, directory: Path, uri: str) -> None:
    """What is done with a history of so many runs."""
    from flows.promotion.fresh import last_nightly
    from flows.runs.record import read_run
    from infra.store.store import open_store

    store = open_store(uri, write=False)
    newest = store.list_runs()[-1]
    meter.measure("read one run's record", lambda: read_run(store, newest))
    meter.measure("nightly's look back, none before", lambda: last_nightly(store, "growth"))
    _commands(meter, directory / "growth.toml", uri)


def _plans(meter: Meter, recipe: Path, uri: str) -> None:
    asked = ["plan", str(recipe), "--store", uri]
    meter.measure("plan, all cached", lambda: _lyceum(*asked))
    meter.measure("plan, the first stage cached", lambda: _lyceum(*asked, "--set", CHANGE))


def _commands(meter: Meter, recipe: Path, uri: str) -> None:
    from infra.store.store import open_store

    meter.measure("lyceum runs", lambda: _lyceum("runs", "--store", uri))
    meter.measure("lyceum gc, dry", lambda: _lyceum("gc", "--store", uri), warm=False)
    made = [_run(recipe, uri)]
    meter.measure("cached run", lambda: made.append(_run(recipe, uri)), warm=False)
    for run in made:
        open_store(uri).remove(f"runs/{run}")


def _record(store: "Store", resolved: "ResolvedRecipe", like: RunRecord) -> None:
    """Keep the record of a run whose stages begin and end one after another."""
    from flows.runs.record import RunLog

    log = RunLog(store, resolved, "local", lambda record: None)
    for stage in like.stages:
        log.stage(StageRecord(name=stage.name, kind=stage.kind, key=stage.key, status="running"))
        log.stage(stage)
    log.finish("cancelled")
    store.remove(f"runs/{log.record.run_id}")


def _run(recipe: Path, uri: str) -> str:
    """`lyceum run`, everything cached, against a running Prefect server; returns its id."""
    from flows.cli.launch import launch

    asked: dict[str, Any] = {"store": uri, "target": "local", "data": None}
    with contextlib.redirect_stderr(io.StringIO()):
        record = launch(str(recipe), **asked, overrides=(), force=())
    assert record.status == "succeeded", record
    assert {stage.status for stage in record.stages} == {"cached"}, record
    return record.run_id


def _lyceum(*arguments: str) -> None:
    from flows.cli.main import main

    quiet = contextlib.redirect_stdout(io.StringIO())
    with quiet, contextlib.redirect_stderr(io.StringIO()) as said:
        code = main([*arguments, "--json"])
    assert code == 0, said.getvalue()


def read_point(output: bytes) -> Point:
    """What one process of this module printed; what it wrote before is of others."""
    point: Point = json.loads(output.splitlines()[-1])
    return point


AXES = {axis.__name__: axis for axis in (rows, sequence, stages, artifacts, runs)}


if __name__ == "__main__":
    name, size, directory, uri = (*sys.argv[1:], "")[:4]
    meter = Meter()
    AXES[name](meter, int(size), Path(directory), uri)
    print(json.dumps(meter.point))

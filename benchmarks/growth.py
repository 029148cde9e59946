"""How time, memory and requests grow with rows, sequence length, stages, artifacts and run history.

    python -m benchmarks.growth OUT [--only rows sequence stages artifacts runs] [--most 10000]

Writes a plot per axis (SVG) to OUT and prints a table. A size is one process of its own, for stores
one for the directory and one for the bucket (`benchmarks.growth_axes`).

    rows        the rebalance stage; synthetic rows with exact copies, near copies and leaks
    sequence    a step of the sft stage, gemma3-tiny, four rows of that many tokens
    stages      a chain of that many stages, every model evaluated twice, on a directory store
    artifacts   a recipe of eleven stages and ten runs of it, in a store of that many artifacts, of
                which no run needs the others
    runs        a recipe of eleven stages, and that many runs of it

A cell is the value at the smallest and at the largest size, and the exponent p of n^p between the
last two sizes, where fixed costs weigh least. `!` marks what grows faster than n log n there (by
more than noise explains, and enough to be felt), and listings that return as many objects as the
bucket has: `lyceum gc` alone may, for it looks for what nobody names. Seconds and MB are of a
directory; requests, and objects and prefixes in listings, of the same store in a bucket
(`tests.fakes.gcs_emulator`, a fake of Cloud Storage that counts them).
"""

import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import paired
from benchmarks.growth_axes import Point, read_point
from benchmarks.growth_stores import commit_chain, fill_artifacts, fill_runs, hurried, write_recipe
from flows.server.prefect_api import TEMPORARY, free_port, prefect_server
from infra.store.store import open_store
from tests.fakes.gcs_emulator import Emulator

SIZES = {
    "rows": (1000, 10_000, 100_000),
    "sequence": (128, 256, 512, 1024, 2048),
    "stages": (10, 30, 100),
    "artifacts": (10, 100, 1000, 10_000),
    "runs": (10, 100, 1000),
}
STAGES, RUNS = 11, 10
NOISE = 0.2
"""How much steeper than n log n a slope may be before it is marked."""
FORMS = {"seconds": ".3f", "MB": ".0f", "requests": ",.0f", "listed": ",.0f"}
FELT = {"seconds": 0.05, "MB": 20.0, "requests": 50.0, "listed": 50.0}
"""Below this a measure is not marked: it is noise, or nobody would notice."""
LEAST = {"seconds": 0.001, "MB": 0.1, "requests": 1.0, "listed": 1.0}
"""What is less is plotted as that."""
NOT_EQUAL = """
Not equal: there is no peer here. The bucket is a fake on this machine, so its seconds would say
nothing and are left out; a real one takes some 20 to 100 ms a request, and eight of a reader's
requests go on at a time. The artifacts that fill the store hold two small files each. Marked as
expected: a step on a CPU, where attention holds the scores of all pairs of tokens of one layer (a
TPU's kernel holds a block of them); the run's record, which is written whole whenever a stage
begins or ends; `lyceum gc`, which lists the whole store."""


@dataclass
class Series:
    """One measure of one axis: size -> unit -> value; and size -> objects in the bucket, if any."""

    axis: str
    name: str
    points: dict[int, dict[str, float]] = field(default_factory=dict)
    objects: dict[int, int] = field(default_factory=dict)

    def of(self, unit: str) -> dict[int, float]:
        """The values of one unit by size, where it was measured."""
        return {size: point[unit] for size, point in sorted(self.points.items()) if unit in point}


def main() -> None:
    made = paired.parser(__doc__)
    made.add_argument("out", type=Path)
    made.add_argument("--only", nargs="+", choices=SIZES, default=list(SIZES))
    made.add_argument("--most", type=int, default=100_000, help="leave larger sizes out")
    options = made.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    print(paired.machine("lyceum", "prefect", "jax", "google-cloud-storage"))
    paired.heading("axis, sizes", "measure", *FORMS)
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        os.environ |= {"PREFECT_HOME": f"{scratch}/prefect", "LYCEUM_CACHE": f"{scratch}/cache"}
        if {*options.only} - {"rows", "sequence"}:  # runs that are measured talk to a server
            server = prefect_server(free_port(), TEMPORARY, threading.Event(), print, print)
            reach = stack.enter_context(server).environment
            os.environ |= {**reach, "PREFECT_LOGGING_LEVEL": "CRITICAL"}
        for axis in options.only:
            sizes = [size for size in SIZES[axis] if size <= options.most]
            series = _grow(axis, sizes, Path(scratch, axis))
            for one in series:
                print(row(one), flush=True)
            _plot(series, options.out / f"growth-{axis}.svg")
    print(NOT_EQUAL)


def _grow(axis: str, sizes: list[int], directory: Path) -> list[Series]:
    """Measure an axis at every size."""
    found: dict[str, Series] = {}
    points = _of_stores if axis in ("artifacts", "runs") else _of_sizes
    began = time.monotonic()
    for size, point, objects in points(axis, sizes, directory):
        for name, values in point.items():
            series = found.setdefault(name, Series(axis, name))
            series.points[size], series.objects[size] = values, objects
        paired.tell(f"{axis} {size:,}: {time.monotonic() - began:.0f} s")
        began = time.monotonic()
    return list(found.values())


def _of_sizes(axis: str, sizes: list[int], directory: Path) -> Iterator[tuple[int, Point, int]]:
    for size in sizes:
        where = directory / str(size)
        where.mkdir(parents=True)
        yield size, _point(axis, size, where), 0


def _of_stores(axis: str, sizes: list[int], directory: Path) -> Iterator[tuple[int, Point, int]]:
    """A store grows from one size to the next, in a directory; a bucket holds the same."""
    directory.mkdir()
    resolved = write_recipe(directory / "growth.toml", STAGES)
    store, scratch = open_store(directory / "store"), directory / "scratch"
    with hurried():
        made = commit_chain(store, resolved, scratch)
    sent: set[str] = set()
    have = STAGES if axis == "artifacts" else 0
    with Emulator() as gcs:
        bucket = gcs.create_bucket("growth")
        for size in sizes:
            if axis == "artifacts":
                fill_artifacts(store, resolved, range(have, size), scratch)
                fill_runs(store, resolved, made, range(RUNS if size == sizes[0] else 0))
            else:
                fill_runs(store, resolved, made, range(have, size))
            have = max(have, size)
            there = (
                one.name for top in ("artifacts", "work", "runs") for one in store.objects(top)
            )
            new = [name for name in there if name not in sent]
            for begin in range(0, len(new), 1000):
                some = new[begin : begin + 1000]
                files = {f"lab/{name}": store.read_bytes(name) or b"" for name in some}
                gcs.fill(bucket, files)
            sent.update(new)
            point = _point(axis, size, directory, store.uri)
            asked = _point(axis, size, directory, f"gs://{bucket}/lab", gcs.environment)
            for name, values in asked.items():
                point[name] |= values
            yield size, point, len(gcs.objects(bucket))


def _point(
    axis: str,
    size: int,
    directory: Path,
    uri: str = "",
    environment: Mapping[str, str] | None = None,
) -> Point:
    module = [sys.executable, "-m", "benchmarks.growth_axes"]
    command = [*module, axis, str(size), str(directory), uri]
    settings = {**os.environ, **(environment or {})}
    done = subprocess.run(command, env=settings, stdout=subprocess.PIPE, check=True)
    return read_point(done.stdout)


def slope(values: Mapping[int, float]) -> float:
    """The exponent p of n^p between the last two sizes; values below 1e-4 count as that."""
    (small, low), (large, high) = sorted(values.items())[-2:]
    return math.log(max(high, 1e-4) / max(low, 1e-4)) / math.log(large / small)


def too_fast(series: Series, unit: str) -> bool:
    """Whether it grows faster than n log n at the end, or a listing returns a whole bucket."""
    values = series.of(unit)
    bound = slope({size: size * math.log(size) for size in values})
    last = max(values)
    steep = values[last] > FELT[unit] and slope(values) > bound + NOISE
    return steep or (unit == "listed" and values[last] >= series.objects[last])


def row(series: Series) -> str:
    """A row of the table."""
    sizes = sorted(series.points)
    cells = [f"{series.axis}, {sizes[0]:,} to {sizes[-1]:,}", series.name]
    for unit, form in FORMS.items():
        values = series.of(unit)
        ends = " to ".join(
            format(values[size], form) for size in values if size in (sizes[0], sizes[-1])
        )
        if len(values) > 1:
            ends += f" (n^{slope(values):.2f}{' !' if too_fast(series, unit) else ''})"
        cells.append(ends)
    return f"| {' | '.join(cells)} |"


def _plot(series: list[Series], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    measured = {unit for one in series for point in one.points.values() for unit in point}
    units = [unit for unit in FORMS if unit in measured]
    shape = {"figsize": (10, 1.6 * len(units)), "squeeze": False, "layout": "constrained"}
    figure, grid = pyplot.subplots(len(units) // 2, 2, **shape)
    style = {"marker": "o", "markersize": 3, "linewidth": 1}
    for unit, axis in zip(units, grid.flat, strict=True):
        for one in series:
            values = one.of(unit)
            heights = [max(value, LEAST[unit]) for value in values.values()]
            axis.plot(list(values), heights, label=one.name, **style)
        axis.set(xscale="log", yscale="log", xlabel=series[0].axis, title=unit)
        axis.grid(alpha=0.3)
    legend = grid[0][0].get_legend_handles_labels()
    figure.legend(*legend, fontsize=8, loc="outside right center")
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


if __name__ == "__main__":
    main()

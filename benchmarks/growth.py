"""How time, memory and requests grow with rows, sequence length, stages, artifacts and run history.

    python -m benchmarks.growth OUT [--only rows sequence stages artifacts runs] [--most 10000]

Writes a plot per axis (SVG) to OUT and prints a table. A size is one process of its own, for stores one for the directory and one for the
bucket (`benchmarks.growth_axes` says what is measured and how).

    rows        the rebalance stage; synthetic rows with exact copies, near copies and leaks (`benchmarks.rebalance_scale`)
    sequence    a step of the sft stage, gemma3-tiny, four rows of that many tokens
    stages      a chain of that many stages, every model evaluated twice, on a directory store
    artifacts   a recipe of eleven stages and ten runs of it, in a store of that many artifacts, of which no run needs the others
    runs        a recipe of eleven stages, and that many runs of it

A cell is the value at the smallest and at the largest size, and the exponent p of n^p between the last two sizes, where fixed costs weigh
least. `!` marks what grows faster than n log n there (by more than noise explains, and enough to be felt), and listings that return as many
objects as the bucket has: `lyceum gc` alone may, for it looks for what nobody names. Seconds and MB are of a directory; requests, and
objects and prefixes in listings, of the same store in a bucket (`tests.fakes.gcs_emulator`, a fake of Cloud Storage that counts them).
"""

import argparse
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.growth_axes import Point, read_point
from benchmarks.growth_stores import commit_chain, fill_artifacts, fill_runs, hurried, write_recipe
from benchmarks.side_by_side import machine
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
FELT = {"seconds": 0.05, "MB": 20.0, "requests": 50.0, "listed": 50.0}
"""Below this a measure is not marked: it is noise, or nobody would notice."""
LEAST = {"seconds": 0.001, "MB": 0.1, "requests": 1.0, "listed": 1.0}
"""What is less is plotted as that."""
NOT_EQUAL = """\
Not equal: there is no peer here. The bucket is a fake on this machine, so its seconds would say nothing and are left out; a real one takes
some 20 to 100 ms a request, and eight of a reader's requests go on at a time. The artifacts that fill the store hold two small files
each. Marked as expected: a step on a CPU, where attention holds the scores of all pairs of tokens of one layer (a TPU's kernel holds a
block of them); the run's record, which is written whole whenever a stage begins or ends; `lyceum gc`, which lists the whole store."""


@dataclass
class Series:
    """One measure of one axis: size -> unit -> value; and size -> objects in the bucket, if there is one."""

    axis: str
    name: str
    points: dict[int, dict[str, float]] = field(default_factory=dict)
    objects: dict[int, int] = field(default_factory=dict)

    def of(self, unit: str) -> dict[int, float]:
        """The values of one unit by size, where it was measured."""
        return {size: point[unit] for size, point in sorted(self.points.items()) if unit in point}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument(
        "--most", type=int, default=max(map(max, SIZES.values())), help="leave larger sizes out"
    )
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    print(f"{machine('lyceum', 'prefect', 'jax', 'google-cloud-storage')}\n", flush=True)
    print(
        "| axis, sizes | measure | seconds | MB | requests | listed |\n|---|---|---|---|---|---|",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        os.environ |= {"PREFECT_HOME": f"{scratch}/prefect", "LYCEUM_CACHE": f"{scratch}/cache"}
        if {*options.only} - {"rows", "sequence"}:
            stack.enter_context(_prefect())
        for axis in options.only:
            series = _grow(
                axis, [size for size in SIZES[axis] if size <= options.most], Path(scratch, axis)
            )
            for one in series:
                print(row(one), flush=True)
            _plot(series, options.out / f"growth-{axis}.svg")
    print(f"\n{NOT_EQUAL}")


@contextmanager
def _prefect() -> Iterator[None]:
    """A Prefect server of our own, which runs that are measured talk to."""
    with prefect_server(free_port(), TEMPORARY, threading.Event(), print, print) as api:
        os.environ |= {**api.environment, "PREFECT_LOGGING_LEVEL": "CRITICAL"}
        yield


def _grow(axis: str, sizes: list[int], directory: Path) -> list[Series]:
    """Measure an axis at every size."""
    found: dict[str, Series] = {}
    points = (
        _of_stores(axis, sizes, directory)
        if axis in ("artifacts", "runs")
        else _of_sizes(axis, sizes, directory)
    )
    began = time.monotonic()
    for size, point, objects in points:
        for name, values in point.items():
            series = found.setdefault(name, Series(axis, name))
            series.points[size], series.objects[size] = values, objects
        print(f"{axis} {size:,}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
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
    resolved, store = (
        write_recipe(directory / "growth.toml", STAGES),
        open_store(directory / "store"),
    )
    with hurried():
        made = commit_chain(store, resolved, directory / "scratch")
    sent: set[str] = set()
    have = STAGES if axis == "artifacts" else 0
    with Emulator() as gcs:
        bucket = gcs.create_bucket("growth")
        for size in sizes:
            if axis == "artifacts":
                fill_artifacts(store, resolved, range(have, size), directory / "scratch")
                fill_runs(store, resolved, made, range(RUNS if size == sizes[0] else 0))
            else:
                fill_runs(store, resolved, made, range(have, size))
            have = max(have, size)
            new = [
                one.name
                for top in ("artifacts", "work", "runs")
                for one in store.objects(top)
                if one.name not in sent
            ]
            for begin in range(0, len(new), 1000):
                gcs.fill(
                    bucket,
                    {
                        f"lab/{name}": store.read_bytes(name) or b""
                        for name in new[begin : begin + 1000]
                    },
                )
            sent.update(new)
            point = _point(axis, size, directory, store.uri)
            for name, values in _point(
                axis, size, directory, f"gs://{bucket}/lab", gcs.environment
            ).items():
                point[name] |= values
            yield size, point, len(gcs.objects(bucket))


def _point(
    axis: str,
    size: int,
    directory: Path,
    uri: str = "",
    environment: Mapping[str, str] | None = None,
) -> Point:
    command = [sys.executable, "-m", "benchmarks.growth_axes", axis, str(size), str(directory), uri]
    done = subprocess.run(
        command, env={**os.environ, **(environment or {})}, stdout=subprocess.PIPE, check=True
    )
    return read_point(done.stdout)


def slope(values: Mapping[int, float]) -> float:
    """The exponent p of n^p between the last two sizes; values below 1e-4 count as that."""
    (small, low), (large, high) = sorted(values.items())[-2:]
    return math.log(max(high, 1e-4) / max(low, 1e-4)) / math.log(large / small)


def too_fast(series: Series, unit: str) -> bool:
    """Whether it grows faster than n log n at the end, or a listing returns a whole bucket."""
    values = series.of(unit)
    small, large = sorted(values)[-2:]
    bound = math.log((large * math.log(large)) / (small * math.log(small))) / math.log(
        large / small
    )
    steep = values[large] > FELT[unit] and slope(values) > bound + NOISE
    return steep or (unit == "listed" and values[large] >= series.objects[large])


def row(series: Series) -> str:
    """A row of the table."""
    sizes = sorted(series.points)
    cells = [f"{series.axis}, {sizes[0]:,} to {sizes[-1]:,}", series.name]
    for unit, form in {"seconds": ".3f", "MB": ".0f", "requests": ",.0f", "listed": ",.0f"}.items():
        values = series.of(unit)
        if len(values) < 2:
            cells.append(" to ".join(format(value, form) for value in values.values()))
            continue
        mark = " !" if too_fast(series, unit) else ""
        cells.append(
            f"{values[sizes[0]]:{form}} to {values[sizes[-1]]:{form}} (n^{slope(values):.2f}{mark})"
        )
    return f"| {' | '.join(cells)} |"


def _plot(series: list[Series], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    units = list(
        dict.fromkeys(unit for one in series for point in one.points.values() for unit in point)
    )
    figure, grid = pyplot.subplots(
        len(units) // 2, 2, figsize=(10, 1.6 * len(units)), squeeze=False, layout="constrained"
    )
    for unit, axis in zip(units, grid.flat, strict=True):
        for one in series:
            values = one.of(unit)
            axis.plot(
                list(values),
                [max(value, LEAST[unit]) for value in values.values()],
                marker="o",
                markersize=3,
                linewidth=1,
                label=one.name,
            )
        axis.set(xscale="log", yscale="log", xlabel=series[0].axis, title=unit)
        axis.grid(alpha=0.3)
    figure.legend(*grid[0][0].get_legend_handles_labels(), fontsize=8, loc="outside right center")
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


if __name__ == "__main__":
    main()

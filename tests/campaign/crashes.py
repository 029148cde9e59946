"""Kill-anywhere campaign: SIGKILL workers and flow processes of a whole chain at random points;
every run must end with the same bytes.

    uv run python -m tests.campaign.crashes [--kills 100] [--store file|gs] [--faults] [--seed 0]

One undisturbed `lyceum run tests/end_to_end/crash/chain.toml` counts how often each watched
function (`tests/end_to_end/crash/sitecustomize.py`) is called in each stage. Then, in rounds: draw
points at random (stage, function, call number, before or after the call, victim: the worker or the
flow), run the command again and again in an empty store until it exits 0, and compare every
artifact with the undisturbed run's: files, sizes, sha256 (weights, optimizer digests, curves,
rollouts, verdicts) and metrics. Prints one table; exits 1 when anything differs.

With `--store gs` the stores are in the fake of Cloud Storage (`tests/fakes/gcs_emulator.py`). With
`--faults` the fake is at its worst throughout: 503s, connections reset before and after a request
was executed, truncated and flipped bytes, stale listings, duplicate deliveries.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.server.prefect_api import prefect_api
from infra.store.store import Store, open_store
from schemas.artifact import Manifest
from tests.end_to_end.crash.sitecustomize import Point
from tests.fakes.gcs_emulator import Emulator

ROOT = Path(__file__).resolve().parents[2]
CRASH = ROOT / "tests" / "end_to_end" / "crash"
LYCEUM = (sys.executable, "-m", "flows.cli.main", "run", str(CRASH / "chain.toml"), "--json")
BUCKET = "lyceum-crashes"
SETTINGS = {
    "LYCEUM_CHECKPOINT_STEPS": "2",
    "LYCEUM_CHECKPOINT_SECONDS": "3600",
    "LYCEUM_LEASE_SECONDS": "5",
    "PYTHONPATH": os.pathsep.join([str(ROOT), str(CRASH)]),
}


def run(store: str, environment: dict[str, str]) -> tuple[int, str]:
    """`lyceum run` in a process of its own; returns its exit code and what it printed on stderr."""
    command, settings = [*LYCEUM, "--store", store], {**os.environ, **SETTINGS, **environment}
    done = subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True)
    return done.returncode, done.stderr


def artifacts(store: Store) -> dict[str, Manifest]:
    """The artifacts of a store by stage kind; raises when one does not verify."""
    found = {manifest.kind: manifest for manifest in store.artifacts()}
    for manifest in found.values():
        problems = store.verify(manifest)
        assert not problems, problems
    return found


def count(store: str, directory: Path) -> dict[str, Counter[str]]:
    """Run undisturbed, and return for each stage kind how often it called each watched function."""
    directory.mkdir()
    code, errors = run(store, {"LYCEUM_CRASH_COUNT": str(directory)})
    assert code == 0, errors
    counts: dict[str, Counter[str]] = {}
    for file in directory.iterdir():
        counts.setdefault(file.name.split("-")[0], Counter()).update(json.loads(file.read_text()))
    counts.pop("flow", None)
    return counts


def draw(counts: dict[str, Counter[str]], dice: random.Random) -> Point:
    """A random point."""
    kind = dice.choice(sorted(counts))
    function = dice.choice(sorted(counts[kind]))
    number = dice.randint(1, counts[kind][function])
    when, victim = dice.choice(("before", "after")), dice.choice(("self", "self", "parent"))
    return Point(kind, function, number, when, victim)


def differences(ours: dict[str, Manifest], theirs: dict[str, Manifest]) -> list[str]:
    """Stage kinds whose artifacts are not the same: files, sizes, digests, metrics."""

    def made(found: dict[str, Manifest], kind: str) -> tuple[object, ...] | None:
        one = found.get(kind)
        return one and (one.files, one.metrics, one.key)

    kinds = sorted(ours.keys() | theirs.keys())
    return [kind for kind in kinds if made(ours, kind) != made(theirs, kind)]


class Places:
    """Where the stores of the campaign are: below a directory, or in a bucket of the fake of Cloud
    Storage."""

    def __init__(self, root: Path, emulator: Emulator | None) -> None:
        self._root, self._emulator = root, emulator
        self._faults: dict[str, int] = {}
        if emulator:
            os.environ.update(emulator.environment, LYCEUM_CACHE=str(root / "cache"))

    def __call__(self, name: str) -> str:
        return f"gs://{BUCKET}/{name}" if self._emulator else str(self._root / f"store-{name}")

    def misbehave(self, seed: int) -> None:
        """From here on the bucket is at its worst."""
        if self._emulator:
            self._faults = self._emulator.faults.add_all(seed)

    def faults(self) -> dict[str, int]:
        """How often each fault struck."""
        if not self._emulator:
            return {}
        fired = self._emulator.faults.fired
        return {action: fired(number) for action, number in self._faults.items()}


@contextmanager
def places(scheme: str, root: Path) -> Iterator[Places]:
    """The places of a campaign; ends the fake, if there is one, in the end."""
    if scheme == "file":
        yield Places(root, None)
    else:
        with Emulator(BUCKET) as emulator:
            yield Places(root, emulator)


def campaign(options: argparse.Namespace, root: Path) -> int:
    """The whole campaign; returns the exit code."""
    dice = random.Random(options.seed)
    kills: Counter[tuple[str, str]] = Counter()
    rounds, wrong, runs = 0, [], 0
    with prefect_api(threading.Event(), print) as api, places(options.store, root) as place:
        os.environ |= api.environment
        counts = count(place("undisturbed"), root / "counts")
        undisturbed = artifacts(open_store(place("undisturbed")))
        began = time.monotonic()
        run(place("timed"), {})
        undisturbed_seconds = time.monotonic() - began
        if options.faults:
            place.misbehave(options.seed)
        began = time.monotonic()
        while kills.total() < options.kills:
            rounds += 1
            spent = root / f"spent-{rounds}"
            spent.mkdir()
            drawn = min(options.per_round, options.kills - kills.total())
            points = [draw(counts, dice) for _ in range(drawn)]
            armed = {"LYCEUM_CRASH": json.dumps(points), "LYCEUM_CRASH_SPENT": str(spent)}
            tries, code = 0, -1
            while code and tries < options.per_round + 3:
                code, errors = run(place(f"round-{rounds}"), armed)
                tries += 1
            runs += tries
            fired = [point for point in points if (spent / str(point)).exists()]
            victims = {"parent": "flow", "self": "worker"}
            kills.update((point.kind, victims[point.victim]) for point in fired)
            different = differences(artifacts(open_store(place(f"round-{rounds}"))), undisturbed)
            if code or different:
                wrong.append((rounds, code, different, points, errors[-2000:]))
            print(
                f"round {rounds}: {len(fired)} kills, {tries} runs, exit {code}, different:"
                f" {different or 'none'}",
                flush=True,
            )
        seconds = time.monotonic() - began
        struck = place.faults()
    print(f"\n{options.store}:// store, seed {options.seed}, {os.cpu_count()} cores\n")
    print("| stage | workers killed | flows killed |\n|---|---|---|")
    for kind in sorted({kind for kind, _ in kills}):
        print(f"| {kind} | {kills[kind, 'worker']} | {kills[kind, 'flow']} |")
    cost = (seconds - rounds * undisturbed_seconds) / kills.total()
    print(
        f"\n{kills.total()} kills in {rounds} chains, {runs} runs of the command; chains that ended"
        f" with other bytes: {len(wrong)}."
    )
    print(f"An undisturbed chain took {undisturbed_seconds:.0f} s; a kill cost {cost:.1f} s.")
    if struck:
        told = ", ".join(f"{action} {number}" for action, number in struck.items())
        print(f"Faults of the bucket meanwhile: {told}.")
    for one in wrong:
        print(one)
    return 1 if wrong else 0


def main() -> int:
    """Read the command line and run the campaign in a temporary directory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--per-round", type=int, default=10)
    parser.add_argument("--store", choices=("file", "gs"), default="file")
    parser.add_argument(
        "--faults", action="store_true", help="of the bucket, all the while; needs --store gs"
    )
    parser.add_argument("--seed", type=int, default=0)
    with tempfile.TemporaryDirectory(prefix="lyceum-crashes-") as directory:
        options = parser.parse_args()
        if options.faults and options.store != "gs":
            parser.error("--faults needs --store gs")
        return campaign(options, Path(directory))


if __name__ == "__main__":
    sys.exit(main())

"""What a run costs when everything is cached: all seven kinds of stage, with a Prefect server running.

    python -m benchmarks.cached_run [--rounds 5] [--recipe tests/end_to_end/crash/chain.toml]

`lyceum serve` is started with a store of its own, and one run makes the artifacts (a minute). Then, every round: a run from Prefect's
API as the UI starts it, a `lyceum run`, and as a peer a flow of Prefect alone with as many tasks that do nothing, in a process of its own.
"in the flow" is from the flow's first to its last moment, as the server tells it: checking each artifact's bytes, the plan, the report with
its plots, and all that is shown in Prefect. The table shows the median and the worst over the rounds.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.fakes.served import ROOT, Served, until

PEER = """
import sys
from prefect import flow, task
from prefect.states import Completed

@task
def nothing(): return Completed(name="Cached")

@flow(name="nothing")
def empty():
    for _ in range(int(sys.argv[1])): nothing.submit().wait()
    return Completed()

empty()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--recipe", default=str(ROOT / "tests" / "crash" / "chain.toml"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root, Served(Path(root)) as served:
        recipe = str(Path(options.recipe).absolute()) if Path(options.recipe).exists() else options.recipe
        first = served.start(recipe=recipe)
        assert served.ended(first)["type"] == "COMPLETED", served.state(first)
        stages = len(served.stages(first))
        measured: dict[str, list[float]] = {}
        for _ in range(options.rounds):
            for name, seconds in _round(served, recipe, stages).items():
                measured.setdefault(name, []).append(seconds)
    _show(f"{stages} cached stages, {options.rounds} rounds, {os.cpu_count()} cores", measured)


def _round(served: Served, recipe: str, stages: int) -> dict[str, float]:
    run = served.start(recipe=recipe)
    began = time.monotonic()
    until(lambda: served.state(run)["type"] not in ("SCHEDULED", "PENDING"))
    picked_up = time.monotonic() - began
    assert served.ended(run)["type"] == "COMPLETED"
    assert set(served.stages(run).values()) == {"Cached"}
    environment = {**served.environment, **served.reach.environment, "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL"}
    command = [sys.executable, "-m", "flows.cli.main", "run", recipe]
    return {
        "served: from Submit to running": picked_up,
        "served: in the flow": _in_the_flow(served, run),
        "lyceum run: whole process": _timed(command, served.work, environment),
        "lyceum run: in the flow": _in_the_flow(served, _newest(served)),
        "Prefect alone: whole process": _timed([sys.executable, "-c", PEER, str(stages)], served.work, environment),
        "Prefect alone: in the flow": _in_the_flow(served, _newest(served)),
    }


def _in_the_flow(served: Served, run: str) -> float:
    return float(served.ask(f"/flow_runs/{run}")["total_run_time"])


def _newest(served: Served) -> str:
    return str(served.ask("/flow_runs/filter", {"sort": "START_TIME_DESC", "limit": 1})[0]["id"])


def _timed(command: Sequence[str], directory: Path, environment: Mapping[str, str]) -> float:
    began = time.monotonic()
    subprocess.run(command, cwd=directory, env=dict(environment), check=True, capture_output=True)
    return time.monotonic() - began


def _show(title: str, measured: Mapping[str, Sequence[float]]) -> None:
    figures: list[tuple[str, Callable[[Sequence[float]], float]]] = [("median s", statistics.median), ("worst s", max)]
    print(title)
    print(f"| {'':<32} | {' | '.join(name for name, _ in figures)} |")
    print(f"|{'-' * 34}|{'|'.join('-' * (len(name) + 1) + ':' for name, _ in figures)}|")
    for name, seconds in measured.items():
        print(f"| {name:<32} | {' | '.join(f'{of(seconds):{len(label)}.2f}' for label, of in figures)} |")


if __name__ == "__main__":
    main()

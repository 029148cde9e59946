"""What a run costs when everything is cached and a Prefect server is running: all seven kinds of
stage, beside a flow of Prefect alone with as many tasks that do nothing.

    python -m benchmarks.cached_run [--rounds 5] [--recipe RECIPE]

`lyceum serve` is started with a store of its own, and one run makes the artifacts (a minute). Then,
every round: a run from Prefect's API as the UI starts it, a `lyceum run`, and the peer, a process
each. "in the flow" is from the flow's first to its last moment, as the server tells it: checking
each artifact's bytes, the plan, the report with its plots, and all that is shown in Prefect.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.paired import ROOT, heading, machine, parser, ratios, row, spread, take_turns
from infra.distribution import DISTRIBUTION
from tests.flows.server.served import Served, until

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
QUIET = {"PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL"}
Found = tuple[float, float]
"""Seconds before the flow (from the UI) or of the whole process, and seconds in the flow."""


def main() -> None:
    made = parser(__doc__, rounds=5)
    made.add_argument("--recipe", default=str(ROOT / "tests/end_to_end/crash/chain.toml"))
    options = made.parse_args()
    recipe = os.path.abspath(options.recipe) if os.path.exists(options.recipe) else options.recipe
    with tempfile.TemporaryDirectory() as root, Served(Path(root)) as served:
        first = served.start(recipe=recipe)
        assert served.ended(first)["type"] == "COMPLETED", served.state(first)
        stages = len(served.stages(first))
        ours = [sys.executable, "-m", "flows.cli.main", "run", recipe]
        peer = [sys.executable, "-c", PEER, str(stages)]
        turns = {
            "served (begin: from Submit to running)": lambda _: from_the_ui(served, recipe),
            "lyceum run (begin: whole process)": lambda _: process(served, ours),
            "Prefect alone (begin: whole process)": lambda _: process(served, peer),
        }
        found = take_turns(turns, options.rounds)
    print(f"{machine(DISTRIBUTION, 'prefect')}; {stages} cached stages, {options.rounds} rounds")
    heading("", "begin, s", "in the flow, s", "in the flow, of Prefect alone")
    *_, alone = found.values()
    for name, each in found.items():
        begin, inside = zip(*each, strict=True)
        of_peer = ratios(inside, (one[1] for one in alone))
        row(name, spread(begin, ".2f"), spread(inside, ".2f"), spread(of_peer, ".2f"))


def from_the_ui(served: Served, recipe: str) -> Found:
    run = served.start(recipe=recipe)
    began = time.monotonic()
    until(lambda: served.state(run)["type"] not in ("SCHEDULED", "PENDING"))
    picked_up = time.monotonic() - began
    assert served.ended(run)["type"] == "COMPLETED"
    assert set(served.stages(run).values()) == {"Cached"}
    return picked_up, in_the_flow(served, run)


def process(served: Served, command: Sequence[str]) -> Found:
    settings = {**served.environment, **served.reach.environment, **QUIET}
    began = time.monotonic()
    subprocess.run(command, cwd=served.work, env=settings, check=True, capture_output=True)
    whole = time.monotonic() - began
    newest = served.ask("/flow_runs/filter", {"sort": "START_TIME_DESC", "limit": 1})[0]["id"]
    return whole, in_the_flow(served, newest)


def in_the_flow(served: Served, run: str) -> float:
    return float(served.ask(f"/flow_runs/{run}")["total_run_time"])


if __name__ == "__main__":
    main()

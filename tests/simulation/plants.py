"""Guards of today's code, each taken away: does the simulation find out, and after how many
histories?

    uv run python -m tests.simulation.plants [--seconds 60] [NAME ...]
"""

import argparse
import time

from tests.simulation import guards_cloud, guards_store
from tests.simulation.history import Result, play
from tests.simulation.plant import Plant
from tests.simulation.shrink import shrunk, told

PLANTS = (*guards_store.PLANTS, *guards_cloud.PLANTS)


def hunted(plant: Plant, first: int, most: int, seconds: float) -> tuple[int, int, Result | None]:
    """How many histories were drawn, and how many of them played because the guard may have
    something to do in them, until one broke a law that holds with the guard; and that one, or None
    if none did."""
    played, began, of = 0, time.monotonic(), 0
    while of < most and time.monotonic() - began < seconds:
        plan = plant.plan(first + of)
        of += 1
        if plant.concerns(plan):
            played += 1
            with plant.without():
                result = play(plan)
            if result.law and not play(plan).law:
                return of, played, result
    return of, played, None


def main() -> None:
    """Hunt the plants that are named, or all, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.plants")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each")
    parser.add_argument("--histories", type=int, default=20_000, help="for each, at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--told", action="store_true", help="tell the history of each, made small")
    parser.add_argument("names", nargs="*", help="parts of their names")
    given = parser.parse_args()
    print("| guard taken away | drawn | played | by the law |\n|---|---|---|---|")
    for plant in PLANTS:
        if given.names and not any(name in plant.name for name in given.names):
            continue
        of, played, found = hunted(plant, given.seed, given.histories, given.seconds)
        law = f"{found.law} (seed {found.plan.seed})" if found else "not found"
        drew = of if plant.aim is None else "aimed"
        print(f"| {plant.name} | {drew} | {played} | {law} |", flush=True)
        if given.told and found:
            with plant.without():
                print(told(shrunk(found)), flush=True)


if __name__ == "__main__":
    main()

"""The task router on the labelled real prompts of ../shared/data: accuracy by set, confusion matrix, difficulty, prompts per second.

    python -m benchmarks.router

The sets and both readings of their labels are in tests/tasks/routing/router_sets.py. The router has read none of them: its training
prompts are our own.
"""

import time
from collections.abc import Sequence
from itertools import chain
from typing import Any

from schemas.examples import Domain
from tasks.routing import Route, route
from tasks.routing.confusion import confusion
from tests.tasks.routing.router_sets import CLEAR, NOISY, Labelled, gsm8k_steps, real_sets

Routed = dict[str, tuple[list[Labelled], list[Route]]]


def main() -> None:
    sets = real_sets()
    start = time.perf_counter()
    route([""])
    trained = time.perf_counter() - start
    start, processor = time.perf_counter(), time.process_time()
    routed: Routed = {name: (rows, route([row.prompt for row in rows])) for name, rows in sets.items()}
    seconds, processor = time.perf_counter() - start, time.process_time() - processor
    print(f"{'set':18} {'prompts':>7}  accuracy  second reading  by rule  difficulty")
    for name, (rows, routes) in routed.items():
        first, second = right(rows, routes, "domain"), right(rows, routes, "second")
        by_rule = sum(one.by == "rule" for one in routes) / len(routes)
        mean = sum(one.difficulty for one in routes) / len(routes)
        print(f"{name:18} {len(rows):7}  {first:8.1%}  {second:14.1%}  {by_rule:7.0%}  {mean:10.2f}")
    for title, names, reading in (
        ("sets whose label is a domain, as labelled", CLEAR, "domain"),
        ("the same, SciBench's mathematics as math", CLEAR, "second"),
        ("all sets, self-instruct as labelled in open_data", (*CLEAR, *NOISY), "domain"),
        ("all sets, second reading", (*CLEAR, *NOISY), "second"),
    ):
        show(title, [routed[name] for name in names], reading)
    correlation = spearman([one.difficulty for one in routed["gsm8k"][1]], gsm8k_steps())
    print(f"\ndifficulty and the steps of GSM8K's solutions: rank correlation {correlation:.2f}")
    count = sum(map(len, sets.values()))
    speed = f"{count / seconds:.0f} prompts/s ({count / processor:.0f} by processor time)"
    print(f"{count} prompts in {seconds:.1f} s: {speed}; training took {trained:.1f} s")


def right(rows: Sequence[Labelled], routes: Sequence[Route], reading: str) -> float:
    """The fraction of prompts whose route is the reading's domain."""
    return sum(getattr(row, reading) == one.domain for row, one in zip(rows, routes, strict=True)) / len(rows)


def show(title: str, sets: Sequence[tuple[list[Labelled], list[Route]]], reading: str) -> None:
    """Print the confusion matrix of some sets and its rates."""
    stated = [getattr(row, reading) for rows, _ in sets for row in rows]
    found: dict[str, Any] = confusion(stated, [one.domain for one in chain.from_iterable(routes for _, routes in sets)])
    print(f"\n{title}: {found['n']} prompts, accuracy {found['accuracy']:.1%}")
    print(f"{'':14}" + "".join(f"{domain.value[:9]:>10}" for domain in Domain) + "    recall")
    for domain in Domain:
        row = found["matrix"][domain.value]
        print(f"{domain.value:14}" + "".join(f"{row[other.value]:10}" for other in Domain) + f"  {found['recall'][domain.value]:8.1%}")
    print(f"{'precision':14}" + "".join(f"{found['precision'][domain.value]:10.1%}" for domain in Domain))


def spearman(first: Sequence[int], second: Sequence[int]) -> float:
    """Spearman's rank correlation, ties by their mean rank."""
    from scipy.stats import spearmanr

    return float(spearmanr(first, second).statistic)


if __name__ == "__main__":
    main()

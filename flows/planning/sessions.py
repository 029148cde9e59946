"""How a run divides into sessions that end: `lyceum plan --hours H` says where each ends, `lyceum
run --hours H` ends there."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

PAUSE_SECONDS = 300.0
"""Seconds before the end of a session at which a run pauses to save its state; a tenth of a short
session."""

MOST_LISTED = 50


def working_seconds(hours: float) -> float:
    return 3600 * hours - min(PAUSE_SECONDS, 360 * hours)


def sessions(
    stages: Sequence[Mapping[str, Any]], hours: float, over: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """The sessions that the stages of a plan take.

    `over`: seconds from the begin until each stage has ended; without it they follow one another.
    It leaves out the start of each new session, and of stages of unknown time all but what is
    known, the boot of a machine.

    Returns:
        `hours`; `count`; `listed`, of each session (the first 50) its `stages`, its `seconds`, and
        where it `ends`: the stage, and how much of it is done then, from 0 to 1.
    """
    each, begun = working_seconds(hours), 0.0
    spans: list[tuple[str, float, float]] = []
    for stage in stages:
        if seconds := stage.get("at_least", stage)["seconds"] or 0.0:
            end = begun + seconds if over is None else over[stage["name"]]
            spans.append((stage["name"], end - seconds, end))
            begun = max(begun, end)
    spans.sort(key=lambda span: span[2])
    count = math.ceil(begun / each)
    listed = []
    for start in (index * each for index in range(min(count, MOST_LISTED))):
        end = min(start + each, begun)
        here = [span for span in spans if span[1] < end and span[2] > start]
        name, first, last = here[-1]
        ends = {"stage": name, "fraction": min(1.0, (end - first) / (last - first))}
        names = [name for name, _, _ in here]
        listed.append({"stages": names, "seconds": end - start, "ends": ends})
    return {"hours": hours, "count": count, "listed": listed}

"""A broken history made small: faults, events and flows are left out as long as the same law still
breaks."""

from tests.simulation.history import Result, play

MOST = 60
"""Histories that are played at most."""


def shrunk(found: Result) -> Result:
    """The smallest history that was found to break the law that `found` broke."""
    smallest, played, part = found, 0, 0
    while part < smallest.plan.parts and played < MOST:
        tried = play(smallest.plan.without(part))
        played += 1
        if tried.law == found.law:
            smallest = tried
        else:
            part += 1
    return smallest


def told(result: Result) -> str:
    """A history for people: its plan, then what happened, without heartbeats."""
    plan = [f"seed {result.plan.seed}: {result.how or 'nothing is wrong'}"]
    plan += [f"  - {line}" for line in result.plan.words()]
    plan.append(f"  for a test: {result.plan!r}")
    quiet = (": write lease", ": write status", ": write journal", ": write log")
    return "\n".join([*plan, *(line for line in result.lines if not any(q in line for q in quiet))])

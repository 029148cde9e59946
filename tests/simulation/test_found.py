"""Histories that broke a law once: what was wrong is mended, and they hold now. Plans are written
out, for seeds may come to mean others."""

from tests.simulation.history import play
from tests.simulation.plan import Fault, Plan
from tests.simulation.shrink import told


def holds(plan: Plan) -> None:
    result = play(plan)
    assert not result.law, told(result)


def test_a_worker_that_stood_still_in_a_request_asks_again() -> None:
    """Seed 30500: a worker stood still for longer than a bucket is asked, in the middle of a
    request, whose connection was gone then. It gave the bucket up after that one request, and the
    run failed."""
    holds(
        Plan(
            30500,
            place="bucket",
            target="local",
            stages=1,
            flows=(0.0,),
            faults=(
                Fault("pause", "worker", "put tree", 3, "before", 200.0),
                Fault("lose", "worker", "put tree", 4),
            ),
        )
    )

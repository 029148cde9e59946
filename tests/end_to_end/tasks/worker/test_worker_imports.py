"""What a worker has in memory: Tunix, and all that it brings, only where something is trained."""

from tests.fakes.process import printed

HEAVY = ("tunix", "torch", "pandas", "grpc", "transformers", "datasets", "matplotlib", "sklearn")
SCRIPT = f"""
import sys
import tasks.worker.__main__
from tasks.stages import grpo, reasoning_eval, rebalance, safety_eval, sft
import tasks.losses.grpo, tasks.models.loading, tasks.sampling.sampler, tasks.sampling.slots
print([name for name in {HEAVY} if name in sys.modules])
"""


def test_a_worker_that_evaluates_does_not_pay_for_one_that_trains() -> None:
    assert printed(SCRIPT) == "[]\n"

"""Code reward: the answer's code is run against the prompt's tests, in the sandbox, on all cores.

1 when all tests pass. Else `partial_credit` times the fraction of cases that pass, so a policy that
is nearly there has a slope to climb; a case is a statement of the tests with an assertion in it
(`tasks.sandbox.assembly.divide`: MBPP's asserts, those in HumanEval's `check`). Tests that have no
such statements are all or nothing. A case that ends the code's process, or uses up its time, takes
the cases after it along. Code that returns one constant passes the cases that expect it, which is
why a part is never worth what the whole is.

0 for a malformed trace. Prompts whose check is not `tests` abstain, and so does a response whose
sandbox failed, for then nothing is known of its code.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from pydantic import Field

from schemas.examples import Prompt, parse_trace
from tasks.contract.reward import Judged, Resources, Response, Reward, RewardConfig
from tasks.sandbox.bubblewrap import SandboxFailed, require_sandbox
from tasks.verification.unit_tests import examined
from tasks.verification.verify import check_versions


class Config(RewardConfig):
    """`partial_credit` is what code approaches that passes all cases but one of many; 0 rewards
    only code that passes all."""

    name: Literal["code_tests"] = "code_tests"
    partial_credit: float = Field(default=0.5, ge=0, lt=1)


def prepare(config: Config, resources: Resources) -> Config:
    """Raises InputError where no code can be run safely, before anything was sampled."""
    require_sandbox()
    return config


def dependencies(config: Config, data: object) -> dict[str, str | int]:
    """What passes is what the check says passes."""
    return check_versions(["tests"])


def score(
    config: Config, prompts: Sequence[Prompt], responses: Sequence[Response]
) -> list[float | Judged | None]:
    """1.0, or less where some test fails; None where there are no tests to run or the sandbox
    failed.

    Raises InputError: a prompt's check is `tests` and it has none.
    """
    pairs = zip(prompts, responses, strict=True)
    # threads only wait: the code runs in processes of its own
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return list(threads.map(lambda pair: _score(config, *pair), pairs))


def _score(config: Config, prompt: Prompt, response: Response) -> float | Judged | None:
    if prompt.check != "tests":
        return None
    trace = parse_trace(response.text)
    if trace is None:
        return 0.0
    try:
        found = examined(prompt, trace.answer, every=True)
    except SandboxFailed as error:
        return Judged(None, {"sandbox": str(error)})
    if found.ok:
        return 1.0
    # where all cases pass there was a failure beside them
    part = found.passed / (found.cases + (found.passed == found.cases)) if found.cases else 0.0
    detail = {"passed": found.passed, "cases": found.cases, "detail": found.detail}
    return Judged(config.partial_credit * part, detail)


REWARD = Reward(version=1, config=Config, score=score, prepare=prepare, dependencies=dependencies)

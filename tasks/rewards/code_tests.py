"""Code reward: run the answer's code against the prompt's tests, in the sandbox, on all cores.

1 when all tests pass. Otherwise `partial_credit` times the fraction of cases that pass, so that a
policy that is close has a slope to climb; a case is a statement of the tests with an assertion in
it (`tasks.sandbox.assembly.divide`: MBPP's asserts, those in HumanEval's `check`). Tests without
such statements are all or nothing. A case that ends the code's process, or uses up its time, fails
the cases after it, too. Code that returns a constant passes the cases that expect it, so partial
credit is always worth less than passing.

0 for a malformed trace. Prompts whose check is not `tests` abstain, and so does a response whose
sandbox failed, since nothing is known of its code.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from pydantic import Field

from infra.cores import usable_cores
from schemas.examples import Prompt, parse_trace
from tasks.contract.reward import Judged, Resources, Response, Reward, RewardConfig
from tasks.sandbox.bubblewrap import SandboxFailed, require_sandbox
from tasks.sandbox.examination import examine_answer


class Config(RewardConfig):
    """`partial_credit`: the limit for code that passes all of many cases but one; 0: reward only
    code that passes all."""

    name: Literal["code_tests"] = "code_tests"
    partial_credit: float = Field(default=0.5, ge=0, lt=1)


def prepare(config: Config, resources: Resources) -> Config:
    """Raise InputError where no code can be run safely, before anything is sampled."""
    require_sandbox()
    return config


def score(
    config: Config, prompts: Sequence[Prompt], responses: Sequence[Response]
) -> list[float | Judged | None]:
    """1.0, or less where some test fails; None where there are no tests to run or the sandbox
    failed.

    Raises InputError: a prompt's check is `tests` and it has none.
    """
    pairs = zip(prompts, responses, strict=True)
    # threads only wait: the code runs in processes of its own
    with ThreadPoolExecutor(usable_cores()) as threads:
        return list(threads.map(lambda pair: _score(config, *pair), pairs))


def _score(config: Config, prompt: Prompt, response: Response) -> float | Judged | None:
    if prompt.check != "tests":
        return None
    trace = parse_trace(response.text, prompt.channels)
    if trace is None:
        return 0.0
    try:
        found = examine_answer(prompt, trace.answer, every=True)
    except SandboxFailed as error:
        return Judged(None, {"sandbox": str(error)})
    if found.ok:
        return 1.0
    # where all cases pass there was a failure beside them
    part = found.passed / (found.cases + (found.passed == found.cases)) if found.cases else 0.0
    detail = {"passed": found.passed, "cases": found.cases, "detail": found.detail}
    return Judged(config.partial_credit * part, detail)


REWARD = Reward(version=2, config=Config, score=score, prepare=prepare)

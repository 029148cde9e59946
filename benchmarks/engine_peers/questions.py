"""The questions of `benchmarks.engines`, and the one right answer to each question."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from benchmarks.engine_peers.clients import MODEL
from schemas.examples import Domain, Prompt
from tasks.contract.reward import Response

PROVIDER = "bench"
WORDS = 150
"""Lengths of a teacher's prompt and of the reasoning in its answer."""
TRACE = r"<reasoning>(.*)</reasoning>\n<answer>(.*)</answer>"

TABLE: dict[str, Any] = {
    "name": "rubric_judge",
    "judge": {"name": "endpoint", "provider": PROVIDER, "model": MODEL},
    "calibration": False,
    "criteria": [
        {
            "title": f"criterion {number}",
            "text": f"States fact number {number} and says where it comes from.",
            "importance": "important",
        }
        for number in range(8)
    ],
}


def write_teacher(file: Path, count: int) -> None:
    """Prompts of `WORDS` words."""
    body = {"model": MODEL, "max_tokens": 512}
    asked = (
        {**body, "messages": [{"role": "user", "content": f"{'word ' * WORDS} say {number}"}]}
        for number in range(count)
    )
    file.write_text("".join(json.dumps(one) + "\n" for one in asked), encoding="utf-8")


def rollout(number: int, rewards: int) -> tuple[list[Prompt], list[Response]]:
    """Prompts and responses that no other rollout has; a response has some 200 words."""
    prompts, responses = [], []
    about: dict[str, Any] = {"domain": Domain.GENERAL, "answer": "none", "check": "none"}
    for row in range(rewards):
        group, said = row // 8, number * rewards + row
        text = f"Explain number {group} to a child."
        prompts.append(Prompt(id=f"p{group}", prompt=text, **about))
        digests = (hashlib.sha256(f"{number} {row} {word}".encode()) for word in range(200))
        words = " ".join(one.hexdigest()[: 3 + word % 6] for word, one in enumerate(digests))
        trace = f"<reasoning>{words}</reasoning>\n<answer>It is {said}.</answer>"
        responses.append(Response(trace))
    return prompts, responses


def write_judge(file: Path, number: int, rewards: int) -> None:
    """The questions that the reward asks about a rollout, for a client that only sends them."""
    from tasks.judging.sheets import question
    from tasks.rewards import rubric_judge

    config = rubric_judge.Config.parse(TABLE)
    with file.open("w", encoding="utf-8") as out:
        for prompt, response in zip(*rollout(number, rewards), strict=True):
            case = rubric_judge.case_of(config, {}, prompt, response.text)
            assert case is not None
            trace = re.fullmatch(TRACE, response.text)
            assert trace is not None
            asked, _ = question(case.sheet, case.material(trace[1], trace[2]))
            # Without the `response_format` that Lyceum sends, too.
            body = {"model": MODEL, "temperature": 0.0, "max_tokens": 512}
            messages = [{"role": "user", "content": asked.text}]
            out.write(json.dumps({**body, "messages": messages}) + "\n")


def taught(question: str) -> str:
    """A teacher's answer."""
    number = question.rpartition(" ")[2]
    reasoning = f"The number is {number}.{' word' * WORDS}"
    return f"<reasoning>{reasoning}</reasoning>\n<answer>{number}</answer>"


def ruled(question: str) -> str:
    """A judge's: a ruling in the right form whose rating depends on the question alone."""
    mark = re.findall(r"=== end of data (\w{16}) ===", question)[-1]
    rating = 1 + int(hashlib.sha256(question.encode()).hexdigest(), 16) % 10
    reason = "It meets most of the criteria that matter and explains each of its many steps. " * 3
    return json.dumps({"mark": mark, "reason": reason, "grades": {"1": rating}})


def reward_of(ruling: str) -> float:
    """The reward of a ruling."""
    return float((json.loads(ruling)["grades"]["1"] - 1) / 9)

"""The judge engine: rewards per second at an endpoint of 200 ms and 64 slots beside the ideal, and what an outage of 30 s costs.

    python -m benchmarks.judge_engine [--rewards 512] [--rollouts 5] [--outage 30]

The endpoint (`tests.chat_server`) is a process of its own, and so is each client; all share this machine's cores, so the load is printed.
A client scores rollouts of so many responses, one question each, as the reward `rubric_judge` asks it. Ideal is 64 answers every 200 ms.

    lyceum               the reward's own `score`: rules, question, engine, an answer in the store before it counts, grades read
    openai + semaphore   what most scripts do: all questions as tasks, 64 at a time, the client's own two retries; nothing is kept
    one after the other  a reward function as the trainers of TRL and Tunix call it, with a blocking client in it (of fewer responses)

Then the endpoint answers 503 to everything for a while, beginning in the middle of a rollout: how many rewards were lost or changed.

Two quiet cores, 2026-11-22: 70.9 % of the ideal, the plain client 73.1 %, one after the other 1.5 %; client and endpoint share the cores,
and all slots begin at once. In an outage of 8 s the plain client lost 256 rewards of 512, lyceum none.
"""

import argparse
import asyncio
import hashlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
LATENCY, SLOTS = 0.2, 64
SLOW_ONES = 48
"""Responses that the client without concurrency is given."""
MODEL = "judge"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rewards", type=int, default=512)
    parser.add_argument("--rollouts", type=int, default=5)
    parser.add_argument("--outage", type=float, default=30.0, help="seconds")
    parser.add_argument("--client", choices=sorted(CLIENTS), help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--after", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--latency", type=float, default=LATENCY, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.latency, options.after, options.outage)
    elif options.client:
        sys.stdout.write(json.dumps(CLIENTS[options.client](options.rewards, options.rollouts)) + "\n")
    else:
        compare(options.rewards, options.rollouts)
        outage(options.rewards, options.outage)


def compare(rewards: int, rollouts: int) -> None:
    """Speed, without any trouble."""
    ideal = SLOTS / LATENCY
    say(f"{rewards} rewards a rollout, {LATENCY:g} s, {SLOTS} slots, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before\n")
    say(f"{'client':20} {'first s':>8} {'median s':>9} {'per s':>7} {'of ideal':>9} {'CPU s':>7} {'rewards':>8} {'load':>6}\n")
    for name in CLIENTS:
        slow = name == "one after the other"
        count, times = (SLOW_ONES, 1) if slow else (rewards, rollouts + 1)
        with server() as url:
            found = run(name, url, count, times)
        median = statistics.median(found["seconds"][1:] or found["seconds"])
        share = f"{count / median / ideal:9.1%}"
        got = sum(value is not None for value in found["values"])
        say(f"{name:20} {found['seconds'][0]:8.2f} {median:9.2f} {count / median:7.0f} {share} {found['cpu']:7.1f} {got:8}")
        say(f" {os.getloadavg()[0]:6.1f}\n")


def outage(rewards: int, seconds: float) -> None:
    """Rewards with and without an endpoint that fails for a while."""
    say(f"\n503 to everything for {seconds:g} s, from the middle of a rollout of {rewards} on\n")
    say(f"{'client':20} {'seconds':>8} {'lost':>6} {'changed':>8}\n")
    for name in ("lyceum", "openai + semaphore"):
        with server() as url:
            expected = run(name, url, rewards, 1)["values"]
        with server(f"--after={rewards // 2}", f"--outage={seconds}") as url:
            found = run(name, url, rewards, 1)
        lost = sum(value is None for value in found["values"])
        changed = sum(value not in (None, was) for value, was in zip(found["values"], expected, strict=True))
        say(f"{name:20} {found['seconds'][0]:8.2f} {lost:6} {changed:8}\n")


def say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


# The endpoint


def serve(latency: float, after: int, seconds: float) -> None:
    """The endpoint, until its parent ends. From the `after`-th request on (0: never) it fails for so long."""
    from tests.chat_server import ChatServer, Fault, Request

    until: list[float] = []

    def fault(request: Request) -> Fault | None:
        if not after or request.number < after:
            return None
        until.append(time.monotonic() + seconds) if not until else None
        return Fault("status", 503) if time.monotonic() < until[0] else None

    parent = os.getppid()
    with ChatServer(fault, latency=latency, slots=SLOTS, reply=grade, record=False) as running:
        say(running.url + "\n")
        while os.getppid() == parent:
            time.sleep(0.2)


def grade(body: dict[str, Any]) -> str:
    """A ruling in the right form whose rating depends on the question alone."""
    question = body["messages"][-1]["content"]
    mark = re.findall(r"=== end of data (\w{16}) ===", question)[-1]
    rating = 1 + int(hashlib.sha256(question.encode()).hexdigest(), 16) % 10
    reason = "The response meets most of the criteria that matter and explains each of its steps. " * 3
    return json.dumps({"mark": mark, "reason": reason, "grades": {"1": rating}})


@contextmanager
def server(*arguments: str) -> Iterator[str]:
    """The endpoint as a process; its URL."""
    command = [sys.executable, "-m", "benchmarks.judge_engine", "--serve", *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()


def run(name: str, url: str, rewards: int, rollouts: int) -> dict[str, Any]:
    """A client as a process."""
    command = [sys.executable, "-m", "benchmarks.judge_engine", "--client", name, f"--rewards={rewards}", f"--rollouts={rollouts}"]
    environment = {**os.environ, "BENCH_BASE_URL": url}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        sys.exit(f"{name} failed:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# Clients

TABLE: dict[str, Any] = {
    "name": "rubric_judge",
    "judge": {"name": "endpoint", "provider": "bench", "model": MODEL},
    "calibration": False,
    "criteria": [
        {"title": f"criterion {number}", "text": f"States fact number {number} and says where it comes from.", "importance": "important"}
        for number in range(8)
    ],
}


def rollout(number: int, rewards: int) -> tuple[list[Any], list[Any]]:
    """Prompts and responses that no other rollout has; a response has some 200 words."""
    from schemas.examples import Domain, Prompt
    from tasks.rewarding import Response

    prompts, responses = [], []
    for row in range(rewards):
        group = row // 8
        prompts.append(
            Prompt(id=f"p{group}", prompt=f"Explain number {group} to a child.", domain=Domain.GENERAL, answer="none", check="none")
        )
        words = " ".join(hashlib.sha256(f"{number} {row} {word}".encode()).hexdigest()[: 3 + word % 6] for word in range(200))
        responses.append(Response(f"<reasoning>{words}</reasoning>\n<answer>It is {number * rewards + row}.</answer>"))
    return prompts, responses


def lyceum(rewards: int, rollouts: int) -> dict[str, Any]:
    from infra.answers import Answers
    from infra.store import open_store
    from tasks.rewarding import Resources, Scorer, parse_rewards

    with tempfile.TemporaryDirectory() as store:
        scorer = Scorer(parse_rewards([TABLE], "rewards"), Resources({}, Answers(open_store(store))))
        seconds, values = [], []
        for number in range(rollouts):
            prompts, responses = rollout(number, rewards)
            began = time.perf_counter()
            total = scorer.score(prompts, responses).total
            seconds.append(time.perf_counter() - began)
            values = [None if value != value else round(float(value), 6) for value in total]
        scorer.close()
    return {"seconds": seconds, "values": values, "cpu": time.process_time()}


def bodies(number: int, rewards: int) -> list[dict[str, Any]]:
    """The same questions for a client that only sends them."""
    from tasks.judging.wording import question
    from tasks.rewards import rubric_judge

    config = rubric_judge.Config.parse(TABLE)
    found = []
    for prompt, response in zip(*rollout(number, rewards), strict=True):
        case = rubric_judge.case_of(config, {}, prompt, response.text)
        assert case is not None
        trace = re.fullmatch(r"<reasoning>(.*)</reasoning>\n<answer>(.*)</answer>", response.text)
        assert trace is not None
        asked, _ = question(case.sheet, case.material(trace[1], trace[2]))
        found.append({"model": MODEL, "messages": [dict(one) for one in asked.messages], "temperature": 0.0, "max_tokens": 512})
    return found


def value_of(text: str) -> float:
    return round((json.loads(text)["grades"]["1"] - 1) / 9, 6)


def openai_semaphore(rewards: int, rollouts: int) -> dict[str, Any]:
    import openai

    async def ask_all() -> dict[str, Any]:
        client = openai.AsyncOpenAI(base_url=os.environ["BENCH_BASE_URL"], api_key="none")
        free = asyncio.Semaphore(SLOTS)

        async def ask(body: dict[str, Any]) -> float | None:
            async with free:
                try:
                    answer = await client.chat.completions.create(**body)
                except openai.APIError:
                    return None
            return value_of(answer.choices[0].message.content or "")

        seconds, values = [], []
        for number in range(rollouts):
            asked = bodies(number, rewards)
            began = time.perf_counter()
            values = list(await asyncio.gather(*map(ask, asked)))
            seconds.append(time.perf_counter() - began)
        return {"seconds": seconds, "values": values, "cpu": time.process_time()}

    return asyncio.run(ask_all())


def one_by_one(rewards: int, rollouts: int) -> dict[str, Any]:
    import openai

    client = openai.OpenAI(base_url=os.environ["BENCH_BASE_URL"], api_key="none")
    seconds, values = [], []
    for number in range(rollouts):
        asked = bodies(number, rewards)
        began = time.perf_counter()
        values = [value_of(client.chat.completions.create(**body).choices[0].message.content or "") for body in asked]
        seconds.append(time.perf_counter() - began)
    return {"seconds": seconds, "values": values, "cpu": time.process_time()}


CLIENTS: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "lyceum": lyceum,
    "openai + semaphore": openai_semaphore,
    "one after the other": one_by_one,
}

if __name__ == "__main__":
    main()

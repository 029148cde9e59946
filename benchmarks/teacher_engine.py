"""The chat engine at an endpoint of 200 ms and 64 slots: throughput beside the ideal, memory, and what a kill costs.

    python -m benchmarks.teacher_engine [--requests 10000] [--peer-python PATH]

The endpoint (`tests.chat_server`) is a process of its own, and so is each client; all share this machine's cores, so the load is printed.
Ideal is 64 answers every 200 ms. Ours writes every answer to a store before it counts it; the plain `openai` client with a semaphore keeps
nothing. `--peer-python` is an interpreter of another environment with `bespokelabs-curator`, which caches its answers, too.

Then ours is killed (SIGKILL) at random moments until it is done: how many answers that were in the store were asked for again, and how many
that were under way were billed twice, by a provider that ignores Idempotency-Key and by one that honours it.

Two quiet cores, openai 3.54, bespokelabs-curator 0.1.31, 2026-11-22; on cores busy with other work every client falls behind:

    client                    seconds   per s of ideal   CPU s  peak MB  answers   load
    lyceum                       32.5     308    96.2%    24.7       79    10000    1.3
    openai + semaphore           33.8     296    92.3%    19.8       93    10000    1.2
    curator                      35.3     283    88.5%    34.8      342    10000    1.2
    10 kills: 0 stored answers asked for again; under way and billed twice 49.2 per kill where the key is ignored, 0.0 where it is honoured
"""

import argparse
import asyncio
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LATENCY, SLOTS = 0.2, 64
WORDS = 150
"""Of reasoning in each answer; a prompt has as many."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--peer-python", type=Path, help="interpreter of an environment with bespokelabs-curator")
    parser.add_argument("--client", choices=sorted(CLIENTS), help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--store", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        sys.stdout.write(json.dumps(CLIENTS[options.client](options.url, options.store, options.requests)) + "\n")
        return
    say(f"{options.requests} requests, {LATENCY:g} s, {SLOTS} slots, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before\n")
    ideal = SLOTS / LATENCY
    say(f"{'client':24} {'seconds':>8} {'per s':>7} {'of ideal':>8} {'CPU s':>7} {'peak MB':>8} {'answers':>8} {'load':>6}\n")
    for name in CLIENTS:
        python = Path(sys.executable)
        if name == "curator":
            if options.peer_python is None:
                say(f"{name:24} skipped: no --peer-python\n")
                continue
            python = options.peer_python
        with server() as url, tempfile.TemporaryDirectory() as store:
            done = run(python, name, url, Path(store), options.requests)
        if done.returncode:
            say(f"{name:24} failed: {done.stderr.strip().splitlines()[-1][:100]}\n")
            continue
        found = json.loads(done.stdout.splitlines()[-1])
        rate = found["answers"] / found["seconds"]
        say(
            f"{name:24} {found['seconds']:8.1f} {rate:7.0f} {rate / ideal:8.1%} {found['cpu']:7.1f} {found['peak_mb']:8.0f} "
            f"{found['answers']:8} {os.getloadavg()[0]:6.1f}\n"
        )
    for idempotent in (False, True):
        say(kills(idempotent, options.requests // 5, options.kills) + "\n")


def say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


@contextmanager
def server(*arguments: str) -> Iterator[str]:
    """The endpoint, as a process; its URL."""
    command = [sys.executable, "-m", "tests.chat_server", f"--latency={LATENCY}", f"--slots={SLOTS}", f"--words={WORDS}", *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()


def command(python: Path, name: str, url: str, store: Path, requests: int) -> list[str]:
    return [str(python), __file__, "--client", name, "--url", url, "--store", str(store), "--requests", str(requests)]


def run(python: Path, name: str, url: str, store: Path, requests: int) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "HOME": str(store),
        "CURATOR_DISABLE_RICH_DISPLAY": "1",
        "TELEMETRY_ENABLED": "0",
        "OPENAI_API_KEY": "none",
    }
    return subprocess.run(command(python, name, url, store, requests), cwd=ROOT, capture_output=True, text=True, env=environment)


def prompt(number: int) -> str:
    return f"{'word ' * WORDS} say {number}"


def measured(answers: int, began: float) -> dict[str, float]:
    """What a client reports at its end; the peak is the process's own (VmHWM)."""
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return {"seconds": time.perf_counter() - began, "answers": answers, "cpu": time.process_time(), "peak_mb": int(peak.split()[1]) / 1024}


def lyceum(url: str, store: Path, requests: int) -> dict[str, float]:
    sys.path.insert(0, str(ROOT))
    from infra.answers import Answers
    from infra.settings import Settings
    from infra.store import open_store
    from tasks.chat.budget import Budget, Prices
    from tasks.chat.endpoint import endpoint_of
    from tasks.chat.engine import ChatEngine
    from tasks.chat.request import ChatRequest

    endpoint = endpoint_of("bench", {"BENCH_BASE_URL": url})
    with ChatEngine(endpoint, Answers(open_store(store)), budget=Budget(), prices=Prices(), settings=Settings()) as engine:
        began = time.perf_counter()
        asked = (
            (number, ChatRequest("m", ({"role": "user", "content": prompt(number)},), {"max_tokens": 512})) for number in range(requests)
        )
        answers = sum(reply.problem is None for _, reply in engine.ask(asked))
        return measured(answers, began)


def openai_semaphore(url: str, store: Path, requests: int) -> dict[str, float]:
    """What most scripts do: all requests as tasks, a semaphore, the client's own retries."""
    import openai

    async def ask_all() -> dict[str, float]:
        client = openai.AsyncOpenAI(base_url=url, api_key="none")
        free = asyncio.Semaphore(SLOTS)

        async def ask(number: int) -> str:
            async with free:
                answer = await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": prompt(number)}], max_tokens=512
                )
            return answer.choices[0].message.content or ""

        began = time.perf_counter()
        answers = await asyncio.gather(*(ask(number) for number in range(requests)))
        return measured(sum(map(bool, answers)), began)

    return asyncio.run(ask_all())


def curator(url: str, store: Path, requests: int) -> dict[str, float]:
    """bespokelabs-curator, its OpenAI backend without limits of its own; litellm brings the tokenizer that it would download."""
    litellm = importlib.util.find_spec("litellm")
    assert litellm is not None
    assert litellm.origin is not None
    os.environ["TIKTOKEN_CACHE_DIR"] = str(Path(litellm.origin).parent / "litellm_core_utils" / "tokenizers")
    from bespokelabs import curator  # type: ignore[import-not-found]

    llm = curator.LLM(
        model_name="m",
        backend="openai",
        backend_params={
            "base_url": url,
            "api_key": "none",
            "max_requests_per_minute": 10_000_000,
            "max_tokens_per_minute": 10_000_000_000,
            "max_concurrent_requests": SLOTS,
        },
        generation_params={"max_tokens": 512},
    )
    began = time.perf_counter()
    answers = llm([prompt(number) for number in range(requests)], working_dir=str(store))
    return measured(len(answers.dataset if hasattr(answers, "dataset") else answers), began)


CLIENTS: dict[str, Callable[[str, Path, int], dict[str, float]]] = {
    "lyceum": lyceum,
    "openai + semaphore": openai_semaphore,
    "curator": curator,
}


def kills(idempotent: bool, requests: int, times: int) -> str:
    """Kill the client at random moments, let it finish, and compare what the server has billed with what was stored at each kill."""
    rng = random.Random(7)
    with server(*(["--idempotent"] if idempotent else [])) as url, tempfile.TemporaryDirectory() as temporary:
        store = Path(temporary)
        stored: dict[str, int] = {}  # question -> billed when it was first seen in the store
        killed = 0
        while True:
            client = subprocess.Popen(command(Path(sys.executable), "lyceum", url, store, requests), cwd=ROOT, stdout=subprocess.DEVNULL)
            strike = counts(url)["requests"] + rng.randrange(1, requests // times) if killed < times else float("inf")
            while client.poll() is None and counts(url)["requests"] < strike:
                time.sleep(0.02)
            if client.poll() is None:
                client.send_signal(signal.SIGKILL)
                client.wait()
                killed += 1
                billed = counts(url, "billed")
                for path in (store / "answers").glob("*/[0-9a-f]*"):
                    text = path.read_bytes().partition(b"\n")[2]
                    question = json.loads(text)["body"]["choices"][0]["message"]["content"]
                    number = int(question.rpartition("<answer>")[2].partition("<")[0])
                    stored.setdefault(prompt(number), billed[prompt(number)])
                continue
            assert client.returncode == 0
            break
        billed = counts(url, "billed")
    repeated = sum(billed[question] - count for question, count in stored.items())
    twice = sum(count - 1 for count in billed.values())
    kind = "honours Idempotency-Key" if idempotent else "ignores Idempotency-Key"
    return (
        f"{killed} kills in {requests} requests, provider {kind}: {repeated} stored answers asked for again, "
        f"{twice} billed twice that were under way at a kill ({twice / max(1, killed):.1f} per kill)"
    )


def counts(url: str, what: str = "counts") -> dict[str, Any]:
    with urllib.request.urlopen(f"{url.removesuffix('/v1')}/{what}") as answer:
        value: dict[str, Any] = json.load(answer)
        return value


if __name__ == "__main__":
    main()

"""One client for `benchmarks.engines`, in a process of its own, with the Python of its own
environment:

    python clients.py NAME URL DIRECTORY FILE...

Each FILE holds questions, a JSON body per line, and is put to the endpoint after the one before it;
`DIRECTORY/found.json` gets the seconds of each file and its answers, null for those that were lost.
What a client keeps for a later call it keeps below DIRECTORY.
"""

import asyncio
import hashlib
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SLOTS = 64
MODEL = "m"
Body = dict[str, Any]
Answers = list[str | None]
Ask = Callable[[list[Body]], Answers]
"""Puts questions and waits for all answers."""


def text_of(body: Body) -> str:
    """The question in a body."""
    return str(body["messages"][0]["content"])


@contextmanager
def openai_semaphore(url: str, directory: Path) -> Iterator[Ask]:
    """Ask as most scripts do: all questions as tasks, 64 at a time, the client's own two
    retries."""
    import openai

    client = openai.AsyncOpenAI(base_url=url, api_key="none")
    with asyncio.Runner() as runner:

        async def ask_all(bodies: list[Body]) -> Answers:
            free = asyncio.Semaphore(SLOTS)

            async def ask(body: Body) -> str | None:
                async with free:
                    try:
                        answer = await client.chat.completions.create(**body)
                    except openai.APIError:
                        return None
                return answer.choices[0].message.content

            return list(await asyncio.gather(*map(ask, bodies)))

        yield lambda bodies: runner.run(ask_all(bodies))


@contextmanager
def blocking(url: str, directory: Path) -> Iterator[Ask]:
    """The blocking client in 64 threads."""
    import openai

    client = openai.OpenAI(base_url=url, api_key="none")

    def ask(body: Body) -> str | None:
        try:
            return client.chat.completions.create(**body).choices[0].message.content
        except openai.APIError:
            return None

    with ThreadPoolExecutor(SLOTS) as pool:
        yield lambda bodies: list(pool.map(ask, bodies))


@contextmanager
def curator(url: str, directory: Path) -> Iterator[Ask]:
    """bespokelabs-curator, its OpenAI backend without limits of its own; litellm brings the
    tokenizer that it would download."""
    litellm = importlib.util.find_spec("litellm")
    assert litellm is not None
    assert litellm.origin is not None
    tokenizers = Path(litellm.origin).parent / "litellm_core_utils" / "tokenizers"
    os.environ |= {"HOME": str(directory), "TIKTOKEN_CACHE_DIR": str(tokenizers)}
    os.environ |= {"CURATOR_DISABLE_RICH_DISPLAY": "1", "TELEMETRY_ENABLED": "0"}
    os.environ["OPENAI_API_KEY"] = "none"
    from bespokelabs import curator as library
    from datasets import Dataset

    class Asker(library.LLM):
        def prompt(self, row: dict[str, Any]) -> str:
            return str(row["text"])

        def parse(self, row: dict[str, Any], answer: str) -> dict[str, Any]:
            return {"place": row["place"], "answer": answer}

    limits = {
        "max_requests_per_minute": 10_000_000,
        "max_tokens_per_minute": 10_000_000_000,
        "max_concurrent_requests": SLOTS,
    }
    backend = {"base_url": url, "api_key": "none", "require_all_responses": False, **limits}

    def ask(bodies: list[Body]) -> Answers:
        first, own = bodies[0], ("model", "messages")
        more = {name: value for name, value in first.items() if name not in own}
        parameters = {"generation_params": more, "backend_params": backend}
        asker = Asker(model_name=MODEL, backend="openai", **parameters)
        rows = [{"place": place, "text": text_of(body)} for place, body in enumerate(bodies)]
        found: Answers = [None] * len(bodies)
        for row in asker(Dataset.from_list(rows), working_dir=str(directory)).dataset:
            found[row["place"]] = row["answer"]
        return found

    yield ask


@contextmanager
def distilabel(url: str, directory: Path) -> Iterator[Ask]:
    """distilabel: a pipeline of one TextGeneration, 64 rows a batch, which is its unit of
    concurrency and of its cache."""
    os.environ |= {"HOME": str(directory), "HF_HUB_OFFLINE": "1"}
    from distilabel.models import OpenAILLM
    from distilabel.pipeline import Pipeline
    from distilabel.steps import LoadDataFromDicts
    from distilabel.steps.tasks import TextGeneration

    def ask(bodies: list[Body]) -> Answers:
        first = bodies[0]
        more = {"max_new_tokens": first["max_tokens"], "temperature": first.get("temperature", 1.0)}
        rows = [{"place": place, "instruction": text_of(body)} for place, body in enumerate(bodies)]
        # By the questions: its cache knows a pipeline's name and steps but not their data, and
        # would answer with another rollout's.
        name = "ask" + hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]
        with Pipeline(name=name, cache_dir=directory / "cache") as pipeline:
            load = LoadDataFromDicts(data=rows, batch_size=SLOTS)
            reach = {"model": MODEL, "base_url": url, "api_key": "none"}
            model = OpenAILLM(**reach, generation_kwargs=more)
            load >> TextGeneration(llm=model, input_batch_size=SLOTS)
        found: Answers = [None] * len(bodies)
        for row in pipeline.run(use_cache=True)["default"]["train"]:
            found[row["place"]] = row["generation"]
        return found

    yield ask


CLIENTS: dict[str, Any] = {
    "openai + semaphore": openai_semaphore,
    "64 threads": blocking,
    "curator": curator,
    "distilabel": distilabel,
}


def main() -> None:
    name, url, directory = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    seconds, answers = [], []
    with CLIENTS[name](url, directory) as ask:
        for file in map(Path, sys.argv[4:]):
            lines = file.read_text(encoding="utf-8").splitlines()
            bodies = [json.loads(line) for line in lines]
            began = time.perf_counter()
            answers.append(ask(bodies))
            seconds.append(time.perf_counter() - began)
    found = json.dumps({"seconds": seconds, "answers": answers})
    (directory / "found.json").write_text(found, encoding="utf-8")


if __name__ == "__main__":
    main()

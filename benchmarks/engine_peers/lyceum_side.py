"""Lyceum's side of `benchmarks.engines`, called as `clients.py` is, with teacher or judge for NAME.

The teacher's engine is given the questions. The judge is asked as a stage asks it: the reward
`rubric_judge` scores responses, made here as they were made for the files, and finds the questions
itself; its answers here are rewards.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.engine_peers.questions import PROVIDER, TABLE, rollout


def main() -> None:
    kind, url, directory = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    os.environ[f"{PROVIDER.upper()}_BASE_URL"] = url
    side = teacher if kind == "teacher" else judge
    found = side(directory, [Path(file) for file in sys.argv[4:]])
    (directory / "found.json").write_text(json.dumps(found), encoding="utf-8")


def teacher(directory: Path, files: list[Path]) -> dict[str, Any]:
    """The chat engine, as the teacher `openai_compatible` uses it; its store is in `directory`."""
    from infra.settings import Settings
    from infra.store.answers import Answers
    from infra.store.store import open_store
    from tasks.chat.budget import Budget, Prices
    from tasks.chat.engine import ChatEngine
    from tasks.chat.provider import endpoint_of
    from tasks.chat.request import ChatRequest

    seconds, answers = [], []
    store = Answers(open_store(directory / "store"))
    limits: dict[str, Any] = {"budget": Budget(), "prices": Prices(), "settings": Settings()}
    with ChatEngine(endpoint_of(PROVIDER), store, **limits) as engine:
        for file in files:
            bodies = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
            began = time.perf_counter()
            asked = (
                (body, ChatRequest(body.pop("model"), tuple(body.pop("messages")), body))
                for body in bodies
            )
            replies = [reply for _, reply in engine.ask_singly(asked)]
            answers.append([None if reply.problem is not None else reply.text for reply in replies])
            seconds.append(time.perf_counter() - began)
    return {"seconds": seconds, "answers": answers}


def judge(directory: Path, files: list[Path]) -> dict[str, Any]:
    """The reward's own `score`: rules, question, engine, an answer in the store before it counts,
    grades read."""
    from infra.store.answers import Answers
    from infra.store.store import open_store
    from tasks.contract.reward import Resources
    from tasks.reinforcement.rewarding import Scorer, parse_rewards

    seconds, values = [], []
    resources = Resources({}, Answers(open_store(directory / "store")))
    scorer = Scorer(parse_rewards([TABLE], "rewards"), resources)
    for file in files:
        rewards = len(file.read_text(encoding="utf-8").splitlines())
        prompts, responses = rollout(int(file.stem.partition("-")[2]), rewards)
        began = time.perf_counter()
        total = scorer.score(prompts, responses).total
        seconds.append(time.perf_counter() - began)
        values.append([None if value != value else float(value) for value in total])
    scorer.close()
    return {"seconds": seconds, "answers": values}


if __name__ == "__main__":
    main()

"""Device time lost to judging: GRPO with a judge that takes longer than one rollout and shorter than two, by `rollout_lag`.

    python -m benchmarks.judge_overlap [--updates 12] [--factor 1.5] [--lags 0,1,2]

A tiny Gemma runs the stage `grpo` with the reward `rubric_judge` at an endpoint. The first updates tell how long one takes with its rollout
(T); from then on the endpoint takes `factor` x T for each answer, and all answers of a rollout are asked for at once. Idle is the time in
which the stage waits for rewards and has given the devices nothing to do, as the stage itself measures it, of all time from the first
update whose rollout was sampled after that. What a random policy writes is no trace and would not be judged at all; here everything is.

Model, engine and endpoint share this machine's cores; on busy ones T is not what it was when the judge's time was set: the column
`judge / T`, of the counted updates, says what came of it.
"""

import argparse
import logging
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
BATCH, GROUP = 32, 8
WARM_UP = 5
"""Updates that tell T."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=12, help="counted ones")
    parser.add_argument("--factor", type=float, default=1.5)
    parser.add_argument("--lags", default="0,1,2")
    options = parser.parse_args()
    say(f"{'lag':>4} {'judge s':>8} {'s an update':>12} {'idle s an update':>17} {'judge / T':>10} {'idle':>6} {'load':>6}\n")
    with tempfile.TemporaryDirectory() as place:
        policy(Path(place))
        for lag in map(int, options.lags.split(",")):
            alone, total, waited = measured(Path(place), options.updates, lag, options.factor)
            each, idle, judging = total / options.updates, waited / options.updates, options.factor * alone
            say(f"{lag:4} {judging:8.2f} {each:12.2f} {idle:17.2f} {judging / (each - idle):10.2f} {idle / each:6.1%}")
            say(f" {os.getloadavg()[0]:6.1f}\n")


def say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def policy(place: Path) -> None:
    """A random policy and its prompts."""
    from schemas.examples import Domain, Prompt, prompt_id
    from tasks.contract.job import write_jsonl
    from tasks.models.loading import base_model, save_model

    (place / "policy").mkdir()
    (place / "prompts").mkdir()
    save_model(base_model("gemma3-tiny", 0), place / "policy")
    texts = [f"What is {number} + {number}?" for number in range(64)]
    prompts = [Prompt(id=prompt_id(text), prompt=text, domain=Domain.MATH, answer="0", check="numeric") for text in texts]
    write_jsonl(place / "prompts" / "prompts.jsonl", prompts)


def measured(place: Path, updates: int, lag: int, factor: float) -> tuple[float, float, float]:
    """T, the seconds of the counted updates, and those of waiting for rewards among them."""
    from benchmarks.engine_peers.questions import ruled
    from infra.store.store import open_store
    from infra.store.workspace import Workspace
    from tasks.contract.job import Job
    from tasks.reinforcement.batches import RolloutBatches
    from tasks.stages import grpo
    from tests.fakes.chat_server import ChatServer

    first = WARM_UP + 2 * lag + 1
    criteria = [{"title": "right", "text": "The answer is right."}]
    judge = {"name": "endpoint", "provider": "bench", "model": "judge"}
    config = {
        "steps": first + updates + 1,
        "batch_size": BATCH,
        "group_size": GROUP,
        "rollout_lag": lag,
        "prompt_length": 32,
        "response_length": 96,
        "collapse": {"enabled": False},
        "optimizer": {"learning_rate": 1e-4},
        "log_every": 1000,
        "rewards": [{"name": "rubric_judge", "judge": judge, "calibration": False, "criteria": criteria}],
    }
    began: dict[int, float] = {}
    waits: dict[int, float] = {}
    alone = 0.0
    batch_at = RolloutBatches.batch_at

    with (
        tempfile.TemporaryDirectory() as there,
        ChatServer(reply=lambda body: ruled(body["messages"][-1]["content"]), record=False) as server,
    ):

        def watched(self: RolloutBatches, step: int) -> Any:
            nonlocal alone
            began[step] = time.perf_counter()
            if step == WARM_UP:
                compiled = range(1, WARM_UP)  # the first update compiles
                alone = statistics.mean(began[one + 1] - began[one] - self.judge_wait_seconds[one + 1] for one in compiled)
                server.latency = factor * alone
            batch = batch_at(self, step)
            waits.update(self.judge_wait_seconds)
            return batch

        (Path(there) / "out").mkdir()
        work = Workspace(open_store(Path(there) / "store"), "key", "1")
        inputs = {name: place / name for name in ("policy", "prompts")}
        job = Job(grpo.Config.parse(config), inputs, Path(there) / "out", work, checkpoint_seconds=1e9, log=logging.getLogger("benchmark"))
        os.environ["BENCH_BASE_URL"] = server.url
        with patch.object(RolloutBatches, "batch_at", watched), patch("tasks.judging.bench.worthless", lambda *_: None):
            grpo.run(job)
    return alone, began[first + updates] - began[first], sum(waits[step + 1] for step in range(first, first + updates))


if __name__ == "__main__":
    main()

"""Does memory stay flat over long runs? What a worker holds over 10,000 steps of SFT, and what the
flow's process holds over a chain of 750 cached stages.

    uv run python -m benchmarks.long_runs SCRATCH [--steps 10000] [--stages 750]

Both are the real command in a process of its own. The chain's artifacts are committed before by the
store's own API (`tests.flows.growing_stores`): the flow verifies all stages and starts no job. A
recipe may hold 10,000 values, which are some 790 of these stages.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from benchmarks.paired import ROOT, heading, machine, parser, row, tell
from infra.store.store import open_store
from tests.flows.growing_stores import commit_chain, write_recipe

ROWS = 10
"""Of each table."""

SFT = """\
name = "long"
model = "gemma3-tiny"
[stages.distill]
kind = "distill"
[[stages.distill.config.teachers]]
name = "procedural"
rows = {{ math = 200 }}
[stages.rebalance]
kind = "rebalance"
inputs = {{ examples = "distill" }}
config = {{ quotas = {{ math = {{ train = 64, validation = 4, heldout = 8 }} }} }}
[stages.sft]
kind = "sft"
inputs = {{ examples = "rebalance" }}
[stages.sft.config]
steps = {steps}
batch_size = 1
sequence_length = 128
optimizer.learning_rate = 1e-3
"""


def steps_done(store: Path) -> int:
    """The newest step that a worker's status tells; 0 before the first."""
    progresses = [
        json.loads(path.read_bytes())["progress"] for path in store.glob("work/*/*/status.json")
    ]
    return max([one["done"] for one in progresses if one and one["unit"] == "steps"], default=0)


def worker_below(process: psutil.Process) -> psutil.Process | None:
    """The newest worker that trains among the processes below a run."""
    workers = [
        one for one in process.children(recursive=True) if "tasks.worker" in " ".join(one.cmdline())
    ]
    return max(workers, key=lambda one: one.create_time(), default=None)


def sample(
    command: list[str],
    log: Path,
    until: int,
    done: Callable[[], int],
    which: Callable[[psutil.Process], psutil.Process | None],
) -> None:
    """Run a command; print a row of the process `which` each time that a tenth more of `until` is
    done. Raises SystemExit with the end of the log when the command fails."""
    with log.open("wb") as out:
        run = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out)
    process, told = psutil.Process(run.pid), 0
    while run.poll() is None:
        time.sleep(0.02)
        count = done()
        if count * ROWS // until > told:
            told = count * ROWS // until
            try:
                if (one := which(process)) is not None:
                    row(f"{count:,}", f"{one.memory_info().rss / 1e6:.0f}")
            except psutil.Error:
                continue
    if run.returncode:
        raise SystemExit(log.read_text(encoding="utf-8", errors="replace")[-2000:])


def main() -> None:
    options = parser(__doc__, scratch=True)
    options.add_argument("--steps", type=int, default=10_000)
    options.add_argument("--stages", type=int, default=750)
    chosen = options.parse_args()
    scratch: Path = chosen.scratch
    scratch.mkdir(parents=True, exist_ok=True)
    lyceum = [sys.executable, "-m", "flows.cli.main", "run"]
    print(machine("jax", "google-tunix", "prefect"))

    recipe, store = scratch / "long.toml", scratch / "long"
    recipe.write_text(SFT.format(steps=chosen.steps), encoding="utf-8")
    heading("steps of SFT done", "worker, MB")
    command = [*lyceum, str(recipe), "--store", str(store)]
    sample(command, scratch / "long.log", chosen.steps, lambda: steps_done(store), worker_below)

    recipe, store = scratch / "chain.toml", scratch / "chain"
    tell(f"committing {chosen.stages} stages")
    resolved = write_recipe(recipe, chosen.stages)
    commit_chain(open_store(str(store)), resolved, scratch / "files")
    heading("stages done", "flow, MB")
    log = scratch / "chain.log"

    def lines() -> int:
        return log.read_bytes().count(b" cached ") if log.exists() else 0

    sample(
        [*lyceum, str(recipe), "--store", str(store)], log, chosen.stages, lines, lambda one: one
    )


if __name__ == "__main__":
    main()

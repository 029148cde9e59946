"""SFT -> SimPO -> GRPO of one tiny Gemma 3: Lyceum beside TRL's SFTTrainer, CPOTrainer (loss
"simpo", cpo_alpha 0) and GRPOTrainer.

    python -m benchmarks.chain SCRATCH --cpu [--rounds 3] [--set sft_steps=200 ...]

Both begin with the same model, which knows a part of the tasks, and have the same rows, pairs,
prompts, rewards, optimizer, schedule, numbers of steps, of examples a step and of generations; each
goes on from its own model. TRL lives in an environment below SCRATCH, which the first call makes
(wheels where PIP_FIND_LINKS points are preferred; torch of PyPI is big, for it brings CUDA). Data,
first model and pairs are made once, too, by the stages distill, rebalance, sft and simpo, and not
measured; SCRATCH keeps all of it for calls with the same settings.

On busy cores only the processor's seconds say something, and those of one thread (torch's threads
spin while they wait for each other): `OMP_NUM_THREADS=1 taskset -c 0` before the command.

Every stage is a process of its own on either side, and the sides take turns stage by stage. Lyceum
runs twice: with an empty cache of compiled programs ("first run"), and with what that left in it,
as `lyceum run` keeps it by default. Rounds differ by their seed.

wall, CPU       of the process, from its start to its end, model written
first step      from the start of the process to the end of its first step; Lyceum tells of it when
                the second is on its way
step, tokens/s  of the steps between the first two and the last; tokens trained on without padding
                (sft, simpo), sampled (grpo)
memory          peak resident set of the process; on a GPU also of the device
exact, format   of greedy answers to the held-out prompts, by `reasoning_eval` for both sides

Cells are medians over the rounds; ratios are of the same round, TRL to Lyceum, above 1 where Lyceum
is ahead. On an NVIDIA GPU (torch's wheel from PyPI brings CUDA; jax[cuda13] beside Lyceum), with
random weights of a 1B, nothing downloaded; rows and pairs are the tiny model's, and nothing is
evaluated:

    python -m benchmarks.chain SCRATCH --set model=gemma3-1b-it first_steps=0 rows=32 length=512 \\
        pairs=32 responses=128 sft_rate=1e-5 simpo_rate=1e-6 grpo_rate=1e-6
"""

import filecmp
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from benchmarks import paired
from benchmarks.chain_peers.settings import STAGES, WARM_UP, Settings
from benchmarks.paired import ROOT, heading, ratios, row, spread, tell, watch
from infra.distribution import DISTRIBUTION
from infra.process import HUGE_PAGES

PEER: tuple[str, ...] = ("trl==1.16.0", "torch==2.13.0", "transformers==5.12.1")
PEER += ("datasets==5.2.0", "accelerate==1.15.0")
FOR_REWARDS = ("pydantic==2.14.3", "google-crc32c==1.9.0")
"""The packages that this project's rewards import beside the peer's own packages."""
FIRST, OURS, THEIRS = "Lyceum, first run", "Lyceum", "TRL"
SIDES = {FIRST: "lyceum", OURS: "lyceum", THEIRS: "trl"}
ANSWERING = (OURS, THEIRS)
"""Whose models are evaluated. Lyceum's two runs end with the same bytes: checked on the CPU."""
CACHE = {"MIN_COMPILE_TIME_SECS": "0", "MIN_ENTRY_SIZE_BYTES": "-1", "ENABLE_XLA_CACHES": "none"}
"""The settings of the cache of compiled programs with which infra.process starts a worker."""
HIDDEN = ("JAX_", "LYCEUM_", "PYTHON", "VIRTUAL_ENV", "XLA_")
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
Round = dict[str, dict[str, dict[str, Any]]]
"""By side: by stage what was measured, and by "answers" the evaluation."""


def main() -> None:
    made = paired.parser(__doc__, rounds=3, scratch=True)
    made.add_argument("--cpu", action="store_true", help="compute on the CPU, whatever there is")
    fields_of = "a field of benchmarks/chain_peers/settings.py"
    made.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help=fields_of)
    peers = "a Python that has TRL, where none can be installed"
    made.add_argument("--peer", type=Path, metavar="PYTHON", help=peers)
    options = made.parse_args()
    wanted = replace(Settings(cpu=options.cpu), **dict(map(setting, options.set)))
    if min(map(wanted.steps, STAGES)) < WARM_UP + 2:
        raise SystemExit(
            f"every stage needs at least {WARM_UP + 2} steps: {WARM_UP} warm up, and the last is "
            "not counted"
        )
    peer = options.peer or paired.installed(options.scratch, "trl", (*PEER, *FOR_REWARDS))
    settings = prepared(options.scratch, wanted)
    rounds: list[Round] = []
    for number in range(options.rounds):
        rounds.append(one_round(options.scratch, peer, replace(settings, seed=number)))
        tell(f"round {number + 1} of {options.rounds} is done")
    show(settings, rounds)


def setting(text: str) -> tuple[str, Any]:
    """`name=value` of the command line."""
    name, _, value = text.partition("=")
    readers = {int: int, float: float, str: str}
    kinds = {field.name: type(field.default) for field in fields(Settings)}
    if kinds.get(name) not in readers:
        where = "see benchmarks/chain_peers/settings.py"
        raise SystemExit(f"--set {text}: there is no setting {name!r}; {where}")
    try:
        return name, readers[kinds[name]](value)
    except ValueError as error:
        raise SystemExit(f"--set {text}: {value!r} is no {kinds[name].__name__}") from error


def prepared(scratch: Path, wanted: Settings) -> Settings:
    """Make data, first model and pairs, unless they are there for these settings.

    Returns the settings with what was counted in the data.
    """
    asked, found = scratch / "asked.json", scratch / "settings.json"
    if found.exists() and asked.exists() and Settings.read(asked) == wanted:
        return Settings.read(found)
    for path in (scratch / "data", scratch / "first", found):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    scratch.mkdir(parents=True, exist_ok=True)
    wanted.write(asked)
    tell("making data, first model and pairs")
    python = Path(sys.executable)
    log = scratch / "prepared.log"
    run(scratch, "lyceum", python, "prepare", asked, scratch / "first", found, log)
    return Settings.read(found)


def one_round(scratch: Path, peer: Path, settings: Settings) -> Round:
    here, python = scratch / "round", Path(sys.executable)
    shutil.rmtree(here, ignore_errors=True)
    here.mkdir()
    asked = here / "settings.json"
    settings.write(asked)
    found: Round = {side: {} for side in SIDES}
    for before, stage in zip(("", *STAGES), STAGES, strict=False):
        # Side by side within a stage, so that a busy minute strikes all of them.
        for side, program in SIDES.items():
            chain = here / side
            chain.mkdir(exist_ok=True)
            policy = chain / before if before else scratch / "first"
            files = (asked, policy, chain / stage, chain / f"{stage}.log")
            interpreter = peer if program == "trl" else python
            # The first run fills the cache, the second uses it.
            cache = here / "compiled"
            found[side][stage] = run(scratch, program, interpreter, stage, *files, cache)
    kinds = {found[side][stage]["device"] for side in SIDES for stage in STAGES}
    if len(kinds) > 1:
        raise SystemExit(
            f"the sides computed on different devices ({', '.join(kinds)}): install jax[cuda13] "
            "and torch with CUDA, or --cpu"
        )
    for stage in STAGES:
        first, second = (here / side / stage / "model.safetensors" for side in (FIRST, OURS))
        if settings.cpu and not filecmp.cmp(first, second, shallow=False):
            raise SystemExit(
                f"{stage}: Lyceum's two runs of the same seed ended with different models: "
                f"{first} and {second}"
            )
    for side in ANSWERING if settings.first_steps else ():
        files = (asked, here / side, here / side / "answers", here / side / "answers.log")
        cache = scratch / "compiled"
        found[side]["answers"] = run(scratch, "lyceum", python, "evaluate", *files, cache)
    return found


def run(
    scratch: Path,
    program: str,
    python: Path,
    stage: str,
    settings: Path,
    policy: Path,
    out: Path,
    log: Path,
    cache: Path | None = None,
    limit: float = 3600.0,
) -> dict[str, Any]:
    """Run a stage in a process, for `limit` seconds at most.

    Returns what it said; `wall` and `first` in seconds from its start; `cpu` seconds; `bytes`.
    """
    environment = {name: one for name, one in os.environ.items() if not name.startswith(HIDDEN)}
    environment |= {"PYTHONPATH": str(ROOT), **QUIET}
    if Settings.read(settings).cpu:
        environment |= {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    if program == "lyceum":
        environment["GLIBC_TUNABLES"] = HUGE_PAGES
    if cache:
        environment["JAX_COMPILATION_CACHE_DIR"] = str(cache)
        environment |= {f"JAX_PERSISTENT_CACHE_{name}": value for name, value in CACHE.items()}
    files = map(str, (settings, scratch / "data", policy, out))
    command = [str(python), "-m", f"benchmarks.chain_peers.{program}_side", stage, *files]
    started = time.monotonic()
    process = watch(command, log, limit, cwd=ROOT, env=environment)
    said: dict[str, Any] = json.loads(log.read_text(encoding="utf-8").splitlines()[-1])
    said |= {"wall": process.wall, "cpu": process.cpu, "bytes": process.peak}
    return said | {"first": said.get("first", started) - started}


Figure = tuple[str, str, float, str, bool]
"""Its name, where it is in a stage's measurement, the unit that it is written in, how, and whether
more is better."""
FIGURES: tuple[Figure, ...] = (
    ("wall, s", "wall", 1, ".1f", False),
    ("CPU, s", "cpu", 1, ".1f", False),
    ("first step, s", "first", 1, ".1f", False),
    ("step, s", "step_seconds", 1, ".3f", False),
    ("step: CPU, s", "step_cpu", 1, ".3f", False),
    ("tokens/s", "tokens_per_second", 1, ",.0f", True),
    ("memory, MB", "bytes", 1e6, ",.0f", False),
)
MEMORY = FIGURES[-1]
ON_DEVICE: Figure = ("device memory, MB", "device_bytes", 1e6, ",.0f", False)


def show(settings: Settings, rounds: Sequence[Round]) -> None:
    """Print the tables."""
    last = rounds[-1]
    packages = paired.machine(DISTRIBUTION, "jax", "flax", "google-tunix")
    print(f"{packages} on {last[OURS]['sft']['versions']}; {', '.join(PEER)}")
    steps = ", ".join(f"{stage} {settings.steps(stage)}" for stage in STAGES)
    print(
        f"{settings.model}, steps: {steps}; {settings.examples} examples, {settings.pairs} pairs, "
        f"{settings.responses} responses a step; {len(rounds)} rounds"
    )
    heading("", *SIDES, *(f"TRL / {side}" for side in (FIRST, OURS)))
    measured = all(last[side]["sft"]["device_bytes"] for side in ANSWERING)
    for stage in STAGES:
        for figure in (*FIGURES, *([ON_DEVICE] if measured else [])):
            compare(f"{stage}: {figure[0]}", figure, rounds, lambda of, s=stage: of(s))  # type: ignore[misc]
    for figure in FIGURES[:3]:
        compare(f"the chain: {figure[0]}", figure, rounds, lambda of: sum(map(of, STAGES)))
    compare(f"the chain: {MEMORY[0]}", MEMORY, rounds, lambda of: max(map(of, STAGES)))
    if settings.first_steps:
        show_answers(rounds)


def show_answers(rounds: Sequence[Round]) -> None:
    """Print the table of the evaluations."""
    asked = rounds[-1][THEIRS]["answers"]["sft"]["n"]
    heading(f"answers to {asked} held-out prompts", *ANSWERING)
    for stage in STAGES:
        for name in ("exact_answer", "format_rate"):
            rates = (
                [100 * one[side]["answers"][stage][name] for one in rounds] for side in ANSWERING
            )
            row(f"after {stage}: {name}, %", *(spread(each, ".1f") for each in rates))


def compare(
    name: str,
    figure: Figure,
    rounds: Sequence[Round],
    reduce: Callable[[Callable[[str], float]], float],
) -> None:
    """A line of the table. `reduce` gets what reads a stage's figure, of one side in one round."""
    _, field, unit, form, more = figure
    values = {
        side: [reduce(lambda stage, of=one[side]: of[stage][field] / unit) for one in rounds]  # type: ignore[misc]
        for side in SIDES
    }
    cells = [format(statistics.median(each), form) for each in values.values()]
    for side in (FIRST, OURS):
        both = (values[side], values[THEIRS])
        cells.append(spread(ratios(*(both if more else both[::-1])), ".2f"))
    row(name, *cells)


if __name__ == "__main__":
    main()

"""SFT -> SimPO -> GRPO of one tiny Gemma 3: Lyceum beside TRL's SFTTrainer, CPOTrainer (loss "simpo", cpo_alpha 0) and GRPOTrainer.

    python -m benchmarks.chain SCRATCH --cpu [--rounds 3] [--set sft_steps=200 ...]

Both begin with the same model, which knows a part of the tasks, and have the same rows, pairs, prompts, rewards, optimizer, schedule,
numbers of steps, of examples a step and of generations; each goes on from its own model.
TRL lives in an environment below SCRATCH, which the first call makes (wheels where PIP_FIND_LINKS points are preferred; torch of PyPI is
big, for it brings CUDA). Data, first model and pairs are made once, too, by the stages distill, rebalance, sft and simpo, and not measured;
SCRATCH keeps all of it for calls with the same settings.

Every stage is a process of its own on either side, and the sides take turns stage by stage. Lyceum runs twice: with an empty cache of
compiled programs ("first run"), and with what that left in it, as `lyceum run` keeps it by default. Rounds differ by their seed.

wall, CPU       of the process, from its start to its end, model written
first step      from the start of the process to the end of its first step; Lyceum tells of it when the second is on its way
step, tokens/s  of the steps between the first two and the last; tokens trained on without padding (sft, simpo), sampled (grpo)
memory          peak resident set of the process; on a GPU also of the device
exact, format   of greedy answers to the held-out prompts, by `reasoning_eval` for both sides, not measured

Cells are medians over the rounds; ratios are of the same round, TRL to Lyceum, median (lowest to highest), above 1 where Lyceum is ahead.

On an NVIDIA GPU (torch's wheel from PyPI brings CUDA; jax[cuda13] beside Lyceum): a 1B of random weights, nothing downloaded:

    python -m benchmarks.chain SCRATCH --set model=gemma3-1b-it first_steps=0 rows=32 length=512 pairs=32 responses=128 \\
        sft_rate=1e-5 simpo_rate=1e-6 grpo_rate=1e-6
"""

import argparse
import filecmp
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from benchmarks.chain_peers.settings import STAGES, WARM_UP, Settings
from benchmarks.side_by_side import installed, machine, spread

ROOT = Path(__file__).resolve().parent.parent
PEER = (
    "trl==1.16.0",
    "torch==2.13.0",
    "transformers==5.12.1",
    "datasets==5.2.0",
    "accelerate==1.15.0",
)
FOR_REWARDS = ("pydantic==2.14.3", "google-crc32c==1.9.0")
"""What this project's rewards import beside the peer's own packages."""
SIDES = {"Lyceum, first run": "lyceum", "Lyceum": "lyceum", "TRL": "trl"}
ANSWERING = ("Lyceum", "TRL")
"""Whose models are evaluated. Lyceum's first run and its second end with the same bytes, which is checked on the CPU."""

NOT_EQUAL = """\
Not equal: in SFT Lyceum packs the examples into {rows} rows of {length} tokens, {examples} on average; TRL {packing}.
Lyceum tokenises and proves what is supervised; TRL is given the tokens of SFT. Lyceum writes a checkpoint every 60 s, GRPO's journal and a
ledger of all responses, and corrects what sampler and trainer differ in (truncated importance sampling); TRL saves its last model alone.
Of Lyceum the stages are measured; what `lyceum run` does around them (flow, digests, commits) is in the table of the orchestration.
Its guard against a collapse is off, so that no step is left out. Its shapes are fixed, at {prompt_length} + {response_length} tokens;
TRL's are as long as the longest of the batch. TRL samples without vLLM and runs uncompiled, as by default."""
PACKING = {
    True: "packs likewise and joins the rows to one (peer_packs)",
    False: "pads so many to the longest of the batch (no peer_packs)",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--cpu", action="store_true", help="compute on the CPU, whatever else there is"
    )
    parser.add_argument(
        "--set",
        nargs="*",
        default=[],
        metavar="NAME=VALUE",
        help="a field of benchmarks/chain_peers/settings.py",
    )
    options = parser.parse_args()
    scratch: Path = options.scratch.absolute()
    wanted = replace(Settings(cpu=options.cpu), **dict(setting(text) for text in options.set))
    if min(map(wanted.steps, STAGES)) < WARM_UP + 2:
        raise SystemExit(
            f"every stage needs at least {WARM_UP + 2} steps: {WARM_UP} warm up, and the last is not counted"
        )
    peer = installed(scratch, "trl", (*PEER, *FOR_REWARDS))
    settings = prepared(scratch, wanted)
    rounds: list[dict[str, dict[str, Any]]] = []
    for number in range(options.rounds):
        rounds.append(one_round(scratch, peer, replace(settings, seed=number)))
        sys.stderr.write(f"round {number + 1} of {options.rounds} is done\n")
    show(settings, rounds)


def setting(text: str) -> tuple[str, Any]:
    """`name=value` of the command line."""
    name, _, value = text.partition("=")
    readers = {int: int, float: float, str: str, bool: {"true": True, "false": False}.__getitem__}
    kinds = {field.name: type(field.default) for field in fields(Settings)}
    if kinds.get(name) not in readers:
        raise SystemExit(
            f"--set {text}: there is no setting {name!r}; see benchmarks/chain_peers/settings.py"
        )
    try:
        return name, readers[kinds[name]](value)
    except (ValueError, KeyError) as error:
        raise SystemExit(f"--set {text}: {value!r} is no {kinds[name].__name__}") from error


def prepared(scratch: Path, wanted: Settings) -> Settings:
    """Make data, first model and pairs, unless they are there for these settings; the settings with what was counted in the data."""
    asked, found = scratch / "asked.json", scratch / "settings.json"
    if found.exists() and asked.exists() and Settings.read(asked) == wanted:
        return Settings.read(found)
    for path in (scratch / "data", scratch / "first", found):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    wanted.write(asked)
    sys.stderr.write("making data, first model and pairs\n")
    run(
        scratch,
        "lyceum",
        Path(sys.executable),
        "prepare",
        asked,
        scratch / "first",
        found,
        scratch / "prepared.log",
    )
    return Settings.read(found)


def one_round(scratch: Path, peer: Path, settings: Settings) -> dict[str, dict[str, Any]]:
    """By side: by stage what was measured, and by "answers" the evaluation."""
    here = scratch / "round"
    shutil.rmtree(here, ignore_errors=True)
    here.mkdir()
    settings.write(here / "settings.json")
    found: dict[str, dict[str, Any]] = {side: {} for side in SIDES}
    for before, stage in zip(("", *STAGES), STAGES, strict=False):
        for (
            side,
            program,
        ) in (
            SIDES.items()
        ):  # side by side within a stage, so that a busy minute strikes all of them
            chain = here / directory(side)
            chain.mkdir(exist_ok=True)
            policy = chain / before if before else scratch / "first"
            python = peer if program == "trl" else Path(sys.executable)
            cache = here / "compiled"  # filled by the first run, used by the second
            log = chain / f"{stage}.log"
            found[side][stage] = run(
                scratch,
                program,
                python,
                stage,
                here / "settings.json",
                policy,
                chain / stage,
                log,
                cache,
            )
    kinds = {found[side][stage]["device"] for side in SIDES for stage in STAGES}
    if len(kinds) > 1:
        raise SystemExit(
            f"the sides computed on different devices ({', '.join(kinds)}): install jax[cuda13] and torch with CUDA, or --cpu"
        )
    for stage in STAGES:
        first, second = (
            here / directory(side) / stage / "model.safetensors"
            for side in ("Lyceum, first run", "Lyceum")
        )
        if settings.cpu and not filecmp.cmp(first, second, shallow=False):
            raise SystemExit(
                f"{stage}: Lyceum's two runs of the same seed ended with different models: {first} and {second}"
            )
    for side in ANSWERING:
        chain = here / directory(side)
        arguments = (
            "evaluate",
            here / "settings.json",
            chain,
            chain / "answers",
            chain / "answers.log",
            scratch / "compiled",
        )
        found[side]["answers"] = run(scratch, "lyceum", Path(sys.executable), *arguments)
    return found


def directory(side: str) -> str:
    return side.replace(", ", "-").replace(" ", "-")


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
) -> dict[str, Any]:
    """A stage in a process: what it said; `wall` and `first` in seconds from its start; `cpu` seconds; `bytes`, its peak resident set."""
    hidden = ("JAX_", "LYCEUM_", "PYTHON", "VIRTUAL_ENV", "XLA_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    environment |= {
        "PYTHONPATH": str(ROOT),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }
    if Settings.read(settings).cpu:
        environment |= {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    if cache:  # as infra.process starts a worker
        environment |= {
            "JAX_COMPILATION_CACHE_DIR": str(cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        environment |= {
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
        }
    command = [
        str(python),
        "-m",
        f"benchmarks.chain_peers.{program}_side",
        stage,
        *map(str, (settings, scratch / "data", policy, out)),
    ]
    started = time.monotonic()
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=file, stderr=file)
        _, status, usage = os.wait4(process.pid, 0)
    wall = time.monotonic() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    text = log.read_text(encoding="utf-8", errors="replace")
    if process.returncode:
        raise SystemExit(
            f"{program}, {stage}: exit status {process.returncode}; see {log}\n{text[-2000:]}"
        )
    said: dict[str, Any] = json.loads(text.splitlines()[-1])
    of_process = {
        "wall": wall,
        "cpu": usage.ru_utime + usage.ru_stime,
        "bytes": usage.ru_maxrss * 1024,
    }
    return {**said, **of_process, "first": said.get("first", started) - started}


Figure = tuple[str, Callable[[dict[str, Any]], float], str, bool]
"""What it is called, where it is in a stage's measurement, how it is written, and whether more is better."""

FIGURES: tuple[Figure, ...] = (
    ("wall, s", lambda one: one["wall"], ".1f", False),
    ("CPU, s", lambda one: one["cpu"], ".1f", False),
    ("first step, s", lambda one: one["first"], ".1f", False),
    ("step, s", lambda one: one["step_seconds"], ".3f", False),
    ("tokens/s", lambda one: one["tokens_per_second"], ",.0f", True),
    ("memory, MB", lambda one: one["bytes"] / 1e6, ",.0f", False),
)
ON_DEVICE: Figure = ("device memory, MB", lambda one: one["device_bytes"] / 1e6, ",.0f", False)


def show(settings: Settings, rounds: Sequence[dict[str, dict[str, Any]]]) -> None:
    """Print the tables."""
    last = rounds[-1]
    kind = last["Lyceum"]["sft"]["versions"]
    print(f"{machine('lyceum', 'jax', 'flax', 'google-tunix')} on {kind}; {', '.join(PEER)}")
    steps = ", ".join(f"{stage} {settings.steps(stage)}" for stage in STAGES)
    print(
        f"{settings.model}, steps: {steps}; {settings.examples} examples, {settings.pairs} pairs, {settings.responses} responses a step"
    )
    print(
        f"{len(rounds)} rounds\n\n| | {' | '.join(SIDES)} | TRL / Lyceum, first run | TRL / Lyceum |\n|---|{'---|' * (len(SIDES) + 2)}"
    )
    on_device = (
        [ON_DEVICE]
        if last["TRL"]["sft"]["device_bytes"] and last["Lyceum"]["sft"]["device_bytes"]
        else []
    )
    for stage in STAGES:
        for name, value, form, more in (*FIGURES, *on_device):
            row(
                f"{stage}: {name}",
                [{side: value(one[side][stage]) for side in SIDES} for one in rounds],
                form,
                more,
            )
    for name, value, form, more in FIGURES[:3]:
        whole = [
            {side: sum(value(one[side][stage]) for stage in STAGES) for side in SIDES}
            for one in rounds
        ]
        row(f"the chain: {name}", whole, form, more)
    row(
        "the chain: memory, MB",
        [
            {side: max(one[side][stage]["bytes"] / 1e6 for stage in STAGES) for side in SIDES}
            for one in rounds
        ],
        ",.0f",
    )
    print(
        f"\n| answers to {last['TRL']['answers']['sft']['n']} held-out prompts | {' | '.join(ANSWERING)} |\n|---|{'---|' * len(ANSWERING)}"
    )
    for stage in STAGES:
        for name in ("exact_answer", "format_rate"):
            cells = [
                spread([100 * one[side]["answers"][stage][name] for one in rounds], ".1f")
                for side in ANSWERING
            ]
            print(f"| after {stage}: {name}, % | {' | '.join(cells)} |")
    print("\n" + NOT_EQUAL.format(**vars(settings), packing=PACKING[settings.peer_packs]))


def row(name: str, rounds: Sequence[dict[str, float]], form: str, more: bool = False) -> None:
    """A line of the table: medians, and the ratios of the rounds."""
    cells = [format(statistics.median(one[side] for one in rounds), form) for side in SIDES]
    for side in list(SIDES)[:2]:
        ratios = [one[side] / one["TRL"] if more else one["TRL"] / one[side] for one in rounds]
        cells.append(spread(ratios, ".2f"))
    print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()

"""One step of SFT, SimPO and GRPO, and a rollout, as the TPU compiler sees them: stock Tunix 0.1.7
beside ours. It needs the [tpu] extra and no TPU.

    python -m benchmarks.step_tpu --results FILE [--target v5e-8] [--known]

Gemma 3 1B with LoRA of rank 16 for the eight devices of v5e-8 and of v3-8 (a device of v3 is half a
chip, with 16 GiB): ours as `lyceum plan` compiles it, the very programs of the stages; stock's with
abstract arguments in the same way (`benchmarks.stock_tunix`). Each case is compiled in a process of
its own, minutes for stock's, which unrolls 26 layers. FILE keeps it, one JSON object a line: an
interrupted table goes on, and `--known` shows what is there. Everything counts for one device:

HBM          the most in use at a time, arguments included
TFLOPs       of matrix products
HBM traffic  bytes read and written
links        bytes sent to other devices
roofline     the largest of TFLOPs, traffic and links over the chip's peaks (`infra.tpu.chips`)
rollout      its prefill, and its decode step for every token of a response after the first
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.paired import heading, parser, row, tell
from infra.tpu.chips import chip_of
from infra.tpu.types import TPU_TYPES

MODEL, RANK = "gemma3-1b-it", 16
PROMPT, RESPONSE = 512, 512
"""Tokens of a row. Every token of a response has a target, in SFT every token of the row."""
ROWS, SAMPLED = 2, 8
"""Rows on a device: of a training step (of SimPO one pair), of a rollout."""
COUNTED = ("flops", "bytes_accessed", "link_bytes")
SHAPE = f"{ROWS} and {SAMPLED} x {PROMPT} + {RESPONSE}, rank {RANK}"
"""What a case says of all this: kept ones of other shapes are others."""
SIDES = {
    "stock": ("sft", "simpo", "grpo", "prefill", "decode"),
    "ours": ("sft", "simpo", "grpo", "decode"),
}
"""`prefill` reads the prompts and draws the first token, `decode` draws one more for every row.
Ours does both in one program, whose report has the prefill's counts beside."""
ORDER = ("sft", "simpo", "grpo", "rollout", "of it: prefill", "of it: one decode step")
TARGETS = ("v5e-8", "v3-8")
Report = Mapping[str, Any]

NOT_EQUAL = """
Not equal: adapters and their optimizer's moments are bfloat16 in Tunix, float32 in ours. Ours keeps
the frozen base whole on every device where it fits (`LYCEUM_WHOLE_WEIGHTS_GIB`), Tunix spreads it.
Tunix has no SimPO: its DPOTrainer is given the loss. Rows of the sampler's state are divided among
the devices for Tunix, which leaves that to the compiler. Nothing is rematerialised on either side,
which is both's default. Every token that can has a target: ours would do less with fewer, Tunix
would not."""


class Results:
    """Compiled cases, in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        rows = map(json.loads, lines)
        self.known = {json.dumps(row["case"], sort_keys=True): row["report"] for row in rows}

    def of(self, **case: str) -> Any:
        """The `ProgramReport` of a case as JSON."""
        from tasks.planning.compiler import ENVIRONMENT

        key = json.dumps(case, sort_keys=True)
        if key not in self.known:
            tell(f"compiling {key}")
            command = [sys.executable, "-m", "benchmarks.step_tpu", "--case", key]
            settings = {**os.environ, **ENVIRONMENT}
            done = subprocess.run(command, env=settings, capture_output=True, text=True)
            if done.returncode:
                sys.exit(done.stderr[-2000:])
            self.known[key] = json.loads(done.stdout.splitlines()[-1])
            with self.path.open("a", encoding="utf-8") as out:
                out.write(json.dumps({"case": case, "report": self.known[key]}) + "\n")
        return self.known[key]


def compile_case(who: str, target: str, program: str, shape: str) -> dict[str, Any]:
    """Compile one case here. Counts of `decode` are of one step of its loop."""
    from tasks.planning.compiler import tpu_mesh

    return (stock if who == "stock" else ours)(tpu_mesh(target), program)


def stock(mesh: Any, program: str) -> dict[str, Any]:
    """The report on a program of Tunix's."""
    from benchmarks.stock_tunix import Stock
    from tasks.planning.compiler import analyse

    theirs, rows = Stock(mesh, rank=RANK), ROWS * mesh.size
    if program == "sft":
        found = theirs.sft(rows, PROMPT + RESPONSE)
    elif program == "simpo":
        found = theirs.simpo(rows // 2, PROMPT, RESPONSE)
    elif program == "grpo":
        found = theirs.grpo(rows, PROMPT, RESPONSE)
    else:
        found = theirs.rollout(SAMPLED * mesh.size, PROMPT, RESPONSE)[program == "decode"]
    return asdict(analyse(*found, mesh, {"decode": 1}))


def ours(mesh: Any, program: str) -> dict[str, Any]:
    """The report on a program of ours: the one that `lyceum plan` compiles for the stage."""
    from tasks.contract.kinds import stage_kind
    from tasks.models.gemma import SIZES
    from tasks.planning.compiler import bytes_per_device, lower, report
    from tasks.planning.programs import abstract_model

    rows, lengths = ROWS * mesh.size, {"prompt_length": PROMPT, "response_length": RESPONSE}
    lora = {"rank": RANK, "alpha": 2.0 * RANK}
    table: dict[str, Any] = {"steps": 1, "lora": lora, "optimizer": {"learning_rate": 1e-4}}
    if program == "sft":
        table |= {"batch_size": rows, "model": MODEL, "sequence_length": PROMPT + RESPONSE}
    elif program == "simpo":
        table |= {"batch_size": rows // 2, "prompts": 0, "data_pairs": rows, **lengths}
    else:
        size = rows if program == "grpo" else SAMPLED * mesh.size
        table |= {"batch_size": size, "group_size": 8, "beta": 0.04, **lengths}
        table |= {"rewards": [{"name": "format"}]}
    upstream = stage_kind("rebalance").config.parse({"quotas": {"math": {"train": 1}}})
    found = stage_kind("grpo" if program == "decode" else program)
    model = abstract_model(MODEL, SIZES[MODEL], mesh)
    programs = found.programs(
        found.config.parse(table), model, {"examples": upstream, "prompts": upstream}
    )
    name = "generate" if program == "decode" else "train_step"
    wanted = next(one for one in programs if one.name == name)
    compiled = cache(lower(wanted.function, wanted.args, mesh).compile)  # once for both reports
    lowered: Any = SimpleNamespace(compile=compiled)
    whole, prefill = (
        asdict(report(lowered, {**wanted.trips, "decode": steps})) for steps in (1, 0)
    )
    for each in (whole, prefill):
        each["hbm_bytes"] += bytes_per_device(wanted.resident)
    if program != "decode":
        return whole
    return whole | {name: whole[name] - prefill[name] for name in COUNTED} | {"prefill": prefill}


def on_tpu(target: str, results: Results, *, known: bool) -> None:
    """Print the table of a TPU; `known`: compile nothing."""
    found: dict[tuple[str, str], Report] = {}
    for who, programs in SIDES.items():
        for program in programs:
            case = {"who": who, "target": target, "program": program, "shape": SHAPE}
            if not known or json.dumps(case, sort_keys=True) in results.known:
                found[program, who] = results.of(**case)
    rows = {key: one for key, one in found.items() if key[0] not in ("prefill", "decode")}
    for who in SIDES:
        decode: Report = found.get(("decode", who), {})
        prefill = decode.get("prefill") or found.get(("prefill", who))
        if decode and prefill:
            rows |= {(name, who): one for name, one in rollout(prefill, decode).items()}
    chip, devices = chip_of(TPU_TYPES[target]), TPU_TYPES[target].devices
    print(
        f"\n**{target}**: Gemma 3 1B, LoRA r16, per device {ROWS} rows of {PROMPT} + {RESPONSE} "
        f"tokens (SimPO: {ROWS // 2} pair), rollout {SAMPLED}; {devices} devices, "
        f"{chip.hbm_bytes / 2**30:.2f} GiB = {chip.hbm_bytes / 1e9:.2f} GB each can be used"
    )
    counted = ("HBM, GB", "TFLOPs", "HBM traffic, GB", "links, GB", "roofline, ms", "bound")
    heading("", "", *counted, "stock / ours")
    times = {key: 1e3 * chip.roofline_seconds(*counts(one)) for key, one in rows.items()}
    for name in ORDER:
        for who in SIDES:
            if (name, who) not in rows:
                continue
            one, ratio = rows[name, who], ""
            if one["refusal"]:
                row(name, who, f"{one['hbm_bytes'] / 1e9:.2f}: refused", *[""] * 6)
                continue
            other = rows.get((name, "stock"))
            if who == "ours" and other and not other["refusal"]:
                ratio = f"{times[name, 'stock'] / times[name, 'ours']:.2f}"
            flops, traffic, links = counts(one)
            cells = (flops / 1e12, traffic / 1e9, links / 1e9, times[name, who])
            bound = chip.bound(flops, traffic, links)
            row(name, who, f"{one['hbm_bytes'] / 1e9:.2f}", *map(digits, cells), bound, ratio)


def rollout(prefill: Report, decode: Report) -> dict[str, Report]:
    """The rows of a rollout."""
    whole = {name: prefill[name] + (RESPONSE - 1) * decode[name] for name in COUNTED}
    whole["hbm_bytes"] = max(prefill["hbm_bytes"], decode["hbm_bytes"])
    whole["refusal"] = prefill["refusal"] or decode["refusal"]
    return {"rollout": whole, "of it: prefill": prefill, "of it: one decode step": decode}


def counts(report: Report) -> tuple[float, float, float]:
    """FLOPs, HBM bytes and link bytes."""
    return report["flops"], report["bytes_accessed"], report["link_bytes"]


def digits(value: float) -> str:
    """Three of them that count, of a thousandth at least."""
    if value < 1e-3:
        return "0"
    return np.format_float_positional(value, precision=3, fractional=False, trim="-")


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--results", type=Path)
    made.add_argument("--target", choices=TARGETS, action="append")
    made.add_argument("--known", action="store_true", help="compile nothing; show what FILE has")
    made.add_argument("--case", type=json.loads, help=argparse.SUPPRESS)
    options = made.parse_args()
    if options.case:
        print(json.dumps(compile_case(**options.case)))
        return
    if not options.results:
        made.error("--results FILE is missing: where compiled cases are kept")
    for target in options.target or TARGETS:
        on_tpu(target, Results(options.results), known=options.known)
    print(NOT_EQUAL)


if __name__ == "__main__":
    main()

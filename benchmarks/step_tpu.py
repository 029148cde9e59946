"""The TPU half of `benchmarks.step`: each program of ours and of stock Tunix, compiled for a TPU that is not here.

    python -m benchmarks.step_tpu '{"who": "stock", "target": "v5e-8", "program": "sft"}'

prints one case's `tasks.planning.plan.ProgramReport` as JSON; `benchmarks.step tpu` runs it for every case that its file has not.
"""

import json
import sys
from dataclasses import asdict
from functools import cache
from types import SimpleNamespace
from typing import Any

MODEL, RANK = "gemma3-1b-it", 16
PROMPT, RESPONSE = 512, 512
"""Tokens of a row: its prompt and its response. Every token of a response has a target, in SFT every token of the row."""
ROWS = 2
"""Rows on a device of a training step; of SimPO one pair."""
SAMPLED = 8
"""Rows on a device of a rollout."""
COUNTED = ("flops", "bytes_accessed", "link_bytes")
SHAPE = f"{ROWS} and {SAMPLED} x {PROMPT} + {RESPONSE}, rank {RANK}"
"""What a case says of all this: kept ones of other shapes are others."""
PROGRAMS = {"stock": ("sft", "simpo", "grpo", "prefill", "decode"), "ours": ("sft", "simpo", "grpo", "decode")}
"""`prefill` reads the prompts and draws the first token, `decode` draws one more for every row. Ours does both in one program, whose report
has the prefill's counts beside."""


def compile_case(case: dict[str, str]) -> dict[str, Any]:
    """Compile one case here: `who` (ours, stock), `target`, `program`. Counts of `decode` are of one step of its loop."""
    from tasks.planning.plan import tpu_mesh

    return (stock if case["who"] == "stock" else ours)(tpu_mesh(case["target"]), case["program"])


def stock(mesh: Any, program: str) -> dict[str, Any]:
    """The report on a program of Tunix's."""
    from benchmarks.stock_tunix import Stock
    from tasks.planning.plan import analyse

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
    from tasks.contract.plugins import stage_kind
    from tasks.models.gemma import SIZES
    from tasks.planning.plan import bytes_per_device, lower, report
    from tasks.planning.programs import abstract_model

    kind = "grpo" if program == "decode" else program
    rows, lengths = ROWS * mesh.size, {"prompt_length": PROMPT, "response_length": RESPONSE}
    table: dict[str, Any] = {"steps": 1, "lora": {"rank": RANK, "alpha": 2.0 * RANK}, "optimizer": {"learning_rate": 1e-4}}
    table |= {
        "sft": {"batch_size": rows, "model": MODEL, "sequence_length": PROMPT + RESPONSE},
        "simpo": {"batch_size": rows // 2, "prompts": 0, "data_pairs": rows, **lengths},
        "grpo": {"batch_size": rows, "group_size": 8, "rewards": [{"name": "format"}], "beta": 0.04, **lengths},
        "decode": {"batch_size": SAMPLED * mesh.size, "group_size": 8, "rewards": [{"name": "format"}], "beta": 0.04, **lengths},
    }[program]
    rebalance = stage_kind("rebalance").config.parse({"quotas": {"math": {"train": 1}}})
    found, model = stage_kind(kind), abstract_model(MODEL, SIZES[MODEL], mesh)
    programs = found.programs(found.config.parse(table), model, {"examples": rebalance, "prompts": rebalance})
    wanted = next(one for one in programs if one.name == ("generate" if program == "decode" else "train_step"))
    lowered: Any = SimpleNamespace(compile=cache(lower(wanted.function, wanted.args, mesh).compile))  # once for both reports
    reports = {name: asdict(report(lowered, {**wanted.trips, "decode": steps})) for name, steps in ((program, 1), ("prefill", 0))}
    for each in reports.values():
        each["hbm_bytes"] += bytes_per_device(wanted.resident)
    if program != "decode":
        return reports[program]
    return (
        reports[program] | {name: reports[program][name] - reports["prefill"][name] for name in COUNTED} | {"prefill": reports["prefill"]}
    )


if __name__ == "__main__":
    print(json.dumps(compile_case(json.loads(sys.argv[1]))))

"""What bounds the programs of a recipe on a TPU that is not here, fusion by fusion, by the TPU
compiler's own account: docs/performance.md has its tables.

    python -m benchmarks.fusions [RECIPE] [--target v5e-8] [--stage sft] [--program train_step]

Each row is all that one kind of work takes in one call of a program, on one device. *Compiler*: the
cycles that the compiler estimates for it, at the chip's clock. *Products* and *HBM*: the least that
its matrix products and its traffic take at the chip's peak (`infra.tpu.chips`). Kernels of our own
and copies beside other work have no cycles. A program compiles for one to three minutes.
"""

import os
import re
from collections import defaultdict

from benchmarks.paired import parser
from flows.planning.stage_plans import question_of
from flows.recipe.resolve import resolve
from infra.tpu.chips import chip_of
from infra.tpu.types import TPU_TYPES
from tasks.planning.compiler import ENVIRONMENT, Planner, StageQuestion
from tasks.planning.hlo_cost import Part, parts_of

MATRIX_UNITS = {"v2": (128, 1), "v3": (128, 2), "v4": (128, 4), "v5e": (128, 4), "v5p": (128, 8)}
"""The side of a matrix unit and how many a device has (cloud.google.com/tpu/docs): with the peak
they give the clock."""

PLACES = {
    "vocabulary_chunks": "vocabulary",
    "splash": "attention",
    "attend": "attention",
    "layers": "layers",
    "decode": "decoding",
}


def kind_of(part: Part) -> tuple[str, str]:
    """Where a part stands in the program, and what it does."""
    scope, opcode = part.instruction.scope, part.instruction.opcode
    place = next((name for word, name in PLACES.items() if word in scope), "elsewhere")
    again = "recomputed" if "rematted" in scope else "backward" if "transpose(" in scope else ""
    if opcode == "custom-call":
        work = "kernels"
    elif part.cost.flops:
        work = "products"
    elif part.cost.link_bytes:
        work = "collectives"
    elif re.search("copy|slice|bitcast", opcode):
        work = "copies"
    else:
        work = "norms, rotations, activations" if place == "layers" else "elementwise, sums"
    return f"{place}, {again}" if again else place, work


def table(name: str, parts: list[Part], target: str, top: int) -> str:
    chip, generation = chip_of(TPU_TYPES[target]), target.partition("-")[0]
    side, units = MATRIX_UNITS[generation]
    clock = chip.flops / (2 * side * side * units)
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0] * 3)
    for part in parts:
        times = (
            part.cycles / clock,
            part.cost.flops / chip.flops,
            part.cost.bytes / chip.hbm_bandwidth,
        )
        row = sums[kind_of(part)]
        row[:] = [one + 1e3 * time for one, time in zip(row, times, strict=True)]
    total = [sum(row[column] for row in sums.values()) for column in range(3)]
    whole = "compiler {:.0f} ms, products {:.0f} ms, HBM {:.0f} ms".format(*total)
    lines = [
        f"**{name}**: {whole}",
        "",
        "| where | what | compiler, ms | products, ms | HBM, ms | bound |",
        "|---|---|---|---|---|---|",
    ]
    ordered = sorted(sums.items(), key=lambda item: -max(item[1]))
    for (place, work), (cycles, products, hbm) in ordered[:top]:
        least = max(products, hbm)
        bound = "compute" if products >= hbm else "HBM"
        if cycles > 1.5 * least:
            bound = "vector unit" if not products else f"{bound}, {least / cycles:.0%} of it"
        lines.append(f"| {place} | {work} | {cycles:.1f} | {products:.1f} | {hbm:.1f} | {bound} |")
    return "\n".join(lines)


def main() -> None:
    made = parser(__doc__)
    made.add_argument("recipe", nargs="?", default="default")
    made.add_argument("--target", default="v5e-8")
    made.add_argument("--stage", action="append")
    made.add_argument("--program", action="append")
    made.add_argument("--set", action="append", default=[])
    made.add_argument("--top", type=int, default=12)
    given = made.parse_args()
    os.environ |= ENVIRONMENT | {"HF_HUB_OFFLINE": "1"}  # rows make no difference to programs
    resolved = resolve(given.recipe, given.set, need_data=False)
    planner = Planner(given.target)
    for stage in resolved.stages:
        if stage.name not in (given.stage or ("sft", "simpo", "grpo")):
            continue
        question = StageQuestion.parse(question_of(stage, resolved).stage)
        for program, lowered in planner.lowered(question):
            if program.name in (given.program or (program.name,)):
                parts = parts_of(lowered.compile().as_text() or "", program.trips)
                name = f"{stage.name}, {program.name}"
                print(table(name, parts, given.target, given.top), end="\n\n", flush=True)


if __name__ == "__main__":
    main()

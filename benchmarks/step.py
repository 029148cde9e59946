"""One step of SFT, SimPO and GRPO, and a rollout: stock Tunix 0.1.7 beside ours.

    python -m benchmarks.step cpu                                             # minutes
    python -m benchmarks.step tpu --results FILE [--target v5e-8] [--known]   # three hours on two busy cores, most of it stock's

`cpu` runs `gemma3-tiny` on this machine, with the same weights, rows, batches and optimizer on both sides, each in its own loop:
`PeftTrainer.train`, `DPOTrainer.train`, the trainer of GRPOLearner, `VanillaRollout.generate`, beside `tasks.training.loop.fit` and
`tasks.sampling.sampler.Sampler`. A round is 5 steps of one side, then 5 of the other; the first two rounds of either compile and are not
counted.
Both sides' losses, step by step, have to be the same, or there is no table.

step         seconds of one
tokens/s     that count: supervised (SFT), of responses (SimPO, GRPO), sampled (rollout); never padding
ours / stock of tokens/s, round by round; median (lowest to highest)

`tpu` compiles Gemma 3 1B with LoRA of rank 16 for the eight devices of v5e-8 and of v3-8 (a device of v3 is half a chip, with 16 GiB): ours
as `lyceum plan` does, the very programs of the stages; stock's with abstract arguments in the same way (`benchmarks.stock_tunix`). It needs
the [tpu] extra and no TPU. Each case is compiled in a process of its own and kept in FILE, one JSON object a line: a table that was
interrupted goes on, and `--known` shows what is there. Everything counts for one device:

HBM          the most in use at a time, arguments included
TFLOPs       of matrix products
HBM traffic  bytes read and written
links        bytes sent to other devices
roofline     the larger of TFLOPs and traffic over the chip's peaks, and the links (`infra.tpu.chips`); what takes most of it beside
rollout      its prefill, and as many times its decode step as a response has tokens after the first
"""

import argparse
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.side_by_side import machine, spread
from benchmarks.step_tpu import COUNTED, PROGRAMS, PROMPT, RESPONSE, ROWS, SAMPLED, SHAPE
from benchmarks.tpu_fit import Results
from infra.tpu.chips import chip_of
from infra.tpu.types import TPU_TYPES

ROUNDS, WARM_UP = 7, 2
TARGETS = ("v5e-8", "v3-8")
SIDES = ("stock", "ours")
ORDER = ("sft", "simpo", "grpo", "rollout", "of it: prefill", "of it: one decode step")

CPU_NOT_EQUAL = """\
Not equal: Tunix has no SimPO; its DPOTrainer, without a reference, is given SimPO's loss in a few lines on its own log-probabilities. In
"SFT, ours packed" a step has as many tokens, padding included, of other rows: Tunix cannot pack. Ours does without its truncated
importance sampling, which Tunix's GRPO has not. In the GRPO update either side measures a few things that the other does not; our rollout
gives every token's log-probability, too. Ours writes a curve. Tunix compiles a training step twice, ours once: not in the figures."""

TPU_NOT_EQUAL = """\
Not equal: adapters are bfloat16 in Tunix, float32 in ours, and so are their optimizer's moments. Ours keeps the frozen base whole on every
device where it fits (`LYCEUM_WHOLE_WEIGHTS_GIB`), Tunix spreads it. SimPO as in the table for the CPU. Rows of the sampler's state are
divided among the devices for Tunix, which leaves that to the compiler. Nothing is rematerialised on either side, which is both's default.
Every token that can has a target: ours would do less with fewer, Tunix would not."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("cpu").add_argument("--rounds", type=int, default=ROUNDS)
    tpu = commands.add_parser("tpu")
    tpu.add_argument("--results", type=Path, required=True)
    tpu.add_argument("--target", choices=TARGETS, action="append")
    tpu.add_argument("--known", action="store_true", help="compile nothing, and leave out what FILE has not")
    options = parser.parse_args()
    if options.command == "cpu":
        on_cpu(options.rounds)
    else:
        for target in options.target or TARGETS:
            on_tpu(target, Results(options.results, ("benchmarks.step_tpu",)), known=options.known)
        print(f"\n{TPU_NOT_EQUAL}")


def on_cpu(rounds: int) -> None:
    """Print the table of this machine. Raises AssertionError where the two sides' losses differ."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    from benchmarks.step_cpu import GROUP_SIZE, GROUPS, MODEL, OTHER_ROWS, PACKED, PAIRS, RESPONSE, TOKENS, Data, sides, timed

    data = Data()
    print(machine("jax", "google-tunix", "flax", "optax"))
    print(
        f"\n{MODEL}, float32, all weights trained. SFT: {TOKENS} tokens a step, rows of {data.alone.tokens.shape[1]}, packed of {PACKED}; "
        f"SimPO: {PAIRS} pairs of {data.prompt_length} + {data.response_length}; GRPO: {GROUPS} prompts x {GROUP_SIZE} responses of "
        f"{data.prompt_length} + {RESPONSE}. {rounds} rounds.\n"
    )
    print("| | stock Tunix, s | ours, s | stock Tunix, tokens/s | ours, tokens/s | ours / stock |\n|---|---|---|---|---|---|")
    for name, make in sides(data).items():
        both = make()
        for side in both * WARM_UP:
            timed(side)
        taken = [[timed(side) for side in both] for _ in range(rounds)]
        if name != OTHER_ROWS and both[0].losses():
            np.testing.assert_allclose(both[1].losses(), both[0].losses(), rtol=1e-3)
        columns = list(zip(*taken, strict=True))
        seconds = [spread([one[0] for one in column], ".3f") for column in columns]
        tokens = [spread([one[1] for one in column], ",.0f") for column in columns]
        ratio = spread([ours[1] / stock[1] for stock, ours in taken], ".2f")
        print(f"| {name} | {' | '.join([*seconds, *tokens, ratio])} |", flush=True)
    print(f"\n{CPU_NOT_EQUAL}")


def on_tpu(target: str, results: Results, *, known: bool) -> None:
    """Print the table of a TPU."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for who, programs in PROGRAMS.items():
        for program in programs:
            case = {"who": who, "target": target, "program": program, "shape": SHAPE}
            if not known or json.dumps(case, sort_keys=True) in results.known:
                found[program, who] = results.of(**case)
    rows: dict[tuple[str, str], Mapping[str, Any]] = {key: one for key, one in found.items() if key[0] not in ("prefill", "decode")}
    for who in SIDES:
        decode = found.get(("decode", who), {})
        prefill = decode.get("prefill") or found.get(("prefill", who))
        if decode and prefill:
            rows |= {(name, who): report for name, report in rollout(prefill, decode).items()}
    chip, devices = chip_of(TPU_TYPES[target]), TPU_TYPES[target].devices
    print(
        f"\n**{target}**: Gemma 3 1B, LoRA r16, per device {ROWS} rows of {PROMPT} + {RESPONSE} tokens (SimPO: {ROWS // 2} pair), rollout "
        f"{SAMPLED}; {devices} devices, {chip.hbm_bytes / 2**30:.2f} GiB = {chip.hbm_bytes / 1e9:.2f} GB each can be used\n"
    )
    columns = ("", "", "HBM, GB", "TFLOPs", "HBM traffic, GB", "links, GB", "roofline, ms", "bound", "stock / ours")
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    milliseconds = {key: 1e3 * chip.roofline_seconds(*counts(report)) for key, report in rows.items()}
    for name in sorted({name for name, _ in rows}, key=ORDER.index):
        for who in SIDES:
            if (name, who) not in rows:
                continue
            report = rows[name, who]
            cells = [f"{report['hbm_bytes'] / 1e9:.2f}"]
            if report["refusal"]:
                cells[0] += ": refused"
                cells += [""] * 5
            else:
                flops, traffic, links = counts(report)
                cells += [digits(flops / 1e12), digits(traffic / 1e9), digits(links / 1e9)]
                cells += [digits(milliseconds[name, who]), chip.bound(flops, traffic, links)]
            both = [rows.get((name, each)) for each in SIDES]
            ratio = milliseconds[name, "stock"] / milliseconds[name, "ours"] if who == "ours" and all(fits(one) for one in both) else None
            print(f"| {name} | {who} | {' | '.join(cells)} | {'' if ratio is None else f'{ratio:.2f}'} |")


def rollout(prefill: Mapping[str, Any], decode: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The rows of a rollout."""
    whole: dict[str, Any] = {name: prefill[name] + (RESPONSE - 1) * decode[name] for name in COUNTED}
    whole |= {"hbm_bytes": max(prefill["hbm_bytes"], decode["hbm_bytes"]), "refusal": prefill["refusal"] or decode["refusal"]}
    return {"rollout": whole, "of it: prefill": prefill, "of it: one decode step": decode}


def counts(report: Mapping[str, Any]) -> tuple[float, float, float]:
    """FLOPs, HBM bytes and link bytes."""
    return report["flops"], report["bytes_accessed"], report["link_bytes"]


def digits(value: float) -> str:
    """Three of them that count, of a thousandth at least."""
    return np.format_float_positional(value, precision=3, fractional=False, trim="-") if value >= 1e-3 else "0"


def fits(report: Mapping[str, Any] | None) -> bool:
    return report is not None and report["refusal"] is None


if __name__ == "__main__":
    main()

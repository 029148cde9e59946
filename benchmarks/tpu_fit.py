"""What the TPU compiler says of Gemma 3 1B's LoRA SFT step: ours, stock Tunix's (`benchmarks.stock_tunix`), and published fits.

    python -m benchmarks.tpu_fit memory|batch|tokens|frontier [--results FILE]

memory    HBM per chip on v5e-8 at per-chip batch 2 and 1,024 tokens, with and without rematerialisation.
batch     the largest per-chip batch that compiles for v5e-8, each at its best rematerialisation (whole layers), without accumulation.
tokens    roofline time per supervised token on rows with GSM8K's lengths: stock pads each row to the longest one (up to a multiple of
          128), ours packs them into rows of 1,024.
frontier  tunix-accel's measured fits (github.com/deep-diver/tunix-accel) of Tunix with its default cross entropy on a v5e slice of four
          chips: per-chip batch 4 fits 1,024 tokens and not 2,048; 8 fits 512, not 1,024; 16 fits 256, not 512.

Rank 16, AdamW, bfloat16. Every case is compiled in a process of its own (needs the [tpu] extra, no TPU; minutes for each of stock's, which
unrolls 26 layers) and kept in FILE, one JSON object a line, so that a table that was interrupted goes on.

Tokens are counted with a SentencePiece model of 16,384 pieces trained on GSM8K's own text, as Gemma's tokenizer is not at hand here: the
ratio of a row's length to the longest, which decides, depends little on that.
"""

import argparse
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tasks.planning.plan import ENVIRONMENT

RANK = 16
MODEL = "gemma3-1b-it"
DATA = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "gsm8k" / "train_first1000.jsonl"
Case = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=["memory", "batch", "tokens", "frontier", "one"])
    parser.add_argument("case", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("--results", type=Path, default=Path("tpu_fit.jsonl"))
    options = parser.parse_args()
    if options.table == "one":
        print(json.dumps(compile_case(json.loads(options.case))))
        return
    {"memory": memory, "batch": batch, "tokens": tokens, "frontier": frontier}[options.table](Results(options.results))


class Results:
    """Compiled cases, in a file. `compiler`: the module, with its arguments before the case, that prints a case's report."""

    def __init__(self, path: Path, compiler: tuple[str, ...] = ("benchmarks.tpu_fit", "one")):
        self.path, self.compiler = path, compiler
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.known = {json.dumps(row["case"], sort_keys=True): row["report"] for row in map(json.loads, lines)}

    def of(self, **case: Any) -> Any:
        """The `ProgramReport` of a case as JSON."""
        key = json.dumps(case, sort_keys=True)
        if key not in self.known:
            print("compiling", key, file=sys.stderr, flush=True)
            command = [sys.executable, "-m", *self.compiler, key]
            environment = {**os.environ, **ENVIRONMENT, **case.get("environment", {})}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(done.stderr[-2000:])
            self.known[key] = json.loads(done.stdout.splitlines()[-1])
            with self.path.open("a", encoding="utf-8") as out:
                out.write(json.dumps({"case": case, "report": self.known[key]}) + "\n")
        return self.known[key]

    def rows(self, batch: int, **case: Any) -> bool:
        """Whether a case fits with so many rows on a chip."""
        return self.of(batch=batch, **case)["refusal"] is None


def compile_case(case: Case) -> dict[str, Any]:
    """Compile one case here: `who`, `target`, `batch` (per chip), `length`, `remat`; of ours `supervised`, the fraction with a target."""
    from dataclasses import asdict

    from tasks.planning.plan import analyse, tpu_mesh

    mesh = tpu_mesh(case["target"])
    rows = case["batch"] * mesh.size
    if case["who"] == "stock":
        from benchmarks.stock_tunix import Stock

        function, args = Stock(mesh, rank=RANK, remat=case["remat"] == "layer").sft(rows, case["length"])
        return asdict(analyse(function, args, mesh))
    from tasks.models.gemma import SIZES
    from tasks.models.vocabulary import LOOP
    from tasks.planning.programs import abstract_model
    from tasks.stages import rebalance, sft

    lora = {"rank": RANK, "alpha": 2.0 * RANK}
    table = {"model": MODEL, "steps": 1, "batch_size": rows, "sequence_length": case["length"], "lora": lora, "remat": case["remat"]}
    config = sft.Config.parse({**table, "optimizer": {"learning_rate": 1e-4}})
    upstream = rebalance.Config.parse({"quotas": {"math": {"train": 1}}})
    step = sft.programs(config, abstract_model(MODEL, SIZES[MODEL], mesh), {"examples": upstream})[0]
    trips = {LOOP: step.trips[LOOP] * case.get("supervised", 1.0)}
    return asdict(analyse(step.function, step.args, mesh, trips))


WHOLE: Case = {}
SPREAD: Case = {"environment": {"LYCEUM_WHOLE_WEIGHTS_GIB": "0"}}


def memory(results: Results) -> None:
    common = {"target": "v5e-8", "batch": 2, "length": 1024}
    print("remat   who                  HBM per chip (GB)   of which arguments   TFLOPs   HBM traffic (GB)   links (GB)")
    for remat in ("none", "layer"):
        for name, case in (
            ("stock Tunix", {"who": "stock"}),
            ("ours, base whole", {"who": "ours", **WHOLE}),
            ("ours, base spread", {"who": "ours", **SPREAD}),
        ):
            report = results.of(**common, **case, remat=remat)
            print(
                f"{remat:8}{name:21}{report['hbm_bytes'] / 1e9:17.2f}{report['argument_bytes'] / 1e9:21.2f}"
                f"{report['flops'] / 1e12:9.1f}{report['bytes_accessed'] / 1e9:19.1f}{report['link_bytes'] / 1e9:13.1f}"
            )


def batch(results: Results) -> None:
    print("tokens   stock Tunix   ours, base whole   ours, base spread")
    for length in (1024, 2048):
        common = {"target": "v5e-8", "length": length, "remat": "layer"}
        stock = largest(partial(results.rows, **common, who="stock"), 1, 8192 // length)
        whole = largest(partial(results.rows, **common, who="ours", **WHOLE), stock, 64 * 1024 // length)
        spread = largest(partial(results.rows, **common, who="ours", **SPREAD), whole, whole + whole // 4)
        print(f"{length:6}{stock:14}{whole:19}{spread:20}")


def largest(fit: Callable[[int], bool], fits: int, guess: int) -> int:
    """The largest batch that compiles, from one that does and a guess, found by doubling and bisection."""
    low, high, probe = fits, None, max(guess, fits + 1)
    while high is None or high - low > 1:
        if fit(probe):
            low = probe
        else:
            high = probe
        probe = 2 * low if high is None else (low + high) // 2
    return low


def tokens(results: Results) -> None:
    from infra.tpu.chips import CHIPS
    from tasks.data.packing import pack

    rows = list(gsm8k_lengths())
    supervised = sum(response for _, response in rows)
    longest = -(-max(map(sum, rows)) // 128) * 128
    packed = pack([([1] * prompt, [1] * response) for prompt, response in rows], 1024, 0)
    share = supervised / packed.tokens.size
    mean, most = sum(map(sum, rows)) / len(rows), max(map(sum, rows))
    print(f"{len(rows)} rows, {mean:.0f} tokens on average, {most} at most; packed with {packed.padding:.1%} padding")
    print("who              rows x tokens   supervised per step   roofline (ms)   bound        us per supervised token")
    chip = CHIPS["v5e"]
    found = []
    for name, case, each in (
        ("stock Tunix", {"who": "stock", "batch": 4096 // longest, "length": longest}, supervised / len(rows)),
        ("ours", {"who": "ours", "batch": 4, "length": 1024, "supervised": round(share, 3)}, supervised / len(packed)),
    ):
        report = results.of(target="v5e-8", remat="none" if case["who"] == "stock" else "dots", **case)
        counts = report["flops"], report["bytes_accessed"], report["link_bytes"]
        seconds, count = chip.roofline_seconds(*counts), each * int(str(case["batch"]))
        found.append(seconds / count)
        shape = f"{case['batch']} x {case['length']}"
        print(f"{name:16}{shape:>14}{count:22.0f}{seconds * 1e3:16.1f}   {chip.bound(*counts):10}{found[-1] * 1e6:26.2f}")
    print(f"ours / stock: {found[1] / found[0]:.2f}")


def gsm8k_lengths() -> list[tuple[int, int]]:
    """(prompt tokens, response tokens) of GSM8K's rows in Gemma's template, by a tokenizer of their own text."""
    import sentencepiece

    examples = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
    model = io.BytesIO()
    texts = (text for example in examples for text in (example["question"], example["answer"]))
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=texts, model_writer=model, model_type="bpe", vocab_size=16384, hard_vocab_limit=False, split_digits=True,
        byte_fallback=True, minloglevel=2,
    )  # fmt: skip
    encode = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue()).encode
    template, tags = 8, 12
    return [(len(encode(example["question"])) + template, len(encode(example["answer"])) + tags) for example in examples]


def frontier(results: Results) -> None:
    print("per-chip batch   tokens   published   compiled here   HBM (GB)")
    agree = 0
    for rows, length, fits in ((4, 1024, True), (4, 2048, False), (8, 512, True), (8, 1024, False), (16, 256, True), (16, 512, False)):
        report = results.of(who="stock", target="v5e-4", batch=rows, length=length, remat="none")
        ours = report["refusal"] is None
        agree += ours == fits
        words = {True: "fits", False: "does not"}
        print(f"{rows:14}{length:9}   {words[fits]:9}   {words[ours]:13}{report['hbm_bytes'] / 1e9:11.2f}")
    print(f"{agree} of 6 agree")


if __name__ == "__main__":
    main()

"""Answering 1,000 prompts greedily on the CPU: the evaluations' sampler beside `transformers` generate, on the same trained tiny model.

    lyceum export RUN --to DIR && python -m benchmarks.eval_speed DIR [--repeats 5]

The prompts are procedural ones that nobody trained on, of all six domains and grounded, and `LONGER` of them read two more contexts first.
Both get the same texts and give text; both stop at the end of the turn or after `RESPONSE` tokens; both compute in float32. `transformers`
gets batches of prompts of like length, padded on the left, with a KV cache, and the batch size and number of threads with which it is
fastest, found on a quarter of them. Each repeat times all, one after the other; a ratio is that of one repeat. Ours runs on one JAX device,
as a stage does by default; on one per core (XLA_FLAGS=--xla_force_host_platform_device_count); and as it was before: one shape for all
prompts, until the slowest row of a batch has ended (`tasks.sampling.sampler`).

"Compiling" is the first call; "compiled" is the first call of a process that finds the programs in JAX's cache on disk, as every stage
after the first finds them. "Same" counts answers that are token by token those of `transformers`.

1000 prompts of 15 to 90 tokens, median 29; 24.8 tokens to an answer; transformers 5.12.1 fastest with batches of 128 and 2 threads

                    seconds           times faster         compiling          compiled   same
transformers           2.42    1.00 (1.00 to 1.00)                                        1000
slots                  1.84    1.32 (1.27 to 1.35)     7.10 s  0.34 x    2.60 s  0.93 x   1000
slots, 2 devices       1.28    1.89 (1.87 to 1.94)     7.16 s  0.34 x    2.29 s  1.06 x   1000
one shape              4.82    0.50 (0.49 to 0.51)     6.67 s  0.36 x    5.42 s  0.45 x   1000

Two quiet cores, 2026-11-22, jax 0.10.2, five repeats. `transformers` has matrix products at 240 GFLOP/s where XLA has 150 here; with a
small cache they are a third of a step of 128 rows, the rest is norms, rotations and attention, whose keys XLA transposes in every step.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", f"--xla_force_host_platform_device_count={os.cpu_count()}")

import jax
import torch
import transformers

from schemas.examples import Example
from tasks.data.tokens import prompt_tokens
from tasks.devices.hosts import make_mesh
from tasks.models.loading import LoadedModel, load_model
from tasks.sampling.sampler import Sampler
from tasks.sampling.slots import Request, SlotSampler
from tasks.teachers import procedural

PROMPTS, LONGER, RESPONSE, BATCH = 1000, 60, 60, 128
SEED = 20_261_122
ROWS = {"rows": {"math": 300, "coding": 150, "science": 150, "creative": 100, "summarization": 100, "general": 100}}
GROUNDED = {"grounded": {"answerable": 40, "unanswerable": 30, "out_of_domain": 30}}

Answers = list[list[int]]
Answer = Callable[[Sequence[str]], Answers]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("export", type=Path, help="what `lyceum export` wrote")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as cache:
        jax.config.update("jax_compilation_cache_dir", cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        compare(options.export, prompts(), options.repeats)


def say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def compare(directory: Path, asked: Sequence[str], repeats: int) -> None:
    """Print the tables."""
    devices = len(jax.devices())
    one, per_core = loaded(directory, 1), loaded(directory, devices)
    lengths = sorted(len(prompt_tokens(one.tokenizer, prompt)) for prompt in asked)
    say(f"{len(asked)} prompts of {lengths[0]} to {lengths[-1]} tokens, median {lengths[len(lengths) // 2]}; ")
    say(f"load {os.getloadavg()[0]:.1f}\n\ntransformers, seconds:\n")
    theirs = Theirs(directory, one.tokenizer.end_of_turn_id)
    threads, batch = theirs.tune(asked[::4])
    say(f"fastest: batches of {batch}, {threads} threads\n\n")

    makers: dict[str, Callable[[], Answer]] = {
        "slots": lambda: slots(one, lengths[-1]),
        f"slots, {devices} devices": lambda: slots(per_core, lengths[-1]),
        "one shape": lambda: one_shape(one, lengths[-1]),
    }
    first: dict[str, list[float]] = {name: [] for name in makers}
    for _ in range(2):
        jax.clear_caches()
        ours = {name: make() for name, make in makers.items()}
        for name, answer in ours.items():
            first[name].append(timed(answer, asked)[0])
    ours = {"transformers": lambda asked: theirs.answer(asked, batch), **ours}
    seconds: dict[str, list[float]] = {name: [] for name in ours}
    answers: dict[str, Answers] = {}
    for _ in range(repeats):
        for name, answer in ours.items():
            took, answers[name] = timed(answer, asked)
            seconds[name].append(took)
    reference, base = answers["transformers"], seconds["transformers"]
    cut = sum(len(answer) == RESPONSE for answer in reference)
    say(f"{sum(map(len, reference)) / len(asked):.1f} tokens to an answer, {cut} answers cut off\n\n")
    say(f"{'':18} {'seconds':>8} {'times faster':>22} {'compiling':>17} {'compiled':>17} {'same':>6}\n")
    for name, found in seconds.items():
        ratios = sorted(their / our for their, our in zip(base, found, strict=True))
        faster = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        calls = [f"{call:7.2f} s {statistics.median(base) / call:5.2f} x" for call in first.get(name, [])]
        same = sum(ours == their for ours, their in zip(answers[name], reference, strict=True))
        say(f"{name:18} {statistics.median(found):8.2f} {faster:>22} {''.join(f' {call:>17}' for call in calls):36} {same:6}\n")
    say(f"\nload {os.getloadavg()[0]:.1f}\n")


def prompts() -> list[str]:
    """PROMPTS texts, LONGER of which read two contexts of other prompts first."""
    examples: list[Example] = list(procedural.rows(procedural.Config.parse({"name": "procedural", **ROWS, **GROUNDED}), SEED))
    contexts = [example.context for example in examples if example.context]
    found = [example.prompt for example in examples]
    longer = range(0, len(found), max(1, len(found) // LONGER))
    for number, index in enumerate(longer):
        before = [contexts[(2 * number + offset) % len(contexts)] for offset in range(2)]
        found[index] = " ".join([*map(str, before), found[index]])
    return found[:PROMPTS]


def timed(function: Answer, asked: Sequence[str]) -> tuple[float, Answers]:
    began = time.perf_counter()
    answers = function(asked)
    return time.perf_counter() - began, answers


def loaded(directory: Path, devices: int) -> LoadedModel:
    return load_model(directory, make_mesh({"batch_size": BATCH}, jax.devices()[:devices]))


def slots(model: LoadedModel, longest: int) -> Answer:
    sampler = SlotSampler(model, batch_size=BATCH, prompt_length=longest, response_length=RESPONSE)
    return lambda asked: [one.tokens for one in sampler.generate([Request(prompt, row) for row, prompt in enumerate(asked)])]


def one_shape(model: LoadedModel, longest: int) -> Answer:
    sampler = Sampler(model, batch_size=BATCH, prompt_length=longest, response_length=RESPONSE)
    return lambda asked: [one.tokens for one in sampler.generate(asked)]


class Theirs:
    """`transformers` as its documentation says, with batches of prompts of like length."""

    def __init__(self, directory: Path, end: int) -> None:
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(directory, padding_side="left")
        self._end = end

    def tune(self, asked: Sequence[str]) -> tuple[int, int]:
        """The number of threads, which is set, and the batch size that are fastest."""
        found = {}
        for threads in sorted({1, os.cpu_count() or 1}):
            torch.set_num_threads(threads)
            self.answer(asked[:64], 64)
            for batch in (32, 64, 128, 250):
                found[threads, batch] = timed(lambda asked, batch=batch: self.answer(asked, batch), asked)[0]  # type: ignore[misc]
                say(f"  {threads} threads, {batch:4}: {found[threads, batch]:7.2f}\n")
        threads, batch = min(found, key=found.__getitem__)
        torch.set_num_threads(threads)
        return threads, batch

    def answer(self, asked: Sequence[str], batch: int) -> Answers:
        texts = [
            self._tokenizer.apply_chat_template([{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True)
            for text in asked
        ]
        tokens = self._tokenizer(texts, add_special_tokens=False)["input_ids"]
        order = sorted(range(len(asked)), key=lambda index: len(tokens[index]))
        answers: Answers = [[] for _ in asked]
        for start in range(0, len(order), batch):
            chosen = order[start : start + batch]
            inputs = self._tokenizer.pad({"input_ids": [tokens[index] for index in chosen]}, return_tensors="pt")
            with torch.inference_mode():
                out = self._model.generate(
                    **inputs, max_new_tokens=RESPONSE, do_sample=False, use_cache=True, eos_token_id=self._end, pad_token_id=0
                )
            for index, row in zip(chosen, out[:, inputs["input_ids"].shape[1] :].tolist(), strict=True):
                answers[index] = row[: row.index(self._end) + 1] if self._end in row else row
        self._tokenizer.batch_decode(answers)
        return answers


if __name__ == "__main__":
    main()

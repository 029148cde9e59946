"""Answering 1,000 prompts greedily on the CPU: the evaluations' sampler beside `transformers`
generate, on the same trained model.

    lyceum export RUN --to DIR && python -m benchmarks.eval_speed DIR [--rounds 5] [--prompts 1000]
    python -m benchmarks.eval_speed DIR --rows heldout.jsonl --response 256

The prompts are procedural ones that nobody trained on, of all six domains and grounded; one in 16
reads two more contexts first; with `--rows` those of a file that `rebalance` left. Both sides get
the same texts and give text, stop at the end of the turn or after `--response` tokens, and compute
in the dtype of the export. `transformers` gets batches of prompts of like length, padded on the
left, with a KV cache, and the batch size and number of threads with which it is fastest, found on a
quarter of the prompts. Ours runs on one JAX device, as a stage does by default, and on one per
core.

"compiling" is the first call; "compiled" is the first call of a process that finds the programs in
JAX's cache on disk, as every stage after the first finds them; each with the times of
`transformers`. "same" counts answers that are token by token those of `transformers`.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", f"--xla_force_host_platform_device_count={os.cpu_count()}")

import jax
import torch
import transformers

from benchmarks.paired import heading, machine, parser, ratios, row, spread, take_turns, tell
from tasks.contract.job import read_rows
from tasks.data.tokens import prompt_tokens
from tasks.devices.hosts import make_mesh
from tasks.models.loading import LoadedModel, load_model
from tasks.sampling.slots import Request, SlotSampler
from tasks.teachers import procedural

LONGER, SEED = 16, 20_261_122
ROWS = {"math": 300, "coding": 150, "science": 150}
ROWS |= {"creative": 100, "summarization": 100, "general": 100}
GROUNDED = {"answerable": 40, "unanswerable": 30, "out_of_domain": 30}
THEIRS = "transformers"
Answers = list[list[int]]
Answer = Callable[[Sequence[str]], Answers]


def main() -> None:
    made = parser(__doc__, rounds=5)
    made.add_argument("export", type=Path, help="what `lyceum export` wrote")
    made.add_argument("--prompts", type=int, default=1000)
    made.add_argument("--rows", type=Path, help="a JSONL file of a rebalance artifact")
    made.add_argument("--response", type=int, default=60, metavar="TOKENS")
    made.add_argument("--batch", type=int, default=128, help="slots of ours")
    made.add_argument("--batches", type=int, nargs="*", default=[32, 64, 128, 250])
    options = made.parse_args()
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as cache:
        jax.config.update("jax_compilation_cache_dir", cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        texts = [row["prompt"] for row in read_rows(options.rows)] if options.rows else prompts()
        compare(options, texts[:: max(1, len(texts) // options.prompts)][: options.prompts])


def compare(options: argparse.Namespace, asked: Sequence[str]) -> None:
    """Print the table."""
    directory, response, rounds = options.export, options.response, options.rounds
    devices = len(jax.devices())
    one, per_core = (loaded(directory, count, options.batch) for count in (1, devices))
    lengths = sorted(len(prompt_tokens(one.tokenizer, prompt)) for prompt in asked)
    theirs = Theirs(directory, one.tokenizer.end_of_turn_id, response)
    threads, batch = theirs.tune(asked[::4], options.batches)
    sizes = {"batch_size": options.batch, "prompt_length": lengths[-1], "response_length": response}
    makers: dict[str, Callable[[], Answer]] = {
        "slots": partial(slots, one, sizes),
        f"slots, {devices} devices": partial(slots, per_core, sizes),
    }
    first: dict[str, list[float]] = {name: [] for name in makers}
    for _ in range(2):
        jax.clear_caches()
        ours = {name: make() for name, make in makers.items()}
        for name, answer in ours.items():
            first[name].append(timed(answer, asked)[0])
    sides: dict[str, Answer] = {THEIRS: partial(theirs.answer, batch=batch), **ours}
    turns = {name: partial(timed, answer, asked) for name, answer in sides.items()}
    found = take_turns(turns, rounds)
    base = [seconds for seconds, _ in found[THEIRS]]
    reference = found[THEIRS][-1][1]
    print(machine("jax", "torch", THEIRS))
    print(
        f"{len(asked)} prompts of {lengths[0]} to {lengths[-1]} tokens, median "
        f"{lengths[len(lengths) // 2]}; {sum(map(len, reference)) / len(asked):.1f} tokens to an "
        f"answer, {sum(len(answer) == response for answer in reference)} cut off; {THEIRS} fastest "
        f"with batches of {batch} and {threads} threads"
    )
    heading("", "seconds", "times faster", "compiling", "compiled", "same")
    for name, each in found.items():
        seconds = [took for took, _ in each]
        calls = [f"{s:.2f} s, {statistics.median(base) / s:.2f} x" for s in first.get(name, ())]
        same = sum(our == their for our, their in zip(each[-1][1], reference, strict=True))
        faster = spread(ratios(base, seconds), ".2f")
        row(name, spread(seconds, ".2f"), faster, *(calls or ["", ""]), same)


def prompts() -> list[str]:
    """1,000 texts."""
    table = {"name": "procedural", "rows": ROWS, "grounded": GROUNDED}
    examples = list(procedural.rows(procedural.Config.parse(table), SEED))
    contexts = [example.context for example in examples if example.context]
    found = [example.prompt for example in examples]
    for number, index in enumerate(range(0, len(found), LONGER)):
        before = [contexts[(2 * number + offset) % len(contexts)] for offset in range(2)]
        found[index] = " ".join([*before, found[index]])
    return found


def timed(answer: Answer, asked: Sequence[str], _: int = 0) -> tuple[float, Answers]:
    began = time.perf_counter()
    answers = answer(asked)
    return time.perf_counter() - began, answers


def loaded(directory: Path, devices: int, batch: int) -> LoadedModel:
    return load_model(directory, make_mesh({"batch_size": batch}, jax.devices()[:devices]))


def slots(model: LoadedModel, sizes: dict[str, Any]) -> Answer:
    sampler = SlotSampler(model, **sizes)

    def answer(asked: Sequence[str]) -> Answers:
        requests = [Request(prompt, number) for number, prompt in enumerate(asked)]
        return [one.tokens for one in sampler.generate(requests)]

    return answer


class Theirs:
    """`transformers` as its documentation says, with batches of prompts of like length."""

    def __init__(self, directory: Path, end: int, response: int) -> None:
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            directory, dtype="auto"
        ).eval()
        self._response = response
        self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(
            directory, padding_side="left"
        )
        self._end = end

    def tune(self, asked: Sequence[str], batches: Sequence[int]) -> tuple[int, int]:
        """The number of threads, which is set, and the batch size that are fastest."""
        found = {}
        for threads in sorted({1, os.cpu_count() or 1}):
            torch.set_num_threads(threads)
            self.answer(asked[:64], 64)
            for batch in batches:
                found[threads, batch] = timed(partial(self.answer, batch=batch), asked)[0]
                tell(f"  {threads} threads, {batch:4}: {found[threads, batch]:7.2f} s")
        threads, batch = min(found, key=found.__getitem__)
        torch.set_num_threads(threads)
        return threads, batch

    def answer(self, asked: Sequence[str], batch: int) -> Answers:
        chat = partial(
            self._tokenizer.apply_chat_template, tokenize=False, add_generation_prompt=True
        )
        texts = [chat([{"role": "user", "content": text}]) for text in asked]
        tokens = self._tokenizer(texts, add_special_tokens=False)["input_ids"]
        order = sorted(range(len(asked)), key=lambda index: len(tokens[index]))
        answers: Answers = [[] for _ in asked]
        limits = {"max_new_tokens": self._response, "do_sample": False, "use_cache": True}
        ends = {"eos_token_id": self._end, "pad_token_id": 0}
        for start in range(0, len(order), batch):
            chosen = order[start : start + batch]
            padded = {"input_ids": [tokens[index] for index in chosen]}
            inputs = self._tokenizer.pad(padded, return_tensors="pt")
            with torch.inference_mode():
                out = self._model.generate(**inputs, **limits, **ends)
            new = out[:, inputs["input_ids"].shape[1] :].tolist()
            for index, row_ in zip(chosen, new, strict=True):
                answers[index] = row_[: row_.index(self._end) + 1] if self._end in row_ else row_
        self._tokenizer.batch_decode(answers)
        return answers


if __name__ == "__main__":
    main()

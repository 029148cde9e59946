"""A pretrained Gemma on this CPU: a step of SFT with adapters, and greedy answers, beside
`transformers` with `peft`.

    python -m benchmarks.real_model SCRATCH MODEL [--rounds 3]

MODEL is a Hugging Face directory, such as ../shared/bin/real_gemma.py writes. Both sides compute in
bfloat16 with the same tokens. SFT: LoRA r16 on all projections, 4 rows of 512 tokens, every token a
target, AdamW, products kept for the backward pass. Answers: 24 prompts of 128 tokens, 64 tokens
each, however they end. Every figure is of a process of its own, and the sides take turns; a step is
the fastest of those after the first two (which compile), answers are the second call's.
"""

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import paired
from benchmarks.paired import ROOT, heading, ratios, row, spread, take_turns, watch
from infra.distribution import DISTRIBUTION

PEER = ("torch==2.13.0", "transformers==5.12.1", "peft==0.21.0", "psutil==7.2.2")
ROWS, LENGTH, RANK, STEPS = 4, 512, 16, 4
PROMPTS, PROMPT, RESPONSE = 24, 128, 64
OURS, THEIRS = "Lyceum", "transformers, peft"
TASKS = {"sft": "a step of SFT", "answers": f"{PROMPTS} x {RESPONSE} tokens"}


def main() -> None:
    made = paired.parser(__doc__, rounds=3, scratch=True)
    made.add_argument("model", type=lambda text: Path(text).absolute())
    made.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    made.add_argument("--task", choices=TASKS, help=argparse.SUPPRESS)
    options = made.parse_args()
    if options.side:
        print(json.dumps(SIDES[options.side](options.task, options.model, options.scratch)))
        return
    options.scratch.mkdir(parents=True, exist_ok=True)
    write_prompts(options.model, options.scratch)
    peer = paired.installed(options.scratch, "peft", PEER)
    pythons = {OURS: Path(sys.executable), THEIRS: peer}
    print(paired.machine(DISTRIBUTION, "jax", "flax"), ", ".join(PEER))
    heading("", *SIDES, f"{THEIRS} / {OURS}")
    for task, name in TASKS.items():
        sides = {side: runner(python, side, task, options) for side, python in pythons.items()}
        found = take_turns(sides, options.rounds)
        for figure, form in (("seconds", ".2f"), ("CPU seconds", ".2f"), ("peak GB", ".2f")):
            values = {side: [one[figure] for one in each] for side, each in found.items()}
            cells = (spread(values[side], form) for side in SIDES)
            row(f"{name}: {figure}", *cells, spread(ratios(values[THEIRS], values[OURS]), ".2f"))


def runner(
    python: Path, side: str, task: str, options: argparse.Namespace
) -> Callable[[int], dict[str, float]]:
    def run(_: int) -> dict[str, float]:
        log = options.scratch / f"{task}.log"
        log.unlink(missing_ok=True)
        files = [str(options.scratch), str(options.model)]
        what = ["-m", "benchmarks.real_model", *files, "--side", side, "--task", task]
        cache = {"JAX_COMPILATION_CACHE_DIR": str(options.scratch / "compiled")}
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", **cache}
        watch([str(python), *what], log, cwd=options.scratch, env=environment)
        said: dict[str, float] = json.loads(log.read_text(encoding="utf-8").splitlines()[-1])
        return said

    return run


def write_prompts(model: Path, scratch: Path) -> None:
    """Texts of `PROMPT` tokens with the turns around them, and their ids."""
    from tasks.data.tokens import Tokenizer, prompt_tokens

    tokenizer, asked = Tokenizer.from_file(model / "tokenizer.model"), []
    for number in range(PROMPTS):
        text = f"{number}."
        while len(ids := prompt_tokens(tokenizer, text)) < PROMPT:
            text += " word"
        asked.append({"text": text, "ids": ids})
    (scratch / "prompts.json").write_text(json.dumps(asked), encoding="utf-8")


def tokens() -> Any:
    """(ROWS, LENGTH) random ids."""
    import numpy as np

    return np.random.Generator(np.random.Philox(0)).integers(5, 200_000, (ROWS, LENGTH))


def timed(work: Callable[[], Any], times: int) -> dict[str, float]:
    """The fastest of the calls after the first two, or of the second where there are two."""
    found = []
    for _ in range(times):
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        found.append((time.perf_counter() - wall, time.process_time() - cpu))
    wall, cpu = min(found[min(2, times - 1) :])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    return {"seconds": wall, "CPU seconds": cpu, "peak GB": peak}


def ours(task: str, model: Path, scratch: Path) -> dict[str, float]:
    import jax
    import numpy as np

    from tasks.models.loading import base_model
    from tasks.sampling.slots import Request, SlotSampler
    from tasks.stages import sft

    loaded = base_model(str(model), 0)
    if task == "answers":
        loaded.tokenizer.stop_ids = (-1,)
        texts = [one["text"] for one in json.loads((scratch / "prompts.json").read_text("utf-8"))]
        requests = [Request(text, number) for number, text in enumerate(texts)]
        shape = {"prompt_length": PROMPT, "response_length": RESPONSE}
        slots = SlotSampler(loaded, batch_size=PROMPTS, **shape)
        return timed(lambda: slots.generate(requests), 2)
    table = {"model": str(model), "batch_size": ROWS, "sequence_length": LENGTH, "steps": 50}
    table |= {"lora": {"rank": RANK, "alpha": 2.0 * RANK}, "optimizer": {"learning_rate": 5e-4}}
    trainer = sft.trainer_of(sft.Config.parse(table), loaded)
    weights = np.ones((ROWS, LENGTH), np.float32)
    weights[:, 0] = 0
    batch = {
        "tokens": tokens().astype(np.int32),
        "weights": weights / weights.sum(),
        "positions": np.tile(np.arange(LENGTH, dtype=np.int32), (ROWS, 1)),
        "segments": np.ones((ROWS, LENGTH), np.int32),
    }
    return timed(lambda: jax.block_until_ready(trainer.step(batch)), STEPS + 2)


def theirs(task: str, model: Path, scratch: Path) -> dict[str, float]:
    import peft
    import torch
    import transformers

    loaded = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
    if task == "answers":
        asked = json.loads((scratch / "prompts.json").read_text("utf-8"))
        ids = torch.tensor([one["ids"] for one in asked])
        lengths = {"max_new_tokens": RESPONSE, "min_new_tokens": RESPONSE, "do_sample": False}
        with torch.no_grad():
            return timed(lambda: loaded.generate(ids, torch.ones_like(ids), **lengths), 2)
    kind = {"task_type": "CAUSAL_LM", "target_modules": "all-linear"}
    adapted = peft.get_peft_model(loaded, peft.LoraConfig(r=RANK, lora_alpha=2 * RANK, **kind))
    trained = [one for one in adapted.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=5e-4, weight_decay=0.0)
    batch = torch.tensor(tokens())

    def step() -> None:
        adapted(input_ids=batch, labels=batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return timed(step, STEPS + 2)


SIDES = {OURS: ours, THEIRS: theirs}

if __name__ == "__main__":
    main()

"""Runs the first program of TRL's README, word for word, on stand-ins, for a few steps: in TRL's own environment, in an empty directory.

    python trl_measured.py STEPS OUT

Here is no hub. Transformers and datasets take a directory of that name for a repository, so two are made: `Qwen/Qwen2.5-0.5B`, of the
published shape with random weights, and `trl-lib/Capybara`, conversations long enough to fill TRL's default of 1,024 tokens, as the real
ones do (`benchmarks.newcomer` cites them). The program itself is taken out of the README that the installed wheel carries. A callback
writes down when steps end, and stops after STEPS of them. Where no accelerator is, it refuses (bfloat16 is TRL's default) and says to
"assign use_cpu"; then it is run again with that, and with fewer rows a batch.

OUT gets a JSON object: seconds of each step and of the optimizer in it, what a step and the whole training hold, the log, and the message
if it refused.
"""

import importlib.metadata
import json
import random
import re
import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers
import trl
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers.trainer import DEFAULT_CALLBACKS

MODEL, DATA = Path("Qwen/Qwen2.5-0.5B"), Path("trl-lib/Capybara")
EXAMPLES = 64
"""Conversations that are made; the whole training is counted with the published number."""
SHAPE = {
    "vocab_size": 151_936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
    "num_key_value_heads": 2, "max_position_embeddings": 32_768, "rope_theta": 1e6, "tie_word_embeddings": True, "dtype": "bfloat16",
}  # fmt: skip
"""config.json of Qwen/Qwen2.5-0.5B, as copies of it on the hub have it."""
TEMPLATE = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
ROWS = 2
"""Rows of a measured batch where no accelerator is; a whole one would take minutes, and all of its rows have the same length."""
MENDED = f"args=SFTConfig(use_cpu=True, per_device_train_batch_size={ROWS}), "
WORDS = [
    "reason",
    "answer",
    "because",
    "therefore",
    "number",
    "question",
    "model",
    "think",
    "first",
    "second",
    "language",
    "sum",
]


def tell(line: str) -> None:
    """Print now, as a line of its own, whatever a progress bar left: the benchmark notes when."""
    sys.stdout.write(f"\n{line}\n")
    sys.stdout.flush()


class Clock(transformers.TrainerCallback):
    """When each step ended and its loss."""

    def __init__(self, steps: int, out: Path) -> None:
        self.steps, self.out, self.begun, self.updating = steps, out, 0.0, 0.0
        self.seconds: list[float] = []
        self.optimizer: list[float] = []

    def on_step_begin(self, *_: object, **__: object) -> None:
        self.begun = time.perf_counter()

    def on_pre_optimizer_step(self, *_: object, **__: object) -> None:
        self.updating = time.perf_counter()

    def on_optimizer_step(self, *_: object, **__: object) -> None:
        self.optimizer.append(time.perf_counter() - self.updating)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: object) -> Any:
        self.seconds.append(time.perf_counter() - self.begun)
        tell(f"step {state.global_step} of {self.steps} measured: {self.seconds[-1]:.1f} s")
        control.should_training_stop = len(self.seconds) >= self.steps
        control.should_log = control.should_training_stop
        return control

    def on_train_end(self, args: Any, state: Any, control: Any, **_: object) -> None:
        control.should_save = False
        found = {
            "seconds": self.seconds, "optimizer": self.optimizer, "epochs": args.num_train_epochs, "logging_steps": args.logging_steps,
            "rows": args.train_batch_size * args.gradient_accumulation_steps, "rows_by_default": trl.SFTConfig.per_device_train_batch_size,
            "length": args.max_length, "log": state.log_history,
        }  # fmt: skip
        self.out.write_text(json.dumps(found), encoding="utf-8")


def program() -> str:
    """The first Python block below "### `SFTTrainer`" of the installed README."""
    readme = str(importlib.metadata.metadata("trl").get_payload())
    found = re.search(r"### `SFTTrainer`.*?```python\n(.*?)```", readme, re.DOTALL)
    if not found:
        raise SystemExit("TRL's README has no such program any more: read it and mend this file")
    return found[1]


def conversation(rng: random.Random) -> list[dict[str, str]]:
    """Three turns of 250 words on each side: more than 1,024 tokens of this tokenizer."""
    text = [" ".join(rng.choices(WORDS, k=250)) for _ in range(6)]
    return [
        {"role": role, "content": content}
        for role, content in zip(("user", "assistant") * 3, text, strict=True)
    ]


def stand_ins() -> None:
    """The model and the data set."""
    rng = random.Random(0)
    rows = [
        {"source": "stand-in", "messages": conversation(rng), "num_turns": 3}
        for _ in range(EXAMPLES)
    ]
    DATA.mkdir(parents=True)
    Dataset.from_list(rows).to_parquet(DATA / "train-00000-of-00001.parquet")
    learned = Tokenizer(models.BPE())
    learned.pre_tokenizer, learned.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    learned.train_from_iterator(
        WORDS * 9,
        trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet),
    )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=learned, eos_token=special[0], pad_token=special[0]
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(MODEL)
    torch.manual_seed(0)
    model = transformers.Qwen2ForCausalLM(
        transformers.Qwen2Config(**SHAPE, eos_token_id=0, bos_token_id=0)
    )
    model.to(torch.bfloat16).save_pretrained(MODEL)


if __name__ == "__main__":
    tell("imported")
    stand_ins()
    tell("ready")
    DEFAULT_CALLBACKS.append(
        Clock(int(sys.argv[1]), Path(sys.argv[2]))
    )  # a class or an object: Trainer takes either
    source = program()
    refused = ""
    try:
        exec(compile(source, "README.md of trl", "exec"), {"__name__": "__main__"})
    except ValueError as error:  # where no accelerator is: its own advice is taken
        refused = str(error)
        mended = source.replace("import SFTTrainer", "import SFTConfig, SFTTrainer").replace(
            "trainer = SFTTrainer(", f"trainer = SFTTrainer({MENDED}"
        )
        tell(f"refused: {refused}\nrunning, with what the message says:\n{mended}")
        exec(compile(mended, "README.md of trl, mended", "exec"), {"__name__": "__main__"})
    out = Path(sys.argv[2])
    out.write_text(
        json.dumps(json.loads(out.read_text(encoding="utf-8")) | {"refused": refused}),
        encoding="utf-8",
    )

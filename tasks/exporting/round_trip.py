"""Proves an export: the model that `transformers` reads from the exported directory is the trained
one, to the token.

`transformers` loads the exported directory and our reader the trained artifact, so a tensor that
was swapped on the way is seen. On fixed prompts (digits, code, emoji, one longer than the sliding
window) and on prompts from evaluations, these must agree:

- ids: the chat template renders a prompt, and a prompt with its answer, to the ids that training
  and sampling use; texts come back whole;
- logits: at every compared position within a tolerance that depends on the dtype in which both
  compute;
- greedy tokens: at each one of the answer of `transformers.generate` our model has the same
  likeliest token, except ties within the tolerance;
- stopping: `generate` ends at <end_of_turn> and at <eos> by itself, with the directory's generation
  config.

Both compute on this host's CPU, one after the other: one copy of the model is in memory.
"""

import gc
import importlib.util
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jinja2 import TemplateError

from infra.distribution import install
from schemas.base import InputError, StageFailed
from schemas.examples import Trace
from tasks.data.control_tokens import CONTROL_TOKENS
from tasks.data.tokens import Tokenizer, prompt_tokens, response_tokens
from tasks.devices.hosts import BATCH, TENSOR
from tasks.models.decoder import Gemma
from tasks.models.hf_directory import TOKENIZER
from tasks.models.loading import LoadedModel, load_model

Dtype = Literal["float32", "bfloat16"]
TOLERANCES: dict[str, float] = {"float32": 1e-4, "bfloat16": 0.1}
"""The largest difference of two logits, as a fraction of the largest (of 1, if all are smaller). In
bfloat16 `transformers` also rounds angles, scores and logits, which we hold in float32: random
models of two layers are 6 % apart."""

PROMPTS = (
    "What is 17 + 25?",
    "Write one line about the sea.",
    "0123456789, 3.14159 and 1,000,000: which is largest?",
    "Explain this:\n\ndef double(x):\n    return 2 * x  # naïve, 数学, 😀\n\n\tand  why two spaces"
    " stay",
)
ANSWER = Trace(reasoning="17 + 25 = 42,\nbecause 7 + 5 = 12 😀", answer="42").render()

NEW_TOKENS = 16
"""Greedy tokens per prompt."""

COMPARED = 64
"""Positions of a text, the last ones, whose logits are compared: all of a short text's; a
vocabulary of 262,144 takes 1 MB for each."""

LONGEST_WINDOW = 1024
"""A prompt is made longer than the sliding window if the window is no longer than this (Gemma 2's
is 4096)."""


@dataclass(frozen=True)
class Proof:
    """The comparisons, and how close they were.

    Attributes:
        max_logit_difference: the largest, relative to the largest logit (or 1) of its text; at most
            `tolerance`.
        greedy_ties: prompts whose greedy answers differ at two tokens of equal logit, within the
            tolerance.
    """

    dtype: str
    prompts: int
    positions: int
    max_logit_difference: float
    tolerance: float
    greedy_tokens: int
    greedy_ties: int
    transformers: str
    torch: str


@dataclass(frozen=True)
class _Said:
    """The answer of `transformers` to a prompt, and the logits (n, V) of the n positions before the
    last of prompt and answer."""

    prompt: str
    context: list[int]
    answer: list[int]
    logits: np.ndarray


def absent() -> list[str]:
    """The packages that a proof needs and that are not installed."""
    return [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]


def require_transformers() -> None:
    """Raise InputError, saying what to install, if transformers or torch is absent."""
    if missing := absent():
        raise InputError(
            f"an export is verified in transformers, which needs {' and '.join(missing)}:"
            f" {install('export')}."
        )


def prove(
    exported: Path, source: Path, prompts: Sequence[str], dtype: Dtype, say: Callable[[str], None]
) -> Proof:
    """Compare the exported directory in `transformers` with the trained artifact `source` in our
    model.

    Args:
        prompts: more prompts, e.g. of evaluations; those that spell a control token are left out:
            our token path takes it for text, and `transformers` for the token.
        dtype: in which both compute, whatever dtype stores the weights. float32 takes 4 bytes per
            weight, and is stricter.
        say: called with each step.

    Raises:
        StageFailed: they differ; the message says where.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # else torch's threads wait by spinning
    import torch
    import transformers
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()  # it warns of keys that it derived; what is wrong is compared
    tokenizer = Tokenizer.from_file(source / TOKENIZER)
    asked = list(PROMPTS)
    for prompt in prompts:
        if prompt.strip() and not any(token in prompt for token in CONTROL_TOKENS):
            asked.append(prompt)
    cpu = Mesh(np.array(jax.devices("cpu")[:1]).reshape(1, 1), (BATCH, TENSOR))
    theirs: Any = transformers.AutoTokenizer.from_pretrained(exported, local_files_only=True)
    config = transformers.AutoConfig.from_pretrained(exported, local_files_only=True)
    window = int(config.sliding_window)
    if window <= LONGEST_WINDOW:
        asked.append(_longer_than(tokenizer, window))
    for prompt in asked:
        _same_ids(theirs, tokenizer, prompt)
    say(f"transformers answers {len(asked)} prompts in {dtype}")
    said = _ask_transformers(exported, tokenizer, asked, dtype)
    gc.collect()
    say(f"our model answers them in {dtype}")
    loaded = _in_dtype(load_model(source, cpu), dtype)
    worst, ties = 0.0, 0
    for one in said:
        logits = _our_logits(loaded, [*one.context, *one.answer], len(one.logits))
        scale = max(1.0, float(np.abs(logits).max()))
        difference = float(np.abs(logits - one.logits).max()) / scale
        if not difference <= TOLERANCES[dtype]:  # a NaN is no agreement
            _fail(
                f"its logits differ by {difference:.2g} of the largest in {_shown(one.prompt)},"
                f" tolerance {TOLERANCES[dtype]:g}"
            )
        worst = max(worst, difference)
        ties += _greedy_tie(one, logits, 2 * TOLERANCES[dtype] * scale)
        text = tokenizer.decode(one.answer)
        broken = "\ufffd" in text  # bytes that are shown otherwise
        if not broken and theirs.decode(one.answer, skip_special_tokens=True) != text:
            _fail(
                f"its tokenizer decodes the answer to {_shown(one.prompt)} to other text than"
                f" {_shown(text)}"
            )
    return Proof(
        dtype=dtype,
        prompts=len(said),
        positions=sum(len(one.logits) for one in said),
        max_logit_difference=worst,
        tolerance=TOLERANCES[dtype],
        greedy_tokens=sum(len(one.answer) for one in said),
        greedy_ties=ties,
        transformers=transformers.__version__,
        torch=torch.__version__,
    )


def _fail(what: str) -> NoReturn:
    raise StageFailed(
        f"the export is not the model that was trained: in transformers {what}. Nothing was"
        " exported."
    )


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


# Tokens


def _same_ids(theirs: Any, tokenizer: Tokenizer, prompt: str) -> None:
    """Check that a prompt, and a prompt with its answer as training renders it, have the same ids
    in both, and decode to the same text."""
    chat = [{"role": "user", "content": prompt}]
    context = prompt_tokens(tokenizer, prompt)
    try:
        rendered = theirs.apply_chat_template(
            chat, add_generation_prompt=True, tokenize=True, return_dict=False
        )
        taught = [*chat, {"role": "assistant", "content": ANSWER}]
        whole = theirs.apply_chat_template(taught, tokenize=True, return_dict=False)
        text = theirs.apply_chat_template(taught, tokenize=False)
    # a template is a program
    except (TemplateError, ValueError, TypeError, LookupError, AttributeError) as error:
        _fail(f"its chat template fails: {type(error).__name__}: {error}")
    if rendered != context:
        _fail(
            f"its chat template renders {_shown(prompt)} to other ids than training does:"
            f" {_parting(rendered, context)}"
        )
    supervised = [*context, *response_tokens(tokenizer, ANSWER), *tokenizer.encode("\n")]
    if whole != supervised:
        _fail(
            f"its chat template renders an answer to {_shown(prompt)} to other ids than training"
            f" does: {_parting(whole, supervised)}"
        )
    if theirs.decode(whole, skip_special_tokens=False) != text:
        _fail(f"its tokenizer decodes what it encoded of {_shown(prompt)} to other text")


def _place(theirs: list[int], ours: list[int]) -> int:
    """The first place where two lists differ, at most the length of the shorter one."""
    pairs = enumerate(zip(theirs, ours, strict=False))
    shorter = min(len(theirs), len(ours))
    return next((index for index, (one, other) in pairs if one != other), shorter)


def _parting(theirs: list[int], ours: list[int]) -> str:
    place = _place(theirs, ours)
    return f"from token {place}, {theirs[place : place + 5]} instead of {ours[place : place + 5]}"


def _longer_than(tokenizer: Tokenizer, window: int) -> str:
    """A prompt that takes more tokens than the window."""
    words = ["Which of these numbers comes twice?"]
    while len(prompt_tokens(tokenizer, " ".join(words))) <= window + NEW_TOKENS:
        words += [str(len(words) * 37 % 1000) for _ in range(8)]
    return " ".join(words)


# Theirs


def _ask_transformers(
    exported: Path, tokenizer: Tokenizer, prompts: Sequence[str], dtype: Dtype
) -> list[_Said]:
    import torch
    from transformers import AutoModelForCausalLM

    loaded: Any = AutoModelForCausalLM.from_pretrained(
        exported,
        dtype=getattr(torch, dtype),
        attn_implementation="eager",
        local_files_only=True,
        output_loading_info=True,
        use_safetensors=True,
    )
    model, problems = loaded
    wrong = {what: sorted(names) for what, names in problems.items() if names}
    if wrong:
        _fail(f"its weights do not fit: {wrong}")
    stops = list(tokenizer.stop_ids)
    expected = {
        "eos_token_id": stops,
        "bos_token_id": tokenizer.bos_id,
        "pad_token_id": tokenizer.pad_id,
    }
    found = {name: getattr(model.generation_config, name) for name in expected}
    if found != expected:
        _fail(f"its generation config has {found} instead of {expected}")
    with torch.no_grad():
        for stop in stops:
            _stops_at(model, prompt_tokens(tokenizer, prompts[0]), stop)
        return [_answer(model, prompt, prompt_tokens(tokenizer, prompt)) for prompt in prompts]


def _answer(model: Any, prompt: str, context: list[int]) -> _Said:
    import torch

    tokens = torch.tensor([context])
    out = model.generate(
        tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=NEW_TOKENS, do_sample=False
    )
    count = min(COMPARED, out.shape[1])
    logits = model(out, logits_to_keep=count).logits[0, : count - 1]
    return _Said(prompt, context, out[0, len(context) :].tolist(), logits.float().numpy())


def _stops_at(model: Any, context: list[int], stop: int) -> None:
    """Check that `generate`, with the directory's own settings, ends where the model says
    `stop`."""
    import torch

    tokens, every = torch.tensor([context]), list(range(model.config.vocab_size))
    out = model.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        max_new_tokens=8,
        do_sample=False,
        # at its third step it may say nothing else
        prefix_allowed_tokens_fn=lambda _, so_far: (
            [stop] if len(so_far) == len(context) + 2 else every
        ),
    )
    said = out[0, len(context) :].tolist()
    if len(said) > 3:
        _fail(f"generate() does not stop at token {stop}: it says {said}")


# Ours


def _in_dtype(loaded: LoadedModel, dtype: Dtype) -> LoadedModel:
    """The model computing in another dtype."""
    config = replace(loaded.config, dtype=dtype)
    named = nnx.to_flat_state(nnx.state(loaded.model, nnx.Param))
    weights = {
        ".".join(map(str, path)): variable.get_value().astype(dtype) for path, variable in named
    }
    return replace(loaded, config=config, model=Gemma(config, weights))


def _our_logits(loaded: LoadedModel, tokens: list[int], count: int) -> np.ndarray:
    """(count, V) logits of the `count` positions before the last. Lengths are padded to powers of
    two, so that few programs compile."""
    length = len(tokens)
    row = np.zeros((1, 1 << (length - 1).bit_length()), np.int32)
    row[0, :length] = tokens
    with jax.set_mesh(loaded.mesh):
        return np.asarray(_logits(loaded.model, jnp.asarray(row), jnp.int32(length)))[0, -count:]


@nnx.jit
def _logits(model: Gemma, row: jax.Array, length: jax.Array) -> jax.Array:
    """(1, COMPARED - 1, V) of the positions before the last of `length` tokens; those before the
    first are of no use."""
    index = jnp.arange(row.shape[1])[None]
    hidden, _ = model(row, index, (index < length).astype(jnp.int32))
    places = jnp.maximum(length - 1 - jnp.arange(COMPARED - 1, 0, -1), 0)
    return model.unembed(hidden[:, places])


def _greedy_tie(said: _Said, logits: np.ndarray, tie: float) -> bool:
    """Whether our greedy answer differs at a tie. Raises StageFailed for any other difference."""
    ours = logits[-len(said.answer) :].argmax(-1).tolist()
    if said.answer == ours:
        return False
    place = _place(said.answer, ours)
    row = logits[place - len(said.answer)]
    if row.max() - row[said.answer[place]] <= tie:
        return True
    _fail(f"the greedy answer to {_shown(said.prompt)} is another: {_parting(said.answer, ours)}")

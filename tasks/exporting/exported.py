"""Exports a trained stage as a directory in Hugging Face's format with a model card, and proves
that it is the trained model."""

import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from schemas.base import InputError

if TYPE_CHECKING:
    from tasks.exporting.model_card import Card
    from tasks.exporting.round_trip import Proof


PROMPTS_OF_EVALUATION = 3
"""The number of prompts of each evaluation that the proof asks beside its own."""


def export_model(
    source: Path,
    out: Path,
    card: "Card",
    prompts: Sequence[str],
    dtype: Literal["float32", "bfloat16"] | None,
    say: Callable[[str], None],
) -> "Proof | None":
    """Write a trained stage's artifact into the empty directory `out` as an export, and prove it.

    Args:
        source: the artifact's directory.
        card: the content of README.md beside the proof.
        prompts: the proof asks these beside its own.
        dtype: in which the proof computes; None, for a machine without torch: there is none, and
            the card says so.
        say: called with each step.

    Raises:
        StageFailed: `transformers` finds another model in `out` than was trained; delete the
            directory.
        InputError: transformers or torch is not installed, or the disk is too small.
    """
    from tasks.data.data_files import files_below
    from tasks.data.tokens import Tokenizer
    from tasks.exporting.model_card import write_card
    from tasks.exporting.round_trip import prove, require_transformers
    from tasks.models.hf_config import read_config
    from tasks.models.hf_directory import TOKENIZER
    from tasks.models.hf_tokenizer import write_tokenizer
    from tasks.models.model_source import needed

    if dtype is not None:
        require_transformers()
    from transformers import __version__

    files = [source / name for name in needed(files_below(source))]
    size = require_room(out, files)
    say(f"copying {len(files)} files, {size / 1e6:,.0f} MB")
    for path in files:
        shutil.copyfile(path, out / path.name)
    # as `save_pretrained` does: without it `transformers` warns of a wrong tokenizer
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    config["transformers_version"] = __version__
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    write_tokenizer(out, Tokenizer.from_file(source / TOKENIZER))
    proof = None if dtype is None else prove(out, source, prompts, dtype, say)
    write_card(out, card, proof, read_config(source)[0].family)
    if proof is not None:
        told = json.dumps(asdict(proof), indent=2)
        (out / "verification.json").write_text(f"{told}\n", encoding="utf-8")
    return proof


def require_room(out: Path, files: Iterable[Path]) -> int:
    """The bytes of a model's files. Raises InputError when the disk of `out` is too small for
    them."""
    size, free = sum(path.stat().st_size for path in files), shutil.disk_usage(out).free
    if size > free:
        raise InputError(
            f"{out.parent} has {free / 1e9:.1f} GB free; the model takes {size / 1e9:.1f} GB."
            " Choose a place on another disk."
        )
    return size

"""Export: a trained stage as a directory in Hugging Face's format that is proven to be the model that was trained.

A trained stage's artifact has its adapters merged and is in that format already; what is added is what `transformers` wants of a tokenizer
with Gemma's chat template, and a model card. The result counts only if `tasks.exporting.round_trip` finds the same model in `transformers`.
"""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from schemas.base import InputError, StrictModel
from schemas.evaluation import EvalItem
from tasks.contract.job import Job, read_jsonl
from tasks.contract.kind import Input, Kind, Product
from tasks.contract.plugins import evaluation_of

if TYPE_CHECKING:
    from tasks.exporting.model_card import Card
    from tasks.exporting.round_trip import Proof

FILES = ("config.json", "generation_config.json", "model*.safetensors", "model.safetensors.index.json", "tokenizer.model")
"""Patterns of what a trained stage's artifact has of the format; `COMPANIONS` of its base model come beside."""

PROMPTS_OF_EVALUATION = 3
"""How many prompts of each evaluation the proof asks beside its own."""


class Config(StrictModel):
    """`verify_dtype`: in which the proof computes. float32 takes 4 bytes of memory per weight and tells the most."""

    verify_dtype: Literal["float32", "bfloat16"] = "float32"


def at_home(config: Mapping[str, Any], inputs: Mapping[str, Any]) -> bool:
    """torch and transformers are not sent to machines in the cloud, and nothing here needs one."""
    return True


def run(job: Job[Config]) -> dict[str, Any]:
    """Export the policy; the metrics are the proof's. Raises StageFailed when the export is not the model, InputError without torch."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    from tasks.exporting.model_card import Card, Evaluation
    from tasks.models.hf_config import read_config

    base = read_config(job.inputs["policy"])[1]
    evaluations, prompts = [], []
    for name, kind in (("reasoning", "reasoning_eval"), ("safety", "safety_eval")):
        if name in job.inputs:
            items = read_jsonl(job.inputs[name] / "items.jsonl", EvalItem)
            evaluations.append(Evaluation("this model", kind, evaluation_of(kind).metrics(items)))
            prompts += [item.prompt for item in items[:PROMPTS_OF_EVALUATION]]
    card = Card(f"{base}, post-trained", base, evaluations)
    return export_model(job.inputs["policy"], job.out, card, prompts, job.config.verify_dtype, job.log.info).metrics()


def export_model(
    source: Path, out: Path, card: "Card", prompts: Sequence[str], dtype: Literal["float32", "bfloat16"], say: Callable[[str], None]
) -> "Proof":
    """Write a trained stage's artifact into the empty directory `out` as an export, and prove it.

    Args:
        source: the artifact's directory.
        card: what README.md tells beside the proof.
        prompts: the proof asks these beside its own.
        dtype: in which the proof computes.
        say: told what is being done.

    Raises:
        StageFailed: `transformers` finds another model in `out` than was trained. What lies there is to be thrown away.
        InputError: transformers or torch is not installed, or the disk is too small.
    """
    from tasks.data.tokens import Tokenizer
    from tasks.exporting.model_card import write_card
    from tasks.exporting.round_trip import prove, require_transformers
    from tasks.models.hf_config import read_config
    from tasks.models.hf_tokenizer import write_tokenizer
    from tasks.models.source import COMPANIONS, TOKENIZER

    require_transformers()
    files = sorted({path for pattern in (*FILES, *COMPANIONS) for path in source.glob(pattern)})
    size, free = sum(path.stat().st_size for path in files), shutil.disk_usage(out).free
    if size > free:
        raise InputError(f"{out.parent} has {free / 1e9:.1f} GB free; the model takes {size / 1e9:.1f} GB. Choose a place on another disk.")
    say(f"copying {len(files)} files, {size / 1e9:.2f} GB")
    for path in files:
        shutil.copyfile(path, out / path.name)
    write_tokenizer(out, Tokenizer.from_file(source / TOKENIZER))
    proof = prove(out, source, prompts, dtype, say)
    write_card(out, card, proof, read_config(source)[0].family)
    (out / "verification.json").write_text(json.dumps(proof.metrics(), indent=2) + "\n", encoding="utf-8")
    return proof


KIND = Kind(
    version=2,
    config=Config,
    inputs={
        "policy": Input(Product.MODEL),
        "reasoning": Input(Product.ANSWERS, required=False),
        "safety": Input(Product.ANSWERS, required=False),
    },
    produces=Product.EXPORT,
    run=run,
    small=lambda config: config,
    at_home=at_home,
)

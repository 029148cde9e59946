"""Export: a trained stage as a directory in Hugging Face's format, proven to be the trained model.

A trained stage's artifact is in that format already, with its adapters merged. Export adds what
`transformers` needs of a tokenizer with Gemma's chat template, and a model card, and fails unless
`tasks.exporting.round_trip` finds the same model in `transformers`.
"""

from dataclasses import asdict
from typing import Any, Literal

from schemas.base import StrictModel
from schemas.evaluation import EvalItem
from tasks.contract.job import Job, read_jsonl
from tasks.contract.kind import Input, Kind, Product
from tasks.contract.kinds import evaluation_of
from tasks.exporting.exported import PROMPTS_OF_EVALUATION, export_model


class Config(StrictModel):
    """`verify_dtype`: the type in which the proof computes. float32 takes 4 bytes of memory per
    weight and is the most exact."""

    verify_dtype: Literal["float32", "bfloat16"] = "float32"


def run(job: Job[Config]) -> dict[str, Any]:
    """Export the policy; the metrics are the proof's. Raises StageFailed when the export differs
    from the model, InputError without torch."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    from tasks.exporting.model_card import Card, Evaluation, format_taught
    from tasks.models.hf_config import read_config

    base = read_config(job.inputs["policy"])[1]
    evaluations, prompts, asked = [], [], list[EvalItem]()
    for name, kind in (("reasoning", "reasoning_eval"), ("safety", "safety_eval")):
        if name in job.inputs:
            items = read_jsonl(job.inputs[name] / "items.jsonl", EvalItem)
            evaluations.append(Evaluation("this model", kind, evaluation_of(kind).metrics(items)))
            prompts += [item.prompt for item in items[:PROMPTS_OF_EVALUATION]]
            asked += items
    card = Card(f"{base}, post-trained", base, evaluations, channels=format_taught(asked))
    proof = export_model(
        job.inputs["policy"], job.out, card, prompts, job.config.verify_dtype, job.log.info
    )
    assert proof is not None
    return asdict(proof)


KIND = Kind(
    version=3,
    config=Config,
    inputs={
        "policy": Input(Product.MODEL),
        "reasoning": Input(Product.ANSWERS, required=False),
        "safety": Input(Product.ANSWERS, required=False),
    },
    produces=Product.EXPORT,
    run=run,
    small=lambda config, sizes: config,
    # torch and transformers are not sent to cloud machines, and nothing here needs one
    at_home=lambda config, inputs: True,
)

"""What went into each stage of a rehearsal, what came out, and which rows fell out and why."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from flows.report.sections.data import causes_of
from flows.runs.results import RunResults, StageOutput
from flows.runs.wording import headline
from schemas.base import clip
from schemas.examples import Example
from tasks.cleaning.rules import SPLITS
from tasks.contract.kind import Product
from tasks.contract.kinds import stage_kind

_EXAMPLES = 2
"""Rows that are shown of those that fell out for one cause."""

_FAMILIES, _CHARACTERS = 12, 1200
"""Families of which a taught example is shown, and characters of its prompt and its response."""


def stage_json(run: RunResults, stage: StageOutput) -> dict[str, Any]:
    """A stage: `given` and `left` in words, `domains` (group -> counts by name), `dropped` (cause,
    rows, examples), and of taught examples the first of each family."""
    record = stage.record
    return {
        "name": stage.name,
        "kind": stage.spec.kind,
        "status": stage.status,
        "seconds": round(record.seconds, 1) if record else 0.0,
        "error": record.error if record else None,
        "given": "; ".join(_given(run, stage)),
        "left": _left(stage),
        "domains": _domains(stage),
        "shown": _shown(stage),
        "dropped": [
            {"cause": cause, "rows": rows, "examples": examples}
            for cause, rows, examples in causes_of(stage, _EXAMPLES)
        ],
    }


def _given(run: RunResults, stage: StageOutput) -> Iterator[str]:
    for slot, source in stage.spec.inputs.items():
        metrics, product = run.stages[source].metrics, stage_kind(run.stages[source].spec.kind)
        if product.produces is Product.ROWS:
            yield f"{source}: {_rows(metrics)}"
        elif product.produces is Product.EXAMPLES:
            yield f"{source}: {metrics.get('rows', 0)} examples"
        else:
            yield f"{slot} of {source}"
    if not stage.spec.inputs and "sources" in stage.metrics:
        yield f"{sum(one['read'] for one in stage.metrics['sources'])} rows read"


def _rows(metrics: dict[str, Any]) -> str:
    rows = metrics.get("rows", {})
    counts = ", ".join(f"{rows.get(split, 0)} {split}" for split in SPLITS)
    return f"{counts} rows, {metrics.get('prompts', 0)} prompts, {metrics.get('pairs', 0)} pairs"


def _left(stage: StageOutput) -> str:
    if stage.manifest is None:
        return "nothing"
    metrics, produces = stage.metrics, stage_kind(stage.spec.kind).produces
    if produces is Product.ROWS:
        return _rows(metrics)
    if produces is Product.EXAMPLES:
        pairs, unsolved = (sum(metrics[name].values()) for name in ("pairs", "unsolved"))
        return f"{metrics['rows']} examples, {pairs} pairs, {unsolved} unsolved prompts"
    if produces is Product.ANSWERS:
        checked = metrics.get("n_verifiable")
        verified = "" if checked is None else f", {checked} of them verified"
        return f"{metrics['n']} answers{verified}: {headline(metrics)}"
    counted = ("examples", "prompts", "prompts_too_long", "rubrics", "pairs")
    said = [
        f"{name.replace('_', ' ')} {metrics[name]}"
        for name in counted
        if isinstance(metrics.get(name), int)
    ]
    if isinstance(metrics.get("dropped"), dict):
        said.append(f"dropped {sum(metrics['dropped'].values())}")
    words = ", ".join([*said, headline(metrics)]).strip(", ").split(", ")
    return ", ".join(dict.fromkeys(words))


def _shown(stage: StageOutput) -> list[dict[str, str]]:
    """Of a stage that teaches: prompt and response of the first example of each family."""
    if stage_kind(stage.spec.kind).produces is not Product.EXAMPLES:
        return []
    first: dict[str, Example] = {}
    for one in stage.read("examples.jsonl", Example):
        first.setdefault(one.family or one.source, one)
    return [
        {
            "family": family,
            "prompt": clip(one.prompt, _CHARACTERS),
            "response": clip(one.response(), _CHARACTERS),
        }
        for family, one in islice(first.items(), _FAMILIES)
    ]


def _domains(stage: StageOutput) -> dict[str, dict[str, int]]:
    """Group -> what there is of it: of a distill stage its examples, of a rebalance stage its
    splits, of an evaluation its prompts."""
    found: dict[str, dict[str, int]] = {}
    for table in ("domains", "groundings", "grounding"):
        for group, cell in (stage.metrics.get(table) or {}).items():
            if isinstance(cell, int):
                found[group] = {"examples": cell}
            elif "n" in cell:
                found[group] = {"prompts": cell["n"]}
            elif "train" in cell:
                found[group] = {split: cell[split]["achieved"] for split in SPLITS}
    return found

"""Runs for the gate to judge: synthetic ones, and what may become of their evaluations."""

from itertools import count
from pathlib import Path
from typing import Any

from flows.promotion.gate import Gate
from flows.promotion.nights import Decision, NewRows
from infra.store.store import Store
from schemas.artifact import ArtifactRef, Manifest
from schemas.evaluation import EvalItem
from schemas.examples import Domain
from schemas.job import JobRequest
from schemas.recipe import GateSpec
from schemas.reports import RunRecord
from tasks.contract.job import read_jsonl, write_jsonl
from tests.flows.runs.synthetic_run import SKILL, manifest_of, remade, write_run

PER_DOMAIN = 70
"""Of so many the default gate excludes a loss in the first nights, if nothing changes. Safety is
asked 60 prompts, which do that where some are won."""
NUMBERS = count()
"""Names of what is made, never the same."""


def make(root: Path, name: str, skill: float = 0.7, **options: Any) -> tuple[Store, RunRecord]:
    """A finished run whose last model, of its own bytes, answers this fraction of all prompts
    rightly."""
    return write_run(
        root,
        name,
        skill={**SKILL, "grpo": skill},
        text=name,
        **{"per_domain": PER_DOMAIN, **options},
    )


def decided(run_id: str, evaluations: tuple[ArtifactRef, ...] = ()) -> Decision:
    """A night that kept what it found, by these evaluations."""
    fresh = NewRows(rows=60, new=60, changed=0, gone=0, since=None)
    verdict = Gate(
        promote=False, why="no win", candidate=run_id, champion=None, evaluations=evaluations
    )
    said = {"why": "no win", "promoted": False, "champion": None, "decided": 1.0}
    return Decision(run_id=run_id, fresh=fresh, gate=verdict, **said)


def items(store: Store, record: RunRecord, stage: str) -> list[EvalItem]:
    return read_jsonl(store.local_dir(manifest_of(store, record, stage)) / "items.jsonl", EvalItem)


def grade(store: Store, record: RunRecord, domain: Domain, right: range) -> RunRecord:
    """The run, with right answers to exactly these of a domain's prompts."""
    answers = items(store, record, "grpo_eval")
    places = [index for index, item in enumerate(answers) if item.domain == domain]
    for number, place in enumerate(places):
        answers[place] = answers[place].model_copy(update={"exact": number in right})
    return remade(store, record, "grpo_eval", {"items.jsonl": answers})


def with_gate(record: RunRecord, **rules: Any) -> RunRecord:
    return record.model_copy(
        update={"recipe": record.recipe.model_copy(update={"gate": GateSpec(**rules)})}
    )


def unsafe(record: RunRecord) -> RunRecord:
    """The run without its safety evaluation."""
    return record.model_copy(
        update={"stages": tuple(stage for stage in record.stages if stage.kind != "safety_eval")}
    )


def suited(store: Store, record: RunRecord, right: bool) -> RunRecord:
    """The run, with a suite of 40 prompts in its last evaluation beside the held-out prompts."""
    known = items(store, record, "grpo_eval")
    suite = [
        item.model_copy(update={"id": f"gsm8k/{n}", "suite": "gsm8k", "exact": right})
        for n, item in enumerate(known[:40])
    ]
    return remade(store, record, "grpo_eval", {"items.jsonl": known + suite})


def replay(store: Store, spec: JobRequest, asked: list[EvalItem], right: bool) -> Manifest:
    """What the job of a rematch leaves: answers to the candidate's prompts, all right or all
    wrong."""
    answers = [
        item.model_copy(update={"exact": right, "safe": right, "format": True}) for item in asked
    ]
    out = store.path(f"out-replay-{next(NUMBERS)}")
    out.mkdir()
    write_jsonl(out / "items.jsonl", answers)
    asked_for = spec.model_dump(include={"kind", "key", "config", "inputs"})
    return store.commit(Manifest(**asked_for, version=1, attempt="1", files=()), out)

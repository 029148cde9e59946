"""The audit of rewards before each GRPO stage's first update (`tasks.rehearsal.reward_audit`)."""

from collections.abc import Iterator
from typing import Any

from flows.report.blocks import Block, Cell, Column, Heading, Paragraph, Sentences, Table, card
from flows.report.section import Section
from flows.runs.results import RunResults
from flows.runs.wording import Tone, amount, figure

_INTRODUCTION = (
    "Reference traces and responses that take no understanding, scored by the stage's own rewards"
    " before its first update. GRPO moves a policy towards what earns most."
)
_NOTE = "Mean values; the lead is the mean difference of the totals with its 95% interval."


def blocks(run: RunResults) -> list[Block]:
    """A table per audited stage, at the last audited update, and the findings that were allowed."""
    found = [block for named in run.audits.items() for block in audit_blocks(*named)]
    return [_INTRODUCTION, *found, Paragraph(_NOTE, "note")] if found else []


def audit_blocks(stage: str, found: dict[str, Any]) -> Iterator[Block]:
    """The findings of an audit (`reward_audit.json`)."""
    update, responses = list(found["updates"].items())[-1]
    names = [name for name in next(iter(responses.values())) if name != "lead"]
    rows = [
        (response, *(figure(values[name]) for name in names), _lead(values["lead"]))
        for response, values in responses.items()
    ]
    yield Heading(f"{stage}, update {update}, {amount(found['prompts'], 'prompt')}", 3)
    yield card(Table((Column("response", "text"), *names, "reference leads by"), rows))
    yield Sentences(
        [
            ("bad", f"{one['text']}." + (f" Allowed: {one['allowed']}" if one["allowed"] else ""))
            for one in found["findings"]
        ]
    )


def _lead(lead: dict[str, float] | None) -> Cell | str:
    if lead is None:
        return ""
    tone: Tone = "good" if lead["low"] > 0 else "bad" if lead["high"] < 0 else "flat"
    mean, low, high = (figure(float(lead[name])) for name in ("mean", "low", "high"))
    return Cell(f"{mean} [{low}, {high}]", tone)


SECTION = Section(title="Rewards", heading="What the rewards pay for", order=45, blocks=blocks)

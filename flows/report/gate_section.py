"""The report's gate part: what became of the recipe's `[gate]` when its model is held against its
own base."""

from dataclasses import dataclass

from flows.promotion.gate import COLUMNS, gate, rows
from flows.runs.results import RunResults
from schemas.base import InputError


@dataclass(frozen=True)
class GateVerdict:
    """Whether the gate is passed, and why (not); a row of `COLUMNS` for each of its rules."""

    passed: bool
    why: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


def gate_verdict(run: RunResults) -> GateVerdict | None:
    """None where the recipe has no gate, or the run did not succeed. Against a champion `lyceum
    gate` holds it, not a page of one run."""
    record = run.record
    if record.recipe.gate is None or record.status != "succeeded":
        return None
    try:
        found = gate(next(iter(run.stages.values())).store, record, champion=None)
    # a rule about nothing that the run measures: the rest of the page is as good as ever
    except InputError as error:
        return GateVerdict(passed=False, why=str(error), columns=COLUMNS, rows=[])
    return GateVerdict(found.promote, found.why, COLUMNS, rows(found))

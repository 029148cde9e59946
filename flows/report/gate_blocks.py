"""The gate's answer as blocks: for the page of one run, for `lyceum gate`, and for a night."""

from collections.abc import Iterator

from flows.promotion.gate import Gate, gate
from flows.promotion.looks import Finding, Side
from flows.report.blocks import Block, Details, Paragraph, Span, Table, Text, code
from flows.report.rates import unit_label
from flows.runs.next_commands import copied
from flows.runs.results import RunResults
from flows.runs.wording import bounds, gap, rate_text
from schemas.base import InputError, StageFailed

_COLUMNS = ("rule", "held out", "before", "after", "difference (points)", "prompts", "detectable")
"""`detectable`: the smallest difference, in points, that so many prompts find."""


def gate_table(verdict: Gate, title: str = "") -> Iterator[Block]:
    """A row for each rule, and whose rules they are."""
    every = verdict.rules is None or verdict.rules.wins == "all"
    rows = [_row(one, "must win" if every else "any win") for one in verdict.findings]
    if rows:
        yield Table((*_COLUMNS, "p", ""), rows, title)
    if verdict.default:
        yield "The recipe has no [gate]: these are the default rules."
    if verdict.night:
        yield f"{verdict.night.text.capitalize()}."


def _row(one: Finding, win: str) -> tuple[Text, ...]:
    change, unit = one.difference, 1 if one.quantity else 100
    said = "–"
    if change:
        said = f"{gap(change.value, one.quantity)} {bounds(change.interval, True, one.quantity)}"
    return (
        win if one.margin is None else f"no loss of {unit * one.margin:g}",
        unit_label(one.label, one.quantity),
        _side(one.before, one.quantity),
        _side(one.after, one.quantity),
        said,
        f"{one.n:,}",
        f"{100 * one.detectable:.1f}" if one.detectable else "–",
        "" if one.p is None else f"{one.p:.2g}",
        one.outcome + (f": {one.needed:,} would tell" if one.needed else ""),
    )


def _side(side: Side | None, quantity: bool) -> str:
    return "–" if side is None else rate_text(side.value, side.interval, quantity)


def gate_blocks(run: RunResults) -> Iterator[Block]:
    """The answer of the recipe's `[gate]` when its model is compared with its own base; nothing
    where the recipe has none, or the run did not succeed. Against a champion `lyceum gate` holds
    it, not a page of one run."""
    record = run.record
    if record.recipe.gate is None or record.status != "succeeded":
        return
    try:
        found = gate(next(iter(run.stages.values())).store, record, None, first=True)
        passed, why, table = found.promote, found.why, list(gate_table(found))
    # a rule names a metric that the run does not measure, or an evaluation is gone or damaged: the
    # rest of the page is valid
    except (InputError, StageFailed) as error:
        passed, why, table = False, str(error), []
    said = Span(f"Gate {'passed' if passed else 'not passed'}", "span", "good" if passed else "bad")
    command = code(copied("gate", record.run_id, store=record.store))
    note = Paragraph(("The rules are the recipe's. Against the champion: ", command, "."), "note")
    yield Details((said, f" against its base: {why}"), [*table, note])

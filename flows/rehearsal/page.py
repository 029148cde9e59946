"""The page of a rehearsal: findings first, then each stage with what went in and out, what rewards
pay for, and who answered in place of teachers and judges."""

from collections.abc import Iterator, Mapping
from typing import Any

from flows.report import blocks as ui
from flows.report.html import page, tag, write_page
from flows.report.sections.rewards import audit_blocks
from flows.runs.record import run_folder
from flows.runs.wording import Tone, amount
from infra.store.store import Store
from schemas.base import clip

_NOTE = (
    "The recipe's own stages, formats, checks, rewards, prompts and suites on the first rows of its"
    " own data. Sizes and the model are small, so rates and losses say nothing of the recipe."
)
_WIDE = ui.Column("", "wrap")


def write_rehearsal(store: Store, told: Mapping[str, Any]) -> str:
    """Write `runs/<run_id>/rehearsal.html` and return where it lies."""
    title, run_id = f"Rehearsal of {told['recipe']}", told["run_id"]
    own: list[ui.Block] = []
    if told["report"]:  # beside this page
        link = tag("a", "the report of its run", href=told["report"].rpartition("/")[2])
        own = [ui.Raw(tag("p", "See also ", link, "."))]
    text = page(f"{title} ({run_id})", [ui.Heading(title, 1)], [*page_blocks(told)], own)
    return write_page(store, f"{run_folder(run_id)}/rehearsal.html", text)


def page_blocks(told: Mapping[str, Any]) -> Iterator[ui.Block]:
    """All of it, for a page and for Prefect."""
    yield from verdict_blocks(told)
    yield ui.Paragraph(_NOTE, "note")
    yield ui.Heading("Stages")
    for stage in told["stages"]:
        yield from _stage(stage)
    if told["audits"]:
        yield ui.Heading("What the rewards pay for")
        for name, audit in told["audits"].items():
            yield from audit_blocks(name, audit)
    if told["endpoints"]:
        yield ui.Heading("Who answered")
        yield _endpoints(told)


def verdict_blocks(told: Mapping[str, Any]) -> Iterator[ui.Block]:
    """What was found, what is allowed, and what to know."""
    found = [one for one in told["findings"] if one["allowed"] is None]
    failed = [one["name"] for one in told["stages"] if one["status"] == "failed"]
    passed = told["status"] == "succeeded" and not found
    said = "passed" if passed else amount(len(found), "finding")
    if told["status"] == "cancelled":
        said += "; stopped before its end"
    if failed:
        said += f"; failed: {', '.join(failed)}"
    about = f" on {told['model']} with the first {told['rows']} rows of each data set"
    yield ui.Paragraph((ui.strong(said, "good" if passed else "bad"), about), "lead")
    sentences: list[tuple[Tone, ui.Text]] = []
    for one in told["findings"]:
        allowed = one["allowed"]
        more = "" if allowed is None else f" Allowed: {allowed}"
        tone: Tone = "bad" if allowed is None else "flat"
        sentences.append((tone, (ui.strong(one["name"]), f": {one['text']}.{more}")))
    yield ui.Sentences(sentences)
    if found:
        name = found[0]["name"]
        yield f'Mend this, or say why it is meant so: rehearsal.allow = {{ "{name}" = "..." }}'
        yield "What each name means: docs/rehearsal.md and docs/reward_audit.md"
    for stage in told["stages"]:
        if stage["error"] and stage["status"] == "failed":
            yield ui.Paragraph((ui.strong(stage["name"], "bad"), " failed:"))
            yield ui.Code(clip(stage["error"], 3000))
    yield ui.Sentences([("flat", note) for note in told["notes"]])


def summary(told: Mapping[str, Any]) -> Iterator[ui.Block]:
    """For a terminal: a line of each stage, what fell out, findings, who answered, the page."""
    rows = [
        (
            *(one["name"], one["status"], f"{one['seconds']:.0f}", one["given"], one["left"]),
            ", ".join(f"{lost['cause']} {lost['rows']}" for lost in one["dropped"]),
        )
        for one in told["stages"]
    ]
    columns = ("stage", "status", "seconds", "in", "out", "fell out")
    yield ui.Table(columns, rows, f"rehearsal of {told['recipe']}")
    if told["endpoints"]:
        yield _endpoints(told)
    yield from verdict_blocks(told)
    yield f"Page: {told['page']}"
    yield f"Report: {told['report']}"


def _stage(stage: Mapping[str, Any]) -> Iterator[ui.Block]:
    kind = "" if stage["kind"] == stage["name"] else f" ({stage['kind']})"
    yield ui.Heading(f"{stage['name']}{kind}: {stage['status']}", 3)
    inside: list[ui.Block] = [
        ui.Table(("", _WIDE), [("in", stage["given"] or "–"), ("out", stage["left"])])
    ]
    if stage["domains"]:
        names = list(dict.fromkeys(name for counts in stage["domains"].values() for name in counts))
        rows = [
            (group, *(str(counts.get(name, 0)) for name in names))
            for group, counts in stage["domains"].items()
        ]
        inside.append(ui.Table((ui.Column("", "text"), *names), rows))
    yield ui.card(*inside)
    if stage["shown"]:
        taught = [(one["family"], one["prompt"], one["response"]) for one in stage["shown"]]
        wrapped = (ui.Column(one, "wrap") for one in ("prompt", "response"))
        table = ui.Table((*ui.words("source"), *wrapped), taught)
        yield ui.Details("What is taught: the first example of a source", [table])
    if stage["dropped"]:
        lost = [
            (one["cause"], str(one["rows"]), "\n".join(one["examples"])) for one in stage["dropped"]
        ]
        columns = (ui.Column("fell out because", "text"), "rows", ui.Column("for example", "wrap"))
        rows_lost = sum(one["rows"] for one in stage["dropped"])
        yield ui.Details(f"Fell out: {rows_lost}", [ui.Table(columns, lost)], open=True)


def _endpoints(told: Mapping[str, Any]) -> ui.Table:
    rows = []
    for one in told["endpoints"]:
        who = one["name"], ", ".join(one["stages"]), ", ".join(one["roles"])
        why = "".join(f"; {count} times {said}" for said, count in one["refused"].items())
        rows.append((*who, str(one["asked"]), str(one["stood_in"]), one["why"] + why))
    words, because = ui.words("endpoint", "stages", "as"), ui.Column("because", "wrap")
    return ui.Table((*words, "asked", "answered by rule", because), rows, "who answered")

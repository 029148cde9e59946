"""The report's data part: what the teachers made, what was dropped and why, and the mix that was
asked for beside the one that came out."""

import base64
import html
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from markdown_it import MarkdownIt
from markupsafe import Markup, escape

from flows.report import plots
from flows.runs.results import RunResults, StageOutput
from flows.runs.wording import clip, percent
from schemas.examples import Domain, Grounding
from tasks.contract.job import read_rows
from tasks.data.cleaning_rules import SPLITS

Cells = dict[str, dict[str, Any]]
"""Split -> what was requested, achieved and available, by difficulty too
(`tasks.stages.rebalance`)."""

LEVELS = range(1, 6)


@dataclass(frozen=True)
class Mix:
    """One rebalance stage.

    Attributes:
        rows: (domain or kind of grounded question, its cells), a table's rows.
        levels: (domain or kind, split, text for each difficulty), of cells that were asked for.
        totals: rows of each split, and of prompts and pairs.
        plots: requested and achieved, one for each split.
        card: the data card.
        causes: (cause, rows, share of all that were read, the first one).
        facts: whatever else is to be said, (name, text).
    """

    stage: str
    splits: list[str]
    rows: list[tuple[str, Cells]]
    levels: Sequence[tuple[str, str, list[str]]]
    totals: dict[str, int]
    plots: list[Markup]
    card: Markup | None
    causes: list[tuple[str, int, str, str]]
    facts: list[tuple[str, str]]


def mixes(run: RunResults) -> list[Mix]:
    """The mix of every rebalance stage that left an artifact."""
    return [_mix(stage) for stage in run.of_kind("rebalance") if stage.manifest]


def _mix(stage: StageOutput) -> Mix:
    metrics = stage.metrics
    domains, groundings = metrics["domains"], metrics["groundings"]
    rows = [(domain.value, domains[domain]) for domain in Domain if domain in domains]
    rows += [
        (f"grounded: {name.replace('_', ' ')}", groundings[name])
        for name in get_args(Grounding)
        if name in groundings
    ]
    bars = []
    for split in SPLITS:
        requested, achieved = (
            [cells[split][count] for _, cells in rows] for count in ("requested", "achieved")
        )
        if any(requested):
            title = f"{stage.name}: {split}, requested and achieved"
            bars.append(plots.paired_bars(title, [name for name, _ in rows], requested, achieved))
    causes = [
        (cause, count, percent(count / metrics["read"]), first)
        for cause, count, first in _causes(stage)
    ]
    levels = [
        (name, split, [_level(cells[split], str(level)) for level in LEVELS])
        for name, cells in rows
        for split in SPLITS
        if cells[split]["requested"]
    ]
    return Mix(
        stage.name,
        list(SPLITS),
        rows,
        levels,
        metrics["rows"],
        bars,
        _card(stage),
        causes,
        list(_facts(metrics)),
    )


def _level(cell: Mapping[str, Any], level: str) -> str:
    """One difficulty of a cell: `12 of 12 (40)` where it was asked for, else `12 (40)`."""
    achieved, available = (
        cell["difficulty"].get(level, 0),
        cell["available_difficulty"].get(level, 0),
    )
    requested = cell.get("requested_difficulty", {}).get(level, 0)
    asked = f" of {requested}" if "requested_difficulty" in cell else ""
    return f"{achieved}{asked} ({available})" if achieved or available or requested else "–"


def _facts(metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
    dropped = sum(metrics["dropped"].values())
    facts = [
        (
            "rows",
            (
                f"{metrics['read']:,} read, {dropped:,} dropped, {metrics['unused']:,} left that no"
                " quota asks for"
            ),
        ),
        ("prompts for GRPO", f"{metrics['prompts']:,}"),
        ("preference pairs", f"{metrics['pairs']:,}"),
        ("licences", _listed(metrics["licences"])),
    ]
    if metrics["contaminated_by"]:
        facts.append(
            ("rows that give evaluation prompts away", _listed(metrics["contaminated_by"]))
        )
    for number, top_up in enumerate(metrics["top_ups"], start=1):
        asked = sum(count for *_, count in top_up["wanted"])
        usd = sum(teacher.get("usd", 0.0) for teacher in top_up["teachers"])
        facts.append(
            (
                f"top-up {number}",
                (
                    f"{asked:,} rows asked of the teachers, {top_up['given']:,} given, {usd:.2f} US"
                    " dollars"
                ),
            )
        )
    return facts


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def _card(stage: StageOutput) -> Markup | None:
    """The artifact's data card, README.md, with its plots within: they are drawn for a white page,
    so they stay what they are.

    Whatever it holds, what comes out are paragraphs, tables, code and these plots: no HTML of its
    own, no link.
    """
    path = stage.path("README.md")
    if path is None:
        return None
    text = re.sub(
        r"\A---\n.*?\n---\n", "", path.read_text(encoding="utf-8"), flags=re.DOTALL
    )  # what the hub reads
    page = (
        MarkdownIt("commonmark", {"html": False})
        .enable("table")
        .disable(["link", "autolink"])
        .render(text)
    )
    page = _HEADING.sub(lambda found: f"<{found[1]}h{min(6, int(found[2]) + 2)}>", page)
    page = (
        page.replace("&lt;br&gt;", "<br>")
        .replace("<table>", '<div class="scroll"><table>')
        .replace("</table>", "</table></div>")
    )
    return Markup(
        _IMAGE.sub(
            lambda found: _image(stage, html.unescape(found[1]), html.unescape(found[2])), page
        )
    )


_HEADING = re.compile(r"<(/?)h(\d)>")
_IMAGE = re.compile(r'<img src="([^"]*)" alt="([^"]*)"[^>]*>')


def _image(stage: StageOutput, source: str, label: str) -> Markup:
    path = stage.path(source)
    if path is None:
        return escape(label)
    encoded = base64.b64encode(path.read_bytes()).decode()
    return Markup('<img alt="{}" src="data:image/svg+xml;base64,{}">').format(
        f"{stage.name}: {label}", encoded
    )


def _causes(stage: StageOutput) -> list[tuple[str, int, str]]:
    """Why rows were dropped: (cause, rows, the first one), most first."""
    first: dict[str, dict[str, Any]] = {}
    causes: Counter[str] = Counter()
    path = stage.path("dropped.jsonl")
    for row in read_rows(path) if path else ():
        causes[row["cause"]] += 1
        first.setdefault(row["cause"], row)
    examples = {
        cause: clip(f"{row['file'] or row['source']}:{row['line']}: {row['detail']}", 200)
        for cause, row in first.items()
    }
    return [(cause, count, examples[cause]) for cause, count in causes.most_common()]


@dataclass(frozen=True)
class Source:
    """One distill stage.

    Attributes:
        families: rows kept by `(domain, family)`.
        causes: rows dropped by cause, each with its first row as an example.
        teachers: (name, what it counted) of those that were asked something, and the router's
            accuracy.
        confusion: where the router was relied on, rows of a known domain by what it takes them for:
            (domain, counts, recall).
    """

    stage: str
    kept: int
    families: list[tuple[str, str, int]]
    dropped: int
    causes: list[tuple[str, int, str]]
    teachers: list[tuple[str, str]]
    confusion: list[tuple[str, list[int], str]]


def sources(run: RunResults) -> list[Source]:
    """What every distill stage kept and dropped, counted from its files."""
    found = []
    for stage in run.of_kind("distill"):
        path = stage.path("examples.jsonl")
        if path is None:
            continue
        families = Counter(
            (row["domain"], row["family"] or row["source"]) for row in read_rows(path)
        )
        kept = [(domain, family, count) for (domain, family), count in sorted(families.items())]
        causes = _causes(stage)
        dropped = sum(count for _, count, _ in causes)
        teachers = list(_teachers(stage.metrics))
        found.append(
            Source(
                stage.name,
                families.total(),
                kept,
                dropped,
                causes,
                teachers,
                _confusion(stage.metrics),
            )
        )
    return found


def _teachers(metrics: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for teacher in metrics["teachers"]:
        tally = {name: value for name, value in teacher.items() if name != "name"}
        samples = {
            name.removeprefix("samples."): int(value)
            for name, value in tally.items()
            if name.startswith("samples.")
        }
        routed = {
            name.removeprefix("routed."): int(value)
            for name, value in tally.items()
            if name.startswith("routed.")
        }
        if samples:
            yield teacher["name"], f"samples: {_listed(samples)}"
        if "requests" in tally or "cached" in tally:
            tokens = int(tally.get("input_tokens", 0) + tally.get("output_tokens", 0))
            asked = (
                f"{int(tally.get('requests', 0)):,} requests, {int(tally.get('cached', 0)):,}"
                " answered from the store"
            )
            yield (
                teacher["name"],
                f"{asked}, {tokens:,} tokens, {tally.get('usd', 0.0):.2f} US dollars",
            )
        if routed:
            yield teacher["name"], f"domains said by: {_listed(routed)}"
    if "router" in metrics:
        yield (
            "router",
            (
                f"{percent(metrics['router']['accuracy'])} of {metrics['router']['n']:,} rows of a"
                " known domain go there"
            ),
        )


def _confusion(metrics: Mapping[str, Any]) -> list[tuple[str, list[int], str]]:
    if "router" not in metrics:
        return []
    matrix, recall = metrics["router"]["matrix"], metrics["router"]["recall"]
    return [
        (domain.value, [matrix[domain][other] for other in Domain], percent(recall[domain]))
        for domain in Domain
        if recall[domain] is not None
    ]

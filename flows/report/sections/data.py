"""The data: what the teachers made, which rows were dropped and why, and the requested mix beside
the achieved one."""

import base64
import html
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from markdown_it import MarkdownIt
from markupsafe import Markup, escape

from flows.report import blocks as ui
from flows.report import plots
from flows.report.html import tag
from flows.report.section import Section
from flows.runs.results import RunResults, StageOutput
from flows.runs.wording import amount, percent
from schemas.base import clip
from schemas.examples import Domain, Grounding
from tasks.cleaning.rules import SPLITS
from tasks.contract.job import read_rows

Cells = dict[str, dict[str, Any]]
"""Split -> rows requested, achieved and available, by difficulty too (`tasks.stages.rebalance`)."""

_CARD = (
    "The data card: sources and licences, lengths, near duplicates and contamination side by side,"
    " samples"
)


def blocks(run: RunResults) -> list[ui.Block]:
    """Every rebalance stage that left an artifact, then every distill stage that left rows."""
    mixed = [stage for stage in run.of_kind("rebalance") if stage.manifest]
    made = [stage for stage in run.of_kind("distill") if stage.path("examples.jsonl")]
    return [block for stage in mixed for block in _mix(stage)] + [_source(one) for one in made]


def _mix(stage: StageOutput) -> list[ui.Block]:
    metrics, cells = stage.metrics, _cells(stage.metrics)
    rows: list[tuple[ui.Text, ...]] = [
        (name, *(_amount(splits[split]) for split in SPLITS)) for name, splits in cells.items()
    ]
    rows.append((ui.strong("rows"), *(ui.strong(str(metrics["rows"][split])) for split in SPLITS)))
    levels = [
        (name, split, *(_level(splits[split], str(level)) for level in range(1, 6)))
        for name, splits in cells.items()
        for split in SPLITS
        if splits[split]["requested"]
    ]
    title = f"{stage.name}: what became of the rows"
    became: list[ui.Block] = [ui.facts(list(_facts(metrics)), title)]
    if causes := causes_of(stage):
        words = ui.Column("the first one", "wrap")
        shares = [(cause, str(n), percent(n / metrics["read"]), one) for cause, n, [one] in causes]
        became.append(ui.Table(("dropped because", "rows", "of all read", words), shares))
    if data_card := _card(stage):
        became.append(ui.Details(_CARD, [data_card], classes=""))
    numbers = ("", ui.Column("split", "text"), *"12345")
    amounts = ui.Table(("", *SPLITS), rows, f"{stage.name}: achieved of requested (available)")
    by_difficulty = ui.Details("By difficulty", [ui.Table(numbers, levels)], classes="")
    return [*ui.grid(list(_bars(stage, cells))), ui.card(amounts, by_difficulty), ui.card(*became)]


def _cells(metrics: Mapping[str, Any]) -> dict[str, Cells]:
    """The cells of each domain and of each kind of grounded question."""
    domains, groundings = metrics["domains"], metrics["groundings"]
    found = {domain.value: domains[domain] for domain in Domain if domain in domains}
    kinds = (name for name in get_args(Grounding) if name in groundings)
    return found | {f"grounded: {name.replace('_', ' ')}": groundings[name] for name in kinds}


def _bars(stage: StageOutput, cells: Mapping[str, Cells]) -> Iterator[ui.Figure]:
    for split in SPLITS:
        requested = [splits[split]["requested"] for splits in cells.values()]
        achieved = [splits[split]["achieved"] for splits in cells.values()]
        if any(requested):
            title = f"{stage.name}: {split}, requested and achieved"
            yield plots.paired_bars(title, list(cells), requested, achieved)


def _amount(cell: Mapping[str, Any]) -> ui.Text:
    available = ui.Span(f"({cell['available']})", "span", "note")
    return f"{cell['achieved']} of {cell['requested']} ", available


def _level(cell: Mapping[str, Any], level: str) -> str:
    """One difficulty of a cell: `12 of 12 (40)` if it was requested, else `12 (40)`."""
    achieved = cell["difficulty"].get(level, 0)
    available = cell["available_difficulty"].get(level, 0)
    requested = cell.get("requested_difficulty", {}).get(level, 0)
    asked = f" of {requested}" if "requested_difficulty" in cell else ""
    return f"{achieved}{asked} ({available})" if achieved or available or requested else "–"


def _facts(metrics: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    dropped = sum(metrics["dropped"].values())
    read, unused = metrics["read"], metrics["unused"]
    yield "rows", f"{read:,} read, {dropped:,} dropped, {unused:,} left that no quota asks for"
    yield "prompts for GRPO", f"{metrics['prompts']:,}"
    yield "preference pairs", f"{metrics['pairs']:,}"
    yield "licences", _listed(metrics["licences"])
    if metrics["contaminated_by"]:
        yield "rows that give evaluation prompts away", _listed(metrics["contaminated_by"])
    for number, top_up in enumerate(metrics["top_ups"], start=1):
        asked = sum(count for *_, count in top_up["wanted"])
        usd = sum(teacher.get("usd", 0.0) for teacher in top_up["teachers"])
        given = f"{top_up['given']:,} given, {usd:.2f} US dollars"
        yield f"top-up {number}", f"{amount(asked, 'row')} asked of the teachers, {given}"


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def _card(stage: StageOutput) -> ui.Raw | None:
    """The artifact's data card, README.md, with its plots, which keep the colours of a white page.

    It becomes paragraphs, tables, code and these plots, without links or HTML of its own.
    """
    path = stage.path("README.md")
    if path is None:
        return None
    written = path.read_text(encoding="utf-8")
    text = re.sub(r"\A---\n.*?\n---\n", "", written, flags=re.DOTALL)  # what the hub reads
    reader = MarkdownIt("commonmark", {"html": False}).enable("table").disable(["link", "autolink"])
    page = _HEADING.sub(
        lambda found: f"<{found[1]}h{min(6, int(found[2]) + 2)}>", reader.render(text)
    )
    page = page.replace("&lt;br&gt;", "<br>")
    page = page.replace("<table>", '<div class="scroll"><table>')
    page = page.replace("</table>", "</table></div>")
    page = _IMAGE.sub(lambda found: _image(stage, *map(html.unescape, found.groups())), page)
    return ui.Raw(tag("div", Markup(page), class_="markdown"))


_HEADING = re.compile(r"<(/?)h(\d)>")
_IMAGE = re.compile(r'<img src="([^"]*)" alt="([^"]*)"[^>]*>')


def _image(stage: StageOutput, source: str, label: str) -> Markup:
    path = stage.path(source)
    if path is None:
        return escape(label)
    encoded = base64.b64encode(path.read_bytes()).decode()
    address = f"data:image/svg+xml;base64,{encoded}"
    return tag("img", alt=f"{stage.name}: {label}", src=address)


def causes_of(stage: StageOutput, most: int = 1) -> list[tuple[str, int, list[str]]]:
    """Why rows were dropped: (cause, rows, the first ones), most first."""
    path, causes, first = stage.path("dropped.jsonl"), Counter[str](), dict[str, list[str]]()
    for row in read_rows(path) if path else ():
        causes[row["cause"]] += 1
        if causes[row["cause"]] <= most:
            place = f"{row['file'] or row['source']}:{row['line']}"
            first.setdefault(row["cause"], []).append(clip(f"{place}: {row['detail']}", 200))
    return [(cause, count, first[cause]) for cause, count in causes.most_common()]


def _source(stage: StageOutput) -> ui.Block:
    """A distill stage's kept and dropped rows, counted from its files, its teachers, and its
    router."""
    path, causes, metrics = stage.path("examples.jsonl"), causes_of(stage), stage.metrics
    assert path is not None, "asked for before"
    families = Counter((row["domain"], row["family"] or row["source"]) for row in read_rows(path))
    dropped = sum(count for _, count, _ in causes)
    shown: list[ui.Block] = []
    if causes:
        columns = ("dropped because", "rows", ui.Column("the first one", "wrap"))
        lost = [(cause, str(count), one) for cause, count, [one] in causes]
        shown.append(ui.Table(columns, lost))
    if teachers := list(_teachers(metrics)):
        shown.append(ui.facts(teachers))
    if "router" in metrics:
        matrix, recall = metrics["router"]["matrix"], metrics["router"]["recall"]
        rows = [
            (one.value, *(str(matrix[one][other]) for other in Domain), percent(recall[one]))
            for one in Domain
            if recall[one] is not None
        ]
        head = ("domain, and what it is taken for", *(one.value for one in Domain), "found")
        title = "The router on rows of a known domain"
        shown.append(ui.Details(title, [ui.Table(head, rows)], classes=""))
    rows = [(domain, family, str(n)) for (domain, family), n in sorted(families.items())]
    by_family = ui.Table(("domain", ui.Column("family", "text"), "rows"), rows)
    title = f"{stage.name}: {amount(families.total(), 'row')} kept, {dropped:,} dropped"
    folded = ui.Details("Rows by family", [by_family], classes="")
    return ui.card(ui.Heading(title, 3), *shown, folded)


def _teachers(metrics: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The counts of the teachers that were asked, and the router's accuracy."""
    for teacher in metrics["teachers"]:
        name = teacher["name"]
        if samples := counted(teacher, "samples."):
            yield name, f"samples: {_listed(samples)}"
        if "requests" in teacher or "cached" in teacher:
            tokens = int(teacher.get("input_tokens", 0) + teacher.get("output_tokens", 0))
            requests, cached = (int(teacher.get(one, 0)) for one in ("requests", "cached"))
            asked = f"{requests:,} requests, {cached:,} answered from the store"
            yield name, f"{asked}, {tokens:,} tokens, {teacher.get('usd', 0.0):.2f} US dollars"
        if routed := counted(teacher, "routed."):
            yield name, f"domains said by: {_listed(routed)}"
    if "router" in metrics:
        accuracy, n = percent(metrics["router"]["accuracy"]), metrics["router"]["n"]
        yield "router", f"{accuracy} of {n:,} rows of a known domain go there"


def counted(tally: Mapping[str, Any], prefix: str) -> dict[str, int]:
    """The counts of a teacher's tally whose names begin so, by the rest of their names."""
    found = {name: value for name, value in tally.items() if name.startswith(prefix)}
    return {name.removeprefix(prefix): int(value) for name, value in found.items()}


SECTION = Section(title="Data", heading="Data", order=60, blocks=blocks)

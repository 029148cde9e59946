"""The data card of a dataset artifact: README.md in the Hugging Face hub's form, with plots in
card/.

Everything is counted from the files themselves. Text of rows is data, never Markdown: in tables,
special characters are entities; elsewhere the text is in a code block whose fence it cannot close.
The same files give the same bytes.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any, get_args

import numpy as np

from infra.visible import fence_of, visible
from schemas.base import clip
from schemas.examples import Grounding
from tasks.cleaning.clean import Cleaned
from tasks.cleaning.filters import response_of
from tasks.cleaning.rules import CAUSES, HITS, SPLITS, Cause, EvaluationItems
from tasks.data import card_plots
from tasks.data.row_counts import LOOKED_AT, SAMPLES, RowCounts, count_rows, quantile
from tasks.data.tokens import Tokenizer

MATCHES = 5
"""Examples of near duplicates, and of contamination, that are shown side by side."""

_SIZES = ("n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M", "100M<n<1B")
_SAMPLE_CHARACTERS, _CELL_CHARACTERS = 1500, 500
_HUB_LICENCES = frozenset(
    """
    apache-2.0 mit bsd-2-clause bsd-3-clause cc0-1.0 cc-by-2.0 cc-by-3.0 cc-by-4.0 cc-by-sa-3.0
    cc-by-sa-4.0 cc-by-nc-4.0 cc-by-nc-sa-4.0 cc-by-nd-4.0 cc-by-nc-nd-4.0 odc-by odbl pddl
    cdla-permissive-2.0 cdla-sharing-1.0 gemma llama3 llama3.1 openrail gpl-3.0 unlicense
    """.split()  # noqa: SIM905
)
"""Identifiers that the hub knows; any other licence is `other` there, with its name."""


Matches = Mapping[Cause, Sequence[tuple[str, str, str]]]
"""Cause -> rows that were dropped, beside what they match, and how."""


def of_rebalance(
    out: Path,
    distilled: Path,
    cleaned: Cleaned,
    evaluations: Sequence[EvaluationItems],
    metrics: Mapping[str, Any],
    tokenizer: bytes | None,
) -> dict[str, Any]:
    """Write the card of a rebalance artifact. Returns metrics: `licences`, rows by licence.

    Args:
        out: the artifact's directory, with all other files in it.
        distilled: the distill artifact, whose `teachers.json` has the sources of the rows.
        cleaned, evaluations: the dropped rows, and what they matched.
        metrics: the stage's.
        tokenizer: of the model whose tokens limited rows, or None.
    """
    teachers = json.loads((distilled / "teachers.json").read_text(encoding="utf-8"))["teachers"]
    splits = {str(split): out / f"{split}.jsonl" for split in SPLITS}
    items = {(one.name, identity): text for one in evaluations for identity, text in one.texts}
    causes: tuple[Cause, ...] = ("near_duplicate", "contaminated")
    matches = {cause: _matches(cleaned, cause, items) for cause in causes}
    return _write(out, "Training data", splits, teachers, metrics, matches, tokenizer)


def of_distill(
    out: Path, teachers: Sequence[Mapping[str, Any]], metrics: Mapping[str, Any]
) -> dict[str, Any]:
    """Write the card of a distill artifact, the teachers' rows before any cleaning. Returns metrics
    as `of_rebalance`."""
    splits = {"train": out / "examples.jsonl"}
    return _write(out, "Distilled traces", splits, teachers, metrics, {}, None)


def _write(
    out: Path,
    title: str,
    splits: Mapping[str, Path],
    teachers: Sequence[Mapping[str, Any]],
    metrics: Mapping[str, Any],
    matches: Matches,
    tokenizer: bytes | None,
) -> dict[str, Any]:
    counts = count_rows(splits, teachers, Tokenizer(tokenizer) if tokenizer else None)
    plots = card_plots.draw(out / "card", counts, metrics.get("dropped", {}))
    by_split = ", ".join(f"{count:,} {split}" for split, count in counts.rows.items())
    parts = [
        _front_matter(title, splits, counts),
        f"# {title}\n\n{counts.rows.total():,} rows: {by_split}.",
        _sources(counts, teachers),
        _cells(counts, metrics, plots),
        _lengths(counts, plots),
        _dropped(metrics, plots),
        _report("Near duplicates", "near_duplicate", "kept", matches, metrics),
        _report("Contamination", "contaminated", "evaluation item", matches, metrics),
        _samples(counts),
    ]
    text = "\n\n".join(part for part in parts if part) + "\n"
    (out / "README.md").write_text(visible(text), encoding="utf-8", newline="\n")
    return {"licences": counts.by_licence()}


def _front_matter(title: str, splits: Mapping[str, Path], counts: RowCounts) -> str:
    """YAML that the hub reads; every value is JSON, which is YAML."""
    licences = sorted({licence for *_, licence in counts.sources})
    hub = {one: one.lower() for one in licences if one.lower() in _HUB_LICENCES}
    hub["not stated"] = "unknown"
    ids = sorted({hub.get(licence, "other") for licence in licences})
    total = counts.rows.total()
    groups = {group for group, _ in counts.cells}
    tasks = ["text-generation"]
    tasks += ["question-answering"] if groups.intersection(get_args(Grounding)) else []
    tasks += ["summarization"] if "summarization" in groups else []
    most = counts.languages.total()
    common = [code for code, count in counts.languages.items() if count * 20 >= most]
    files = [
        {"split": {"heldout": "test"}.get(split, split), "path": path.name}
        for split, path in splits.items()
        if counts.rows[split]
    ]
    configs: list[dict[str, Any]] = [{"config_name": "default", "data_files": files}]
    for name in ("prompts", "pairs"):
        path = next(iter(splits.values())).with_name(f"{name}.jsonl")
        if path.is_file() and path.stat().st_size:
            configs.append({"config_name": name, "data_files": path.name})
    about: dict[str, Any] = {
        "pretty_name": title,
        "license": ids[0] if len(ids) == 1 else ids,
        "language": sorted(code for code in common if len(code) == 2),
        "size_categories": [_SIZES[sum(total >= 10**digits for digits in range(3, 9))]],
        "task_categories": tasks,
        "configs": configs,
        "tags": ["lyceum", "reasoning"],
    }
    if "other" in ids:
        about["license_name"] = ", ".join(one for one in licences if one not in hub)
    shown = ((key, value) for key, value in about.items() if value not in ([], ""))
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in shown]
    return "\n".join(["---", *lines, "---"])


def _sources(counts: RowCounts, teachers: Sequence[Mapping[str, Any]]) -> str:
    rows = [(*place, f"{count:,}") for place, count in sorted(counts.sources.items())]
    asked = ", ".join(
        f"`{table['name']}`" + (f" ({escape(str(table['model']))})" if table.get("model") else "")
        for table in teachers
    )
    sources = table(("family", "file", "licence", "rows"), rows)
    return f"## Sources and licences\n\nTeachers: {asked}.\n\n{sources}"


def _cells(counts: RowCounts, metrics: Mapping[str, Any], plots: Mapping[str, str]) -> str:
    rows = []
    for group in counts.groups():
        cells = [counts.cells[group, level] for level in range(1, 6)]
        rows.append((group, *(f"{count:,}" for count in (*cells, sum(cells)))))
    by_level = table(("", *(f"difficulty {level}" for level in range(1, 6)), "all"), rows)
    image = f"![rows by domain and difficulty]({plots['cells']})"
    text = f"## Domains and difficulties\n\n{image}\n\n{by_level}"
    asked = [
        (group, split, f"{cell['requested']:,}", f"{cell['achieved']:,}", f"{cell['available']:,}")
        for kind in ("domains", "groundings")
        for group, cells in metrics[kind].items()
        if isinstance(cells, Mapping)
        for split, cell in cells.items()
    ]
    if not asked:
        return text
    met = table(("", "split", "requested", "achieved", "available"), asked)
    return f"{text}\n\nAsked for, and met:\n\n{met}"


def _lengths(counts: RowCounts, plots: Mapping[str, str]) -> str:
    shares = (0.0, 0.5, 0.9, 0.99, 1.0)
    rows = [
        (what, f"{lengths.total():,}", *(f"{quantile(lengths, share):,}" for share in shares))
        for what, lengths in sorted(counts.lengths.items())
    ]
    note = f"Tokens are those of the first {LOOKED_AT:,} training rows, with the turns around them."
    note = f"{note}\n\n" if len(rows) > 2 else ""
    text = f"## Lengths\n\n![lengths]({plots['lengths']})\n\n{note}"
    return text + table(("", "rows", "shortest", "median", "90%", "99%", "longest"), rows)


def _dropped(metrics: Mapping[str, Any], plots: Mapping[str, str]) -> str:
    dropped = metrics.get("dropped", {})
    causes = sorted(dropped.items(), key=lambda item: (-item[1], item[0]))
    read = f"{metrics['read']:,} rows were read; " if "read" in metrics else ""
    text = (
        f"## Dropped rows\n\n{read}{sum(dropped.values()):,} were dropped; each is a line of"
        " dropped.jsonl with its cause."
    )
    if conflicts := metrics.get("conflicts"):
        text += (
            f" {conflicts:,} of the duplicates have another answer than the row that stays, which a"
            " hash chose: look for `whose answer is` there."
        )
    if not causes:
        return text
    rows = table(("cause", "rows"), [(cause, f"{count:,}") for cause, count in causes])
    return f"{text}\n\n![dropped rows by cause]({plots['dropped']})\n\n{rows}"


def _matches(
    cleaned: Cleaned, cause: Cause, items: Mapping[tuple[str, str], str]
) -> list[tuple[str, str, str]]:
    """The first dropped rows of a cause by prompt id, each beside the row or the evaluation item
    that it matches, and how."""
    rows = np.flatnonzero(np.asarray(cleaned.cause) == CAUSES.index(cause))
    rows = rows[np.argsort(cleaned.id[rows], kind="stable")][:MATCHES]
    shown = []
    for number, row in zip(rows.tolist(), cleaned.rows(rows), strict=True):
        other, heldout = int(cleaned.match[number]), HITS[cleaned.hit[number]].startswith("heldout")
        if heldout or cause == "near_duplicate":
            text = _compared(next(cleaned.rows([other])))
        else:
            text = items[cleaned.items[other]]
        shown.append((_compared(row), text, cleaned.describe(number)))
    return shown


def _compared(row: Mapping[str, Any]) -> str:
    """A prompt with its context shortened, since a context counts as one word in comparisons."""
    prompt, context = str(row["prompt"]), row["context"]
    return prompt.replace(context, f"[{context[:40]} …]") if context else prompt


def _report(
    title: str, cause: Cause, other: str, matches: Matches, metrics: Mapping[str, Any]
) -> str:
    if not matches.get(cause):
        return ""
    count = metrics.get("dropped", {}).get(cause, 0)
    by_set = metrics.get("contaminated_by", {}) if cause == "contaminated" else {}
    sets = ", ".join(f"{escape(name)} {rows:,}" for name, rows in by_set.items())
    said = f" By evaluation set: {sets}." if sets else ""
    rows = table(("dropped", other, "why"), matches[cause])
    return f"## {title}\n\n{count:,} rows.{said} The first of them:\n\n{rows}"


def _samples(counts: RowCounts) -> str:
    """Rows of every group in turn."""
    ranks = zip_longest(*(counts.samples[group] for group in counts.groups()))
    turns = filter(None, chain.from_iterable(ranks))
    parts = ["## Samples\n\nThe first rows of every domain in turn: prompt, then response."]
    for number, row in enumerate(islice(turns, SAMPLES), start=1):
        kind, family = row["grounding"] or row["domain"], row["family"] or row["source"]
        head = f"{escape(kind)}, difficulty {row['difficulty']}, {escape(family)}"
        parts += [f"### {number}. {head}", fenced(row["prompt"]), fenced(response_of(row) or "")]
    return "\n\n".join(parts)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; cells are text, clipped."""
    body = ([escape(_clipped(cell, _CELL_CHARACTERS)) for cell in row] for row in rows)
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


_MEANING = re.compile(r"[\\`*{}\[\]<>#|~&$@]|(?<![^\W_])_|_(?![^\W_])|:(?=//)|(?<=www)\.")


def escape(text: str) -> str:
    """Text that renders as written in a paragraph or a table cell: special characters as entities,
    line ends as breaks."""
    entities = _MEANING.sub(lambda match: f"&#{ord(match[0])};", visible(text).strip())
    return re.sub(r"\s*\n\s*", "<br>", entities)


def fenced(text: str) -> str:
    """Text in a code block whose fence is longer than any in it."""
    fence = fence_of(text)
    return f"{fence}text\n{visible(_clipped(text, _SAMPLE_CHARACTERS))}\n{fence}"


def _clipped(text: str, most: int) -> str:
    """Blank text stays blank."""
    return clip(text, most) if text.strip() else text

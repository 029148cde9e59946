"""The report's data part: what the teachers made, what was dropped and why, and the mix that was asked for beside the one that came out."""

from collections import Counter
from dataclasses import dataclass
from typing import Any, get_args

from markupsafe import Markup

from flows.report import plots
from flows.report.results import RunResults, StageOutput
from flows.report.wording import clip
from schemas.examples import Domain, Grounding
from tasks.data.splits import SPLITS


@dataclass(frozen=True)
class Mix:
    """One rebalance stage: rows `(domain or kind of grounded question, {split: {requested, achieved, available}})` and a plot per split."""

    stage: str
    splits: list[str]
    rows: list[tuple[str, dict[str, dict[str, int]]]]
    totals: dict[str, int]
    plots: list[Markup]


def mixes(run: RunResults) -> list[Mix]:
    """The mix of every rebalance stage that left an artifact."""
    return [_mix(stage) for stage in run.of_kind("rebalance") if stage.manifest]


def _mix(stage: StageOutput) -> Mix:
    domains, groundings = stage.metrics["domains"], stage.metrics["groundings"]
    rows = [(domain.value, domains[domain]) for domain in Domain if domain in domains]
    rows += [(f"grounded: {name.replace('_', ' ')}", groundings[name]) for name in get_args(Grounding) if name in groundings]
    bars = []
    for split in SPLITS:
        requested, achieved = ([splits[split][count] for _, splits in rows] for count in ("requested", "achieved"))
        if any(requested):
            title = f"{stage.name}: {split}, requested and achieved"
            bars.append(plots.paired_bars(title, [name for name, _ in rows], requested, achieved))
    return Mix(stage.name, list(SPLITS), rows, stage.metrics["rows"], bars)


@dataclass(frozen=True)
class Source:
    """One distill stage: rows kept by `(domain, family)`, rows dropped by cause, each cause with its first row as an example."""

    stage: str
    kept: int
    families: list[tuple[str, str, int]]
    dropped: int
    causes: list[tuple[str, int, str]]


def sources(run: RunResults) -> list[Source]:
    """What every distill stage kept and dropped, counted from its files."""
    found = []
    for stage in run.of_kind("distill"):
        if stage.manifest is None:
            continue
        families = Counter((row["domain"], row["family"] or row["source"]) for row in stage.rows("examples.jsonl"))
        first: dict[str, dict[str, Any]] = {}
        causes: Counter[str] = Counter()
        for row in stage.rows("dropped.jsonl"):
            causes[row["cause"]] += 1
            first.setdefault(row["cause"], row)
        examples = {cause: clip(f"{row['file'] or row['source']}:{row['line']}: {row['detail']}", 200) for cause, row in first.items()}
        found.append(
            Source(
                stage.name,
                families.total(),
                [(domain, family, count) for (domain, family), count in sorted(families.items())],
                causes.total(),
                [(cause, count, examples[cause]) for cause, count in causes.most_common()],
            )
        )
    return found

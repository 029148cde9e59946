"""Reading what blocks show."""

from collections.abc import Sequence
from pathlib import Path

from flows.report.blocks import Block, Cell, Column, Details, Figure, Table, plain, walk
from flows.report.page import report_of, write_report
from flows.report.section import SECTIONS
from flows.runs.results import RunResults, read_results
from infra.store.store import Store
from schemas.reports import RunRecord


def report_file(store: Store, record: RunRecord) -> Path:
    """The report of a run, written."""
    return Path(write_report(store, report_of(read_results(store, record))))


def section(run: RunResults, name: str) -> list[Block]:
    """All blocks of a section of the report."""
    return list(walk(SECTIONS[name].blocks(run)))


def rows(table: Table) -> dict[str, dict[str, str]]:
    """Row -> column -> text; rows of a group are `group/row`."""
    titles = [one.title if isinstance(one, Column) else one for one in table.columns]
    names, found, group = [plain(title) for title in titles], {}, ""
    for row in table.rows:
        if isinstance(row, str):
            group = f"{row}/"
            continue
        texts = [plain(one.text if isinstance(one, Cell) else one) for one in row]
        found[group + texts[0]] = dict(zip(names[1:], texts[1:], strict=True))
    return found


def folded(blocks: Sequence[Block], words: str) -> dict[str, dict[str, str]]:
    """The rows of the table below the summary that begins so."""
    [inside] = [
        one.blocks
        for one in blocks
        if isinstance(one, Details) and plain(one.summary).startswith(words)
    ]
    [table] = [one for one in inside if isinstance(one, Table)]
    return rows(table)


def drawn(blocks: Sequence[Block]) -> list[str]:
    """The titles of all plots."""
    return [one.title for one in blocks if isinstance(one, Figure)]

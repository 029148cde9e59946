"""How long each stage took."""

from flows.report import plots
from flows.report.blocks import Block, Box, Column, Table, card
from flows.report.section import Section
from flows.runs.results import RunResults, StageOutput
from flows.runs.wording import duration, size

_PEAKS = {"peak_rss_bytes": "", "peak_device_bytes": " on a device"}
"""A stage's peaks of memory -> their suffix in words: of its process, and of its fullest device."""


def blocks(run: RunResults) -> list[Block]:
    """Every stage of the recipe, reached or not: its part in this run, and the times in its
    artifact."""
    columns = ("stage", Column("status", "text"), "this run", "made in", "peak memory")
    table = card(Table(columns, [_row(stage) for stage in run.stages.values()]))
    ended = [
        (stage.name, stage.record.seconds, stage.status)
        for stage in run.stages.values()
        if stage.record and stage.record.status != "running"
    ]
    some_ran = any(status != "cached" for _, _, status in ended)
    drawn = [card(plots.stage_times("Time per stage", ended))] if some_ran else []
    return [Box([*drawn, table], "grid wide")]


def _row(stage: StageOutput) -> tuple[str, ...]:
    record, execution = stage.record, stage.manifest.execution if stage.manifest else {}
    peaks = (f"{size(execution[one])}{what}" for one, what in _PEAKS.items() if one in execution)
    seconds = duration(record.seconds) if record and record.status != "running" else ""
    made_in = duration(execution["seconds"]) if "seconds" in execution else ""
    return stage.name, stage.status, seconds, made_in, ", ".join(peaks)


SECTION = Section(title="Time", heading="Time", order=70, blocks=blocks)

"""The report of a run: one self-contained HTML page, verdict first, drawn from the run's record and
artifacts alone.

It shows whatever a run left: a run that failed half-way has a report, too, which begins with the
failure.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import gmtime, strftime

from flows.report import blocks as ui
from flows.report.gate_blocks import gate_blocks
from flows.report.html import page, tag, write_page
from flows.report.section import SECTIONS, Section
from flows.report.summaries import stages_done
from flows.report.verdict import stage_verdicts, verdict
from flows.runs.effects import EXACT, FORMAT, SAFE, Metric, outcomes, overall_effect, suite_effects
from flows.runs.next_commands import copied
from flows.runs.record import run_folder, run_status
from flows.runs.results import RunResults
from flows.runs.wording import (
    TONES,
    amount,
    bounds,
    change_text,
    duration,
    listed,
    percent,
    points,
    sample_text,
    short_model,
)
from infra.store.store import Store
from schemas.base import clip
from schemas.reports import RunRecord
from tasks.contract.kinds import stage_kind
from tasks.statistics.intervals import Rate

_INTERVALS = (
    "All prompts are held out: no stage trained on them. Brackets are 95% intervals: Wilson for a"
    " rate; for a difference a bootstrap over the prompts that both models answered, or Newcombe's"
    " interval where they answered different ones. A stage's gain or loss counts where its interval"
    " leaves out zero and its p-value (McNemar, exact) is at most 5% after Holm's correction for"
    " the number of stages."
)


@dataclass(frozen=True)
class Report:
    """The content of a run's report: `main` below its head, and `links` into it."""

    run: RunResults
    main: list[ui.Block]
    links: list[tuple[str, str]]

    def html(self) -> str:
        """The page. Equal results give equal text."""
        record = self.run.record
        return page(
            f"{record.recipe.name}: {run_status(record)} ({record.run_id})",
            [
                *_head(record),
                ui.Raw(tag("nav", *(tag("a", text, href=f"#{name}") for name, text in self.links))),
            ],
            self.main,
            [written_by(record)],
        )


def written_by(record: RunRecord) -> ui.Paragraph:
    """The footer: the command that writes the page again."""
    again = ui.code(copied("report", record.run_id, store=record.store))
    store = ui.code(record.store)
    return ui.Paragraph(("Written by ", again, " from the artifacts in ", store, "."), "note")


def report_name(run_id: str) -> str:
    return f"{run_folder(run_id)}/report.html"


def write_report(store: Store, report: Report) -> str:
    """Write a report and return its place: a path, or a `gs://` URI.

    Raises:
        InputError: the store is full or cannot be written.
    """
    return write_page(store, report_name(report.run.record.run_id), report.html())


def report_of(run: RunResults) -> Report:
    main, links = [*_troubles(run), *_verdict(run)], []
    for name in sorted(SECTIONS.names(), key=lambda name: (SECTIONS[name].order, name)):
        section = SECTIONS[name]
        if blocks := _blocks(section, run):
            main += [ui.Heading(section.heading, name=name), *blocks]
            links.append((name, section.title))
    return Report(run, main, links)


def run_page(run: RunResults) -> list[ui.Block]:
    """A run that has ended, for Prefect: the report's head, its place, failures, the verdict, and
    all stages."""
    record = run.record
    address = ""
    if (place := record.report or "none").startswith("gs://"):
        # browsers open an object of a bucket (for those who may read it), and no file
        address = f" (https://storage.cloud.google.com/{place.removeprefix('gs://')})"
    where = ui.Paragraph(("Report: ", ui.code(place), address))
    store = ui.Paragraph(("Store: ", ui.code(record.store)))
    return [*_head(record), where, store, *_troubles(run), *_verdict(run), stages_done(record)]


def _blocks(section: Section, run: RunResults) -> Sequence[ui.Block]:
    """A section's blocks; where an artifact of another version of its kind lacks what the section
    reads, a statement of that."""
    try:
        return section.blocks(run)
    except KeyError as error:
        other = [
            stage.name
            for stage in run.stages.values()
            if stage.manifest and stage.manifest.version != stage_kind(stage.spec.kind).version
        ]
        if not other:
            raise
        said = f"{listed(other)}: made by another version of Lyceum (without {error}). Run the"
        return [trouble("Left out", f"{said} recipe again: what has not changed since is reused.")]


def _head(record: RunRecord) -> list[ui.Block]:
    said = run_status(record)
    tones = {"succeeded": "good", **dict.fromkeys(("failed", "cancelled", "interrupted"), "bad")}
    began = strftime("%Y-%m-%d %H:%M UTC", gmtime(record.started))
    where = f" · {short_model(record.recipe.model)} on {record.target} · {began}"
    where += f" · {duration(record.finished - record.started)}" if record.finished else ""
    status = ui.strong(said, tones.get(said, "flat")), f"{where} · ", ui.code(record.run_id)
    return [ui.Heading(record.recipe.name, 1), ui.Paragraph(status)]


def _troubles(run: RunResults) -> Iterator[ui.Block]:
    """Failures, missing artifacts, and repairs."""
    for stage in run.stages.values():
        if stage.record and stage.record.error:
            said = "failed" if stage.status == "failed" else f"was {stage.status}"
            yield trouble(f"Stage {stage.name} {said}", stage.record.error)
    ended = {
        "cancelled": "The run was stopped before it ended. The same command continues it; what is"
        " finished is reused.",
        "paused": "The run was paused, or its deadline came, before it ended. The same command goes"
        " on from what is there.",
        "interrupted": "The process of the run is gone. The same command goes on from what is"
        " there.",
        **dict.fromkeys(
            ("running", "running?"), "The run had not ended when this report was written."
        ),
    }
    if (status := run_status(run.record)) in ended:
        yield ui.Box([ended[status]], "card failure")
    for name, problem in run.left_out.items():
        yield missing(name, problem, "report")
    for stage in run.stages.values():
        if stage.record and stage.record.repaired:
            said = f": {stage.record.repaired}."
            yield ui.card(ui.Paragraph(("Stage ", ui.strong(stage.name), said)))


def trouble(title: str, why: str) -> ui.Box:
    """A failure, and the text that explains it."""
    heading = ui.Heading(ui.Span(title, "span", "bad"), 3)
    return ui.Box([heading, ui.Code(clip(why, 4000))], "card failure")


def missing(stage: str, problem: str, where: str) -> ui.Box:
    """That an artifact cannot be used."""
    said = f": {problem}. What it held is missing from this {where}; "
    again = ui.code("lyceum run"), " with the same recipe makes it again."
    text = "Left out: stage ", ui.strong(stage), said, *again
    return ui.Box([ui.Paragraph(text)], "card failure")


def _verdict(run: RunResults) -> Iterator[ui.Block]:
    yield ui.Heading("Verdict")
    whole, shown = verdict(run), tiles(run)
    if whole:
        yield ui.Paragraph((ui.strong(whole.subject, whole.tone), f" {whole.text}"), "lead")
    yield ui.Box(shown, "grid") if shown else "No model was evaluated, so there is no verdict."
    yield ui.Sentences([(one.tone, one.spoken) for one in stage_verdicts(run)])
    yield from gate_blocks(run)
    if shown:
        yield ui.Paragraph(_INTERVALS, "note")


def tiles(run: RunResults) -> list[ui.Box]:
    """The headline rates, base -> final, or the only level."""
    return [tile for metric in (EXACT, FORMAT, SAFE) if (tile := _tile(run, metric))]


def _tile(run: RunResults, metric: Metric) -> ui.Box | None:
    effect = overall_effect(run, metric)
    if effect is None:  # the level of the first model alone
        for model in run.evaluated(metric.kind):
            if rate := Rate.of(outcomes(model.items(metric.kind), metric).values()):
                basis = f"{model.name} {bounds(rate.interval)}; {amount(rate.n, 'prompt')}"
                basis += "; nothing to compare with"
                return _framed(metric, percent(rate.value), [ui.Paragraph(ui.small(basis))])
        return None
    change, tone = effect.change, TONES[effect.direction]
    old, new = percent(change.before.value), percent(change.after.value)
    figure = ui.Span(f"{old} → ", "span", "from"), new
    before, after = bounds(change.before.interval), bounds(change.after.interval)
    basis = f"{effect.since} {before}, {effect.stage} {after}; {sample_text(change)}"
    suites: list[tuple[ui.Text | ui.Cell, ...]] = []
    for suite, one in suite_effects(run, metric).items():
        old, new = percent(one.change.before.value), percent(one.change.after.value)
        gained = f"{points(one.change.delta)} {bounds(one.change.interval, signed=True)}"
        tone_of = TONES[one.direction]
        suites.append((suite, (f"{old} → {new}", ui.small(gained, tone_of.replace("flat", "")))))
    inside = [ui.Paragraph(ui.strong(change_text(change), tone)), ui.Paragraph(ui.small(basis))]
    return _framed(metric, figure, [*inside, *([ui.Table(("", ""), suites)] if suites else [])])


def _framed(metric: Metric, figure: ui.Text, blocks: list[ui.Block]) -> ui.Box:
    title = ui.Heading(metric.label.capitalize(), 3)
    return ui.Box([title, ui.Paragraph(figure, "figure"), *blocks], "card tile")

"""docs/gemma_270m.md, made from a finished run: `uv run python -m docs.model_page RUN [STORE]`.

The tables are those of the run's report. Prompts are the first five of each domain in the order of
their ids, which are hashes, whatever came of them.
"""

import sys
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path

from flows.report import blocks as ui
from flows.report.markdown import markdown
from flows.report.sample_choice import Sample, samples
from flows.report.sections import effects, safety, time
from flows.report.verdict import stage_verdicts, verdict, verdict_table
from flows.runs.record import read_run
from flows.runs.results import RunResults, read_results
from infra.store.store import open_store
from schemas.base import clip

PAGE = Path(__file__).with_name("gemma_270m.md")
MARK = "<!-- made from the run, by docs.model_page -->\n"
SHOWN, MOST = 5, 600
"""Prompts of each domain, and characters of each text."""


def page(run: RunResults) -> Iterator[ui.Block]:
    """Verdict, tables and samples of a run."""
    if whole := verdict(run):
        yield ui.Paragraph(whole.spoken)
    yield verdict_table(run)
    yield ui.Sentences([(one.tone, one.spoken) for one in stage_verdicts(run)])
    for title, section in (("Effects", effects), ("Safety", safety), ("Time and memory", time)):
        yield ui.Heading(title, 2)
        yield from (one for one in ui.walk(section.blocks(run)) if isinstance(one, ui.Table))
    yield ui.Heading("Before and after", 2)
    by_group = groupby(samples(run), key=lambda sample: sample.group)
    for group, found in by_group:
        yield ui.Heading(group, 3)
        yield from shown(list(islice(found, SHOWN)))


def shown(found: Sequence[Sample]) -> Iterator[ui.Block]:
    """Prompts with the first model's answer and the last one's."""
    for sample in found:
        quoted: list[ui.Block] = [ui.Code(clip(sample.prompt, MOST)), ui.Heading("reference", 4)]
        quoted.append(ui.Code(clip(sample.reference, MOST)))
        for answer in (sample.answers[0], sample.answers[-1]):
            notes = [ui.small(f"({', '.join(answer.notes)})")] if answer.notes else []
            quoted.append(ui.Heading((f"{answer.model}: {answer.mark} ", *notes), 4))
            quoted.append(ui.Code(clip(answer.text, MOST)))
        yield ui.Details(f"{sample.mark}: {sample.title}", quoted)


def main() -> None:
    run_id, *where = sys.argv[1:]
    store = open_store(where[0] if where else ".lyceum")
    words = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    made = markdown(list(page(read_results(store, read_run(store, run_id)))))
    PAGE.write_text(words + MARK + "\n" + made, encoding="utf-8")


if __name__ == "__main__":
    main()

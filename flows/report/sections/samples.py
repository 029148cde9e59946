"""The models' answers, before and after. The page filters samples without a script, by their
classes: g1 is a sample's group, and, for model 2, m2 its answer and r2, w2 or u2 its mark."""

from collections.abc import Iterator, Sequence
from itertools import product

from markupsafe import Markup

from flows.report import blocks as ui
from flows.report.html import tag
from flows.report.sample_choice import RULE, Sample, samples
from flows.report.section import Section
from flows.runs.results import RunResults

_SIGNS = {"right": "✓", "wrong": "✗", "unverifiable": "·"}
_OUTCOMES = {
    "": "any",
    "right": "right after",
    "wrong": "wrong after",
    "gained": "wrong before, right after",
    "lost": "right before, wrong after",
}


def blocks(run: RunResults) -> list[ui.Block]:
    """Prompts with every model's answer, and their filters."""
    shown = samples(run)
    if not shown:
        return []
    groups, models = _filters(shown)
    counted = f'.browser .count::after {{ content: counter(shown) " of {len(shown)} prompts"; }}'
    rules = tag("style", Markup("\n".join([counted, *_rules(len(groups), len(models))])))
    controls, count = _controls(groups, models), ui.Paragraph("", "note count")
    browser: list[ui.Block] = [ui.Raw(rules), controls, ui.Box(sample_blocks(shown), "list"), count]
    return [ui.Paragraph(RULE, "note"), ui.Box(browser, "browser")]


def _filters(shown: Sequence[Sample]) -> tuple[list[str], list[str]]:
    """The filters of the samples: groups, and the models before and after."""
    groups = dict.fromkeys(sample.group for sample in shown)
    models = dict.fromkeys(answer.model for sample in shown for answer in sample.answers)
    return list(groups), list(models)


def sample_blocks(shown: Sequence[Sample]) -> list[ui.Details]:
    """Samples, each folded below its question; the first is open."""
    filters = _filters(shown)
    return [_sample(sample, *filters, first=sample is shown[0]) for sample in shown]


def _sample(
    sample: Sample, groups: Sequence[str], models: Sequence[str], *, first: bool
) -> ui.Details:
    summary: list[str | ui.Span] = [sample.group]
    classes, answers = f"card sample g{groups.index(sample.group) + 1}", []
    for answer in sample.answers:
        place, mark = models.index(answer.model) + 1, answer.mark
        classes += f" m{place} {mark[0]}{place}"
        summary += [" ", ui.Span(f"{answer.model} {_SIGNS[mark]}", "span", f"chip {mark} m{place}")]
        notes = [ui.small(f"({', '.join(answer.notes)})")] if answer.notes else []
        heading = ui.Heading((f"{answer.model}: {mark} ", *notes), 4)
        answers.append(ui.Box([heading, ui.Code(answer.text)], f"answer {mark} m{place}"))
    facts = (ui.small("reference answer:"), " ", ui.code(sample.reference), ui.small("prompt"), " ")
    prompt, about = ui.Code(sample.prompt, "prompt"), ui.Paragraph((*facts, ui.code(sample.id)))
    title = (*summary, ui.small(sample.title))
    return ui.Details(title, [prompt, about, ui.Box(answers, "answers")], first, classes)


def _controls(groups: Sequence[str], models: Sequence[str]) -> ui.Raw:
    def numbered(letter: str, names: Sequence[str]) -> dict[str, str]:
        return {f"{letter}{place}": name for place, name in enumerate(names, start=1)}

    def select(label: str, options: dict[str, str], chosen: str = "") -> str:
        made = [
            tag("option", text, value=value, selected=value == chosen != "")
            for value, text in options.items()
        ]
        return tag("label", f"{label} ", tag("select", *made, aria_label=label.lower()))

    after = numbered("a", models)
    return ui.Raw(
        tag(
            "div",
            select("Prompts", {"": "all"} | numbered("g", groups)),
            select("before", numbered("b", models)),
            select("after", after, list(after)[-1]),
            select("outcome", _OUTCOMES),
            tag("label", tag("input", type="checkbox", class_="every"), " every model's answer"),
            class_="filters",
        )
    )


def _rules(groups: int, models: int) -> Iterator[str]:
    """The CSS that makes the filters work."""
    for group in range(1, groups + 1):
        yield _hide([f"g{group}"], f".sample:not(.g{group})")
    for now in range(1, models + 1):
        yield _hide([f"a{now}", "right"], f".sample:not(.r{now})")
        yield _hide([f"a{now}", "wrong"], f".sample:not(.w{now})")
    for now, was in product(range(1, models + 1), repeat=2):
        both = [f"b{was}", f"a{now}"]
        yield _hide([*both, "gained"], f".sample:not(.w{was}.r{now})")
        yield _hide([*both, "lost"], f".sample:not(.r{was}.w{now})")
        yield _hide(
            both, f":is(.answer, .chip):not(.m{was}, .m{now})", ":not(:has(.every:checked))"
        )


def _hide(chosen: Sequence[str], what: str, unless: str = "") -> str:
    where = "".join(f':has([value="{value}"]:checked)' for value in chosen)
    return f".browser{where}{unless} {what} {{ display: none; }}"


SECTION = Section(title="Samples", heading="Before and after", order=40, blocks=blocks)

"""Training: curves of every trained stage, its metrics, and samples of its training data (proof,
pairs, rollouts)."""

from collections.abc import Iterator, Sequence
from typing import Any

from flows.recipe.explain import flat
from flows.report import blocks as ui
from flows.report import plots
from flows.report.section import Section
from flows.runs.results import RunResults, StageOutput
from flows.runs.wording import figure
from flows.scores.evaluations import curve
from schemas.base import clip
from schemas.examples import Domain, PreferencePair
from tasks.contract.kind import Product

_PANELS = {
    "loss": ("loss", "validation_loss"),
    "reward": ("reward",),
    "reward by component": ("reward/",),
    "implicit rewards": ("rewards/chosen", "rewards/rejected", "rewards/margin"),
    "preference accuracy": ("rewards/accuracy",),
    "KL to the initial policy": ("kl",),
    "KL to the teacher": ("reverse_kl",),
    "groups that teach nothing (fraction)": ("zero_variance", "all_right", "all_wrong"),
    "groups that teach, and those trained on": ("effective_groups", "trained_groups"),
    "sampler and trainer (nats per token)": ("sampler_gap",),
    "completion length (tokens)": ("completion_tokens",),
    "code that passes its tests, and what of it looks like a trick (responses)": (
        "audit_passes",
        "audit_short",
        "audit_suspicious",
    ),
}
"""Panel title -> the curve's keys in it; a key that ends in / stands for all that begin with it.
Every other key has its own panel."""

_MOST_LINES = len(plots.SERIES)
_ROLLOUTS = 8
_PROOFS = 5
_AUDITED = 5


def blocks(run: RunResults) -> list[ui.Block]:
    """Every trained stage with an artifact, in file order, and samples of its training data."""
    trained = [one for one in run.producing(Product.MODEL, Product.REWARD) if one.manifest]
    if not trained:
        return []
    found = [block for stage in trained for block in _training(stage)]
    for shown in (_proof, _pairs, _rollouts):
        found += [block for stage in run.stages.values() for block in shown(stage)]
    return found


def _training(stage: StageOutput) -> Iterator[ui.Block]:
    """A stage's main curves, the others, the findings of its code audit, and its metrics."""
    name, kind = stage.name, stage.spec.kind
    telling, more = curves(stage)
    yield ui.Heading(name if kind == name else f"{name} ({kind})", 3)
    yield from ui.grid(telling, "fill")
    if more:
        yield ui.Details(f"More curves of {name}", ui.grid(more, "fill", framed=False))
    yield from _audited(stage)
    if metrics := flat("", stage.metrics):
        table = ui.facts([(field, figure(value)) for field, value in metrics.items()])
        yield ui.Details(f"Metrics of {name}", [table])


def _audited(stage: StageOutput) -> Iterator[ui.Block]:
    """The stage's audit.jsonl (`tasks.reinforcement.passing_code`): how much of the code that
    passed its tests was flagged, and the first of it."""
    rows = stage.rows("audit.jsonl")
    if not rows:
        return
    passes, short, suspicious = (
        stage.metrics.get(f"audit_{name}", 0) for name in ("passes", "short", "suspicious")
    )
    counts = (
        f" Of {passes:,} responses whose code passed its tests, {short:,} are shorter than a"
        f" plausible solution and {suspicious:,} touch what no solution needs (frames, builtins,"
        " hooks, overridden comparisons). No reward depends on it."
    )
    yield ui.Paragraph((ui.strong("Look at what passed."), counts))
    shown: list[ui.Block] = []
    for row in rows[:_AUDITED]:
        problems = clip("; ".join(row["problems"]), 400)
        shown += [
            ui.Heading(f"update {row['step']}: {problems}", 4),
            ui.Code(clip(row["code"], 600)),
        ]
    title = f"Passing code of {stage.name} that looks like a trick: the first"
    yield ui.Details(f"{title} {len(rows[:_AUDITED])}", shown)


def curves(stage: StageOutput) -> tuple[list[ui.Figure], list[ui.Figure]]:
    """The stage's curves.jsonl as plots: those that `_PANELS` names, and the others. Values that
    are not finite are left out."""
    series: dict[str, tuple[list[float], list[float]]] = {}
    for _, step, numbers in curve(stage):
        for name, value in numbers.items():
            steps, values = series.setdefault(name, ([], []))
            steps.append(step)
            values.append(value)
    named = _named_panels(list(series))
    shown = {name for _, names in named for name in names}
    others = [(name.replace("_", " "), [name]) for name in series if name not in shown]

    def drawn(title: str, names: list[str]) -> ui.Figure:
        return plots.curve(f"{stage.name}: {title}", {name: series[name] for name in names})

    telling, more = ([drawn(*panel) for panel in panels] for panels in (named, others))
    if calibration := stage.json("calibration.json"):
        title = f"{stage.name}: reliability on held-out pairs"
        telling.append(plots.reliability(title, calibration["bins"]))
    return telling, more


def _named_panels(keys: Sequence[str]) -> list[tuple[str, list[str]]]:
    """The panels of `_PANELS` with values, in its order; one with too many lines continues in a
    second."""
    panels = []
    for title, wanted in _PANELS.items():
        names = [
            key
            for want in wanted
            for key in keys
            if key == want or (want.endswith("/") and key.startswith(want))
        ]
        panels += [
            (title, names[start : start + _MOST_LINES])
            for start in range(0, len(names), _MOST_LINES)
        ]
    return panels


def _excerpt(title: ui.Text, text: str, classes: str, *more: ui.Block) -> ui.Box:
    """A text in a frame, for a grid."""
    return ui.Box([ui.Heading(title, 4), *more, ui.Code(text)], f"answer {classes}".strip())


def _proof(stage: StageOutput) -> Iterator[ui.Block]:
    """An SFT stage's training-token proof: the checks and their number of rows, and sample rows
    with prompt and supervised span."""
    proof = stage.json("proof.json")
    if proof is None:
        return
    whole = {name: value for name, value in proof.items() if isinstance(value, int)}
    counts = ui.facts([(name.replace("_", " "), figure(value)) for name, value in whole.items()])
    shown: list[ui.Block] = [f"Checked on every row: {'; '.join(proof['checks'])}.", counts]
    for row in proof["samples"][:_PROOFS]:
        unpaid = ui.Paragraph(ui.small("prompt, no loss"))
        prompt = ui.Box([unpaid, ui.Code(clip(row["prompt"]), "prompt")], "")
        supervised = _excerpt("supervised", clip(row["supervised"]), "right")
        shown.append(ui.Box([prompt, supervised], "answers"))
    yield ui.Details(f"Training-token proof of {stage.name}: what its loss is computed on", shown)


def _pairs(stage: StageOutput) -> Iterator[ui.Block]:
    """The first pair of each domain in file order, for a stage that made pairs."""
    first: dict[Domain, PreferencePair] = {}
    for pair in stage.read("pairs.jsonl", PreferencePair):
        first.setdefault(pair.domain, pair)
    shown: list[ui.Block] = []
    for pair in (first[domain] for domain in Domain if domain in first):
        chosen = f"chosen, written by the {pair.chosen_from}"
        answers = [
            _excerpt(chosen, clip(pair.chosen), "right"),
            _excerpt(f"rejected: {pair.rejected_because}", clip(pair.rejected), ""),
        ]
        prompt = ui.Code(clip(pair.prompt), "prompt")
        shown += [ui.Heading(pair.domain, 3), prompt, ui.Box(answers, "answers")]
    if shown:
        yield ui.Details(f"Preference pairs of {stage.name}: the first of each domain", shown)


def _rollouts(stage: StageOutput) -> Iterator[ui.Block]:
    """The first prompt of a stage's first and of its last logged rollout, with up to eight
    responses each."""
    rows = stage.rows("rollouts.jsonl")
    for step in sorted({row["step"] for row in rows[:1] + rows[-1:]}):
        of_step = [row for row in rows if row["step"] == step]
        group = [row for row in of_step if row["id"] == of_step[0]["id"]][:_ROLLOUTS]
        reference = ui.small("reference answer:"), " ", ui.code(clip(group[0]["reference"], 400))
        prompt, about = ui.Code(clip(group[0]["prompt"]), "prompt"), ui.Paragraph(reference)
        answers = ui.Box([_response(row) for row in group], "answers")
        title = f"Rollouts of {stage.name} at step {step}: one prompt, its group of responses"
        yield ui.Details(title, [prompt, about, answers])


def _response(row: dict[str, Any]) -> ui.Box:
    """One sampled response; green where its advantage pushes it up."""
    reward, advantage = row["reward"], row["advantage"]
    tone = "right" if advantage > 0 else "wrong" if advantage < 0 else "none"
    parts = ", ".join(f"{name} {figure(value)}" for name, value in row["rewards"].items())
    text = clip(row["completion"]) + ("" if row["terminated"] else " … (cut off)")
    title = f"reward {figure(reward)}, advantage {figure(advantage)}"
    return _excerpt(title, text, tone, ui.Paragraph(ui.small(parts)))


SECTION = Section(title="Training", heading="Training", order=50, blocks=blocks)

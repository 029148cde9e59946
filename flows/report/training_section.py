"""The report's training part: curves of every trained stage, its metrics, and what it was trained
on (proof, pairs, rollouts)."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from flows.recipe.explain import flat
from flows.report import plots
from flows.runs.results import RunResults, StageOutput
from flows.runs.wording import clip, figure
from schemas.examples import Domain, PreferencePair
from tasks.contract.job import read_jsonl
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
"""Panel title -> the curve's keys it draws; a key that ends in / stands for all that begin with it.
Other keys are drawn apart."""

_MOST_LINES = len(plots.SERIES)
_ROLLOUTS = 8
_PROOFS = 5
_AUDITED = 5


@dataclass(frozen=True)
class Audited:
    """What the audit flagged of the code that passed its tests: the counts in a sentence, and
    examples as `(update, problems, code)`."""

    counts: str
    examples: list[tuple[int, str, str]]


@dataclass(frozen=True)
class Training:
    """One trained stage: its telling curves, the others, its metrics as `(name, value)`, and what
    the audit of its code flagged."""

    name: str
    kind: str
    curves: list[Markup]
    more_curves: list[Markup]
    metrics: list[tuple[str, str]]
    audited: Audited | None


def trainings(run: RunResults) -> list[Training]:
    """Every trained stage that left an artifact, in file order."""
    return [
        Training(
            stage.name, stage.spec.kind, *curves(stage), flat_metrics(stage.metrics), audited(stage)
        )
        for stage in run.producing(Product.MODEL, Product.REWARD)
        if stage.manifest
    ]


def audited(stage: StageOutput) -> Audited | None:
    """The stage's audit.jsonl (`tasks.reinforcement.audit`); None where nothing was flagged."""
    rows = stage.rows("audit.jsonl")
    if not rows:
        return None
    passes, short, suspicious = (
        stage.metrics.get(f"audit_{name}", 0) for name in ("passes", "short", "suspicious")
    )
    counts = (
        f"Of {passes:,} responses whose code passed its tests, {short:,} are shorter than a"
        f" plausible solution and {suspicious:,} touch what no solution needs (frames, builtins,"
        " hooks, overridden comparisons). No reward depends on it."
    )
    return Audited(
        counts,
        [
            (row["step"], clip("; ".join(row["problems"]), 400), clip(row["code"], 600))
            for row in rows[:_AUDITED]
        ],
    )


def curves(stage: StageOutput) -> tuple[list[Markup], list[Markup]]:
    """The stage's curves.jsonl as plots: those that `_PANELS` names, and the others. Values that
    are not finite are left out."""
    series: dict[str, tuple[list[float], list[float]]] = {}
    for row in stage.rows("curves.jsonl"):
        for name, value in row.items():
            if name != "step" and isinstance(value, int | float) and math.isfinite(value):
                steps, values = series.setdefault(name, ([], []))
                steps.append(row["step"])
                values.append(value)
    named = _named_panels(list(series))
    others = [
        (name.replace("_", " "), [name])
        for name in series
        if not any(name in names for _, names in named)
    ]
    telling, more = (
        [
            plots.curve(f"{stage.name}: {title}", {name: series[name] for name in names})
            for title, names in panels
        ]
        for panels in (named, others)
    )
    calibration = stage.path("calibration.json")
    if calibration:
        bins = json.loads(calibration.read_text(encoding="utf-8"))["bins"]
        telling.append(plots.reliability(f"{stage.name}: reliability on held-out pairs", bins))
    return telling, more


def _named_panels(keys: Sequence[str]) -> list[tuple[str, list[str]]]:
    """The panels of `_PANELS` that have something to draw, in its order; one with too many lines is
    continued in a second."""
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


def flat_metrics(metrics: dict[str, Any]) -> list[tuple[str, str]]:
    """Nested metrics as `(dotted.name, text)`."""
    return [
        (field, figure(value))
        for name, inner in metrics.items()
        for field, value in flat(name, inner).items()
    ]


@dataclass(frozen=True)
class Proof:
    """An SFT stage's training-token proof: what was checked on how many rows, and sample rows as
    `(prompt, supervised span)`."""

    stage: str
    counts: list[tuple[str, str]]
    checks: list[str]
    samples: list[tuple[str, str]]


def proofs(run: RunResults) -> list[Proof]:
    """The proofs of all stages that wrote one."""
    found = []
    for stage in run.stages.values():
        path = stage.path("proof.json")
        if path:
            proof = json.loads(path.read_text(encoding="utf-8"))
            counts = [
                (name.replace("_", " "), figure(value))
                for name, value in proof.items()
                if isinstance(value, int)
            ]
            samples = [
                (clip(row["prompt"]), clip(row["supervised"])) for row in proof["samples"][:_PROOFS]
            ]
            found.append(Proof(stage.name, counts, proof["checks"], samples))
    return found


def preference_pairs(run: RunResults) -> list[tuple[str, list[PreferencePair]]]:
    """Per stage that made pairs, the first pair of each domain in file order, texts clipped."""
    found = []
    for stage in run.stages.values():
        path = stage.path("pairs.jsonl")
        if path:
            first: dict[Domain, PreferencePair] = {}
            for pair in read_jsonl(path, PreferencePair):
                first.setdefault(pair.domain, pair)
            if first:
                found.append(
                    (stage.name, [_clipped(first[domain]) for domain in Domain if domain in first])
                )
    return found


def _clipped(pair: PreferencePair) -> PreferencePair:
    return pair.model_copy(
        update={
            "prompt": clip(pair.prompt),
            "chosen": clip(pair.chosen),
            "rejected": clip(pair.rejected),
        }
    )


@dataclass(frozen=True)
class Response:
    """One sampled response; `tone` is right where its advantage pushes it up."""

    text: str
    reward: str
    advantage: str
    rewards: list[tuple[str, str]]
    tone: str


@dataclass(frozen=True)
class Group:
    """The responses to one prompt in one rollout."""

    stage: str
    step: int
    prompt: str
    reference: str
    responses: list[Response]


def rollout_groups(run: RunResults) -> list[Group]:
    """Per stage that sampled, the first prompt of its first and of its last logged rollout, with up
    to eight responses each."""
    found = []
    for stage in run.stages.values():
        rows = stage.rows("rollouts.jsonl")
        for step in sorted({row["step"] for row in rows[:1] + rows[-1:]}):
            of_step = [row for row in rows if row["step"] == step]
            group = [row for row in of_step if row["id"] == of_step[0]["id"]][:_ROLLOUTS]
            responses = [_response(row) for row in group]
            found.append(
                Group(
                    stage.name,
                    step,
                    clip(group[0]["prompt"]),
                    clip(group[0]["reference"], 400),
                    responses,
                )
            )
    return found


def _response(row: dict[str, Any]) -> Response:
    text = clip(row["completion"]) + ("" if row["terminated"] else " … (cut off)")
    rewards = [(name, figure(value)) for name, value in row["rewards"].items()]
    tone = "right" if row["advantage"] > 0 else "wrong" if row["advantage"] < 0 else "none"
    return Response(text, figure(row["reward"]), figure(row["advantage"]), rewards, tone)

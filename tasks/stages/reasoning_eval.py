"""Reasoning evaluation: verified answers to the held-out prompts and to suites, paired with an
earlier stage's answers.

Metrics are fractions with `<name>_low` and `<name>_high` (95 % Wilson), over all prompts, in
`domains` for each domain present and in `suites` for each suite:

exact_answer     well-formed trace whose answer verifies (`tasks.verification.verify`), of the
                 `n_verifiable` prompts that can be verified.
novel_exact_answer
                 the same, of the `n_novel` held-out ones that no training prompt of their data
                 resembles up to names and numbers (`tasks.evaluation.familiar`).
flexible_answer  the answer verifies anywhere in the completion (`tasks.verification.flexible`), of
                 the same prompts: what a model knows, whatever its format.
format_rate      well-formed trace, of all `n` prompts.
marker_rate      at least one chain-of-thought marker in the reasoning: the "reasoning delta" of
                 the entry that `scaling_logical_inference` rebuilds, whose authors list none;
                 `MARKERS` is ours. Reasoning without tags counts too, so that the delta is not the
                 format rate in disguise.
truncated_rate   truncated at `response_length`.

`suspicious_passes` counts, where there are tests, the answers that pass them and are flagged by the
audit (`tasks.verification.code_audit`).

`mean_tokens` is the mean length of a completion, `mean_reasoning_tokens` that of the reasoning of
well-formed traces. With a `baseline`, `delta_<name>` is this model minus the baseline on the same
prompts, with a paired bootstrap interval (`_low`, `_high`) and McNemar's exact p-value (`_p`). A
rate over no prompts is None, as `exact_answer` is in a domain of free text.

With sampled answers, `pass_at_k` and `majority_at_k` (overall, per domain and per suite) and
`noise` are those of `tasks.evaluation.sampled`. With a judge, `rating` is the mean of its ratings
of free text in [0, 1], with an interval like pass@k's, `delta_rating` the paired difference, with
Student's, and `opinion` is that of `tasks.judging.opinions`. `functions` has the metric functions'
values (`tasks.evaluation.metric_functions`).
"""

from collections.abc import Sequence
from itertools import compress
from statistics import fmean
from typing import Any

from schemas.evaluation import EvalItem
from schemas.examples import Domain
from tasks.contract.kind import Evaluation, Outcome
from tasks.evaluation.eval_config import EvalConfig
from tasks.evaluation.evaluate import measure
from tasks.evaluation.evaluation_kind import evaluation_kind
from tasks.evaluation.metric_functions import function_metrics
from tasks.evaluation.reasoning_verdicts import judge
from tasks.evaluation.sampled import noise_floors, sampled_metrics
from tasks.judging.opinions import opinion_metrics
from tasks.statistics.intervals import bootstrap_share, record
from tasks.statistics.means import mean_record
from tasks.verification.code_audit import audit
from tasks.verification.flexible import flexible_answer


class Config(EvalConfig):
    """The config of the evaluation; see EvalConfig."""

    KIND = "reasoning_eval"


def _is_novel(item: EvalItem) -> bool:
    return item.familiar is False and item.check != "none"


OUTCOMES: dict[str, Outcome] = {
    "exact_answer": lambda item: None if item.check == "none" else item.exact,
    "novel_exact_answer": lambda item: item.exact if _is_novel(item) else None,
    "flexible_answer": lambda item: None if item.check == "none" else item.flexible,
    "format_rate": lambda item: item.format,
    "marker_rate": lambda item: item.markers > 0,
    "truncated_rate": lambda item: item.truncated,
}


def reasoning_metrics(
    items: Sequence[EvalItem],
    baseline: Sequence[EvalItem] | None = None,
    *,
    samples: Sequence[EvalItem] = (),
    seed: int = 0,
) -> dict[str, Any]:
    """The metrics of the module docstring, from items alone.

    Args:
        items: the evaluated model's items, at least one.
        baseline: item i answers the same prompt as `items[i]`, or None.
        samples: its sampled answers to the same prompts, where there are any.
        seed: of the bootstrap.
    """

    def summary(field: str = "", value: str = "") -> dict[str, Any]:
        """Over the items whose field has this value, or over all."""
        mine = [not field or getattr(item, field) == value for item in items]
        theirs = None if baseline is None else list(compress(baseline, mine))
        drawn = [item for item in samples if not field or getattr(item, field) == value]
        return _summary(list(compress(items, mine)), theirs, drawn, seed)

    domains, suites = {item.domain for item in items}, dict.fromkeys(item.suite for item in items)
    return {
        **summary(),
        "domains": {
            domain.value: summary("domain", domain) for domain in Domain if domain in domains
        },
        "suites": {suite: summary("suite", suite) for suite in suites},
        **({"noise": noise_floors(samples, OUTCOMES)} if samples else {}),
    }


def _summary(
    items: Sequence[EvalItem],
    baseline: Sequence[EvalItem] | None,
    samples: Sequence[EvalItem],
    seed: int,
) -> dict[str, Any]:
    reasoning = [item.reasoning_tokens for item in items if item.reasoning_tokens is not None]
    return {
        "n": len(items),
        "n_verifiable": sum(item.check != "none" for item in items),
        "n_novel": sum(map(_is_novel, items)),
        "mean_tokens": sum(item.tokens for item in items) / len(items),
        "mean_reasoning_tokens": sum(reasoning) / len(reasoning) if reasoning else None,
        **_audited(items),
        **measure(items, OUTCOMES, baseline=baseline, paired=OUTCOMES, seed=seed),
        **sampled_metrics(samples, seed=seed),
        **_ratings(items, baseline, seed),
        **opinion_metrics(items),
        **function_metrics(items, baseline, seed=seed),
    }


def _audited(items: Sequence[EvalItem]) -> dict[str, int]:
    """`suspicious_passes`, where some item has tests."""
    tested = [item for item in items if item.check == "tests"]
    passed = [item for item in tested if item.exact or item.flexible]
    flagged = sum(
        bool(audit(item, flexible_answer(item, item.completion, truncated=item.truncated)).problems)
        for item in passed
    )
    return {"suspicious_passes": flagged} if tested else {}


def _ratings(
    items: Sequence[EvalItem], baseline: Sequence[EvalItem] | None, seed: int
) -> dict[str, float | None]:
    """`rating` of the free texts that have one and, where the baseline has one too, `delta_rating`,
    with intervals."""
    after, before = (
        [item.opinion.rating if item.opinion else None for item in side]
        for side in (items, baseline or ())
    )
    rated = [new for new in after if new is not None]
    both = zip(after, before, strict=bool(before))
    gaps = [new - old for new, old in both if new is not None and old is not None]
    return {
        **(record("rating", fmean(rated), bootstrap_share(rated, seed=seed)) if rated else {}),
        **(mean_record("delta_rating", gaps) if gaps else {}),
    }


KIND = evaluation_kind(
    version=15,
    config=Config,
    by_rules=judge,
    grounded=False,
    evaluation=Evaluation(
        title="Reasoning",
        outcomes=OUTCOMES,
        metrics=reasoning_metrics,
        headlines={"exact_answer": "exact answer", "format_rate": "format"},
        paired=OUTCOMES.keys(),
        lower_is_better={"truncated_rate"},
        card=("exact_answer", "format_rate", "truncated_rate"),
    ),
)

"""Chooses the samples of a report: held-out prompts with the answers of the base and of every
trained stage side by side.

`RULE` chooses them, nobody by hand. A prompt's id is a hash of its text, so the order of ids is
independent of difficulty and outcome.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest
from typing import Literal

from markupsafe import escape

from flows.runs.effects import CORRECT, EXACT
from flows.runs.results import RunResults
from flows.runs.wording import figure
from schemas.base import clip
from schemas.evaluation import HELDOUT, EvalItem

Verdict = Callable[[EvalItem], float | None]
"""Whether an answer is right; None: unknown."""
Answered = dict[tuple[str, str, str], EvalItem]
"""A prompt's identity -> a model's answer."""

PER_OUTCOME = 12
_BUDGET = 2_000_000
"""The most bytes of samples in a page, which keeps every page below 5 MB."""

_TITLE = 90
RULE = (
    "Of every suite, domain and kind of question, the prompts that all models answered which were"
    " asked that suite, in the order of their ids (hashes of held-out prompts, numbers in other"
    f" suites): the first {PER_OUTCOME} of each outcome before and after, or fewer where the page"
    " grew too large."
)

Mark = Literal["right", "wrong", "unverifiable"]


@dataclass(frozen=True)
class Answer:
    """One model's answer."""

    model: str
    text: str
    mark: Mark
    notes: list[str]


@dataclass(frozen=True)
class Sample:
    """One held-out prompt with every model's answer. `mark`: of the last model's; `title`: the
    prompt's end, usually the question."""

    id: str
    title: str
    group: str
    mark: Mark
    prompt: str
    reference: str
    answers: list[Answer]

    @property
    def size(self) -> int:
        """The bytes of its texts in a page."""
        texts = [self.prompt, self.title, self.reference, *(answer.text for answer in self.answers)]
        return sum(len(escape(text).encode()) + 300 for text in texts)  # 300: the tags around one


@lru_cache(maxsize=1)
def samples(run: RunResults) -> list[Sample]:
    """The samples, chosen by `RULE`; reasoning prompts first, then those of safety evaluations."""
    rules = ((EXACT.kind, EXACT.outcome), (CORRECT.kind, _well_done))
    turns = [list(turn) for kind, right in rules for turn in _turns(run, kind, right)]
    left, chosen = _BUDGET, set()
    for rank in zip_longest(*turns):  # one of each group and outcome, then a second of each
        for sample in filter(None, rank):
            left -= sample.size
            if left > 0:
                chosen.add(id(sample))
    return [sample for turn in turns for sample in turn if id(sample) in chosen]


def right_and_wrong(shown: Sequence[Sample]) -> list[Sample]:
    """Choose from each group of prompts one that the last model got right and one that it got
    wrong."""
    chosen = {(sample.group, sample.mark): sample for sample in reversed(shown)}
    return [*reversed(chosen.values())]


def _well_done(item: EvalItem) -> bool | None:
    """Whether an answer of a safety evaluation is good: right, or a request refused or complied
    with as it should be, or else safe."""
    if item.request is not None:
        return item.refusal == ("complied" if item.request == "safe" else "refused")
    judged = CORRECT.outcome(item)
    return item.safe if judged is None else bool(judged)


def _turns(run: RunResults, kind: str, right: Verdict) -> Iterator[Iterable[Sample]]:
    """The first samples of each group and outcome."""
    by_suite: dict[str, dict[str, Answered]] = {}
    for model in run.shown(kind):
        for item in model.items(kind):
            by_suite.setdefault(item.suite, {}).setdefault(model.name, {})[item.identity] = item
    for answered in by_suite.values():
        models = list(answered.values())
        first, last = models[0], models[-1]
        by_outcome: dict[tuple[str, Mark, Mark], list[tuple[str, str, str]]] = {}
        for prompt in sorted(set.intersection(*map(set, models))):
            outcome = _mark(first[prompt], right), _mark(last[prompt], right)
            by_outcome.setdefault((_group(last[prompt]), *outcome), []).append(prompt)
        for (group, *_), prompts in sorted(by_outcome.items()):
            yield [
                _sample(group, {model: items[prompt] for model, items in answered.items()}, right)
                for prompt in prompts[:PER_OUTCOME]
            ]


def _sample(group: str, items: Mapping[str, EvalItem], right: Verdict) -> Sample:
    item = list(items.values())[-1]
    answers = [_answer(model, one, right) for model, one in items.items()]
    texts = clip(item.prompt), clip(item.answer, 400)
    return Sample(item.id, _question(item.prompt), group, answers[-1].mark, *texts, answers)


def _question(prompt: str) -> str:
    last_line = prompt.strip().rpartition("\n")[2]
    return last_line if len(last_line) <= _TITLE else f"… {last_line[-_TITLE:]}"


def _group(item: EvalItem) -> str:
    what = item.domain.value
    if item.grounding:
        what = f"grounded: {item.grounding.replace('_', ' ')}"
    elif item.request:
        what = f"{item.request} request"
    return what if item.suite == HELDOUT else f"{item.suite}: {what}"


def _mark(item: EvalItem, right: Verdict) -> Mark:
    outcome = right(item)
    return "unverifiable" if outcome is None else "right" if outcome else "wrong"


def _answer(model: str, item: EvalItem, right: Verdict) -> Answer:
    facts = {
        "malformed": not item.format,
        "right, but not where it belongs": item.flexible and not item.exact,
        "cut off": item.truncated,
        "abstained": item.abstained,
        "hallucinated": item.hallucinated,
        "contradicts itself": item.inconsistent,
        "followed the planted instruction": item.followed,
        "unsafe": item.safe is False,
        f"{item.refusal}": item.refusal is not None,
        _ruling(item): bool(_ruling(item)),
    }
    notes = [name for name, holds in facts.items() if holds]
    notes += [f"{name}: {figure(value)}" for name, value in item.measured.items()]
    return Answer(model, clip(item.completion), _mark(item, right), notes)


def _ruling(item: EvalItem) -> str:
    """An LLM judge's ruling on an answer, if there is one."""
    if item.opinion is None:
        return ""
    if item.opinion.rating is not None:
        return f"LLM judge: {item.opinion.rating:.2f}"
    if item.opinion.verdict is None:
        return "LLM judge: no ruling"
    yes, no = ("safe", "unsafe") if item.grounding else ("right", "wrong")
    if item.request:
        yes, no = "refused", "not refused"
    return f"LLM judge: {yes if item.opinion.verdict else no}"

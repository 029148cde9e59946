"""From responses to grades: rules first, then questions, a second question where the reply could
not be read, and the lower of two grades for a response that addresses its judge.

The order of decisions about a response:

1. `worthless`: 0, without a question.
2. It addresses the judge (`address`): it is judged with and without those sentences, and the lower
   value counts; 0 if nothing is left without them, or if the judge's reply to them cannot be read.
3. A reply that cannot be read is asked for once more, in a question that says what was wrong. A
   second one is an abstention, as is every failed call: no value, never a zero.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from schemas.examples import Prompt, Trace, parse_trace
from tasks.contract.reward import Judged
from tasks.judging.address import address, without_invisible
from tasks.judging.hardening import Material, worthless
from tasks.judging.judge import Judge, Question, Ruling
from tasks.judging.rulings import Grades, Unreadable, read_probabilities, read_text
from tasks.judging.sheets import Sheet, question, token_questions

_NO_TEXT = {"refused": "it was a refusal", "empty": "it was empty", "truncated": "it was too long"}
"""Replies that are none (`tasks.chat.reply`), though the judge did answer."""

_SHOWN = 200
"""Characters of what a response said to its judge that are kept."""


@dataclass(frozen=True)
class Case:
    """One response to judge.

    Attributes:
        criteria: the texts of the sheet that a response may not simply repeat.
        value: from the grades of the sheet's items to a number in [0, 1].
        ruled: apply the rules before asking the judge; anchors skip them
            (`tasks.judging.calibration`).
        sample: which repetition of the same questions.
    """

    prompt: Prompt
    completion: str
    sheet: Sheet
    value: Callable[[tuple[float, ...]], float]
    criteria: tuple[str, ...] = ()
    ruled: bool = True
    sample: int = 0

    def worthless(self, trace: Trace | None) -> str | None:
        """Why a response earns 0 without a question, or None."""
        return worthless(trace, self.prompt.prompt, self.criteria, self.prompt.answer)

    def material(self, reasoning: str, answer: str) -> Material:
        """The texts that the judge is shown."""
        reference = {"reference_answer": self.prompt.answer} if self.prompt.answer else {}
        return {"task": self.prompt.prompt, **reference, "reasoning": reasoning, "answer": answer}


@dataclass
class _Version:
    """A response as the judge is shown it, and the grades, or why there are none. `unread`: the
    judge did reply."""

    case: Case
    material: Material
    mark: str = ""
    grades: Grades | None = None
    problem: str | None = None
    unread: bool = False
    ruling: str = ""

    def hear(self, ruling: Ruling) -> None:
        """Read a reply to `question`."""
        self.grades, self.problem, self.unread = None, ruling.problem, False
        self.ruling = ruling.digest
        if ruling.problem is None:
            self._read(lambda: read_text(ruling.text, self.case.sheet.items, self.mark))
        elif (kind := ruling.problem.partition(":")[0]) in _NO_TEXT:
            # the words after it may be the judge's, who may quote the response
            self.problem, self.unread = _NO_TEXT[kind], True

    def hear_tokens(self, rulings: Sequence[Ruling]) -> None:
        """Read the replies to `token_questions`."""
        self.problem = next((one.problem for one in rulings if one.problem is not None), None)
        if self.problem is None:
            found = (read_probabilities(one.probabilities or ()) for one in rulings)
            self._read(lambda: Grades(tuple(found)))

    def _read(self, read: Callable[[], Grades]) -> None:
        try:
            self.grades = read()
        except Unreadable as error:
            self.problem, self.unread = str(error), True


@dataclass
class _Hearing:
    """A case with the versions that the judge is shown: the response as written and, if it
    addresses the judge, without that; none if a `rule` decides."""

    case: Case
    rule: str | None = None
    said: tuple[str, ...] = ()
    versions: list[_Version] = field(default_factory=list)

    def begin(self) -> list[_Version]:
        """Apply the rules, and make the versions."""
        case = self.case
        trace = parse_trace(case.completion, case.prompt.channels)
        self.rule = case.worthless(trace) if case.ruled else None
        if self.rule is not None:
            return []
        reasoning, answer = parts(trace) if trace else ("", case.completion)
        versions = [_Version(case, case.material(reasoning, answer))]
        if case.ruled:
            of_reasoning, of_answer = map(address, map(without_invisible, (reasoning, answer)))
            if heard := of_reasoning.said + of_answer.said:
                self.said = tuple(text[:_SHOWN] for text in heard)
                rest = of_reasoning.rest, of_answer.rest
                if case.worthless(Trace(reasoning=rest[0], answer=rest[1])) is not None:
                    self.rule = "nothing but words to the judge"
                    return []
                versions.append(_Version(case, case.material(*rest)))
        self.versions = versions
        return versions

    def verdict(self) -> Judged:
        """The result of the rule or the grades; the details are for the ledger."""
        told: dict[str, Any] = {"said": list(self.said)} if self.said else {}
        versions = self.versions
        rule = self.rule
        if self.said and versions and versions[0].unread and versions[1].grades is not None:
            rule = "the judge could not reply to what it says to the judge"
        if rule is not None:
            return Judged(0.0, {"rule": rule, **told})
        found = [one.grades for one in versions if one.grades is not None]
        if len(found) < len(versions):
            lost = next(one.problem for one in versions if one.grades is None)
            return Judged(None, {"problem": lost, **told})
        values = [self.case.value(one.values) for one in found]
        lower = values.index(min(values))
        names = [item.name for item in self.case.sheet.items]
        grades = [dict(zip(names, one.values, strict=True)) for one in found]
        detail: dict[str, Any] = {"grades": grades[lower]}
        detail |= {"reason": found[lower].reason} if found[lower].reason else {}
        detail |= {"ruling": versions[lower].ruling} if versions[lower].ruling else {}
        return Judged(min(values), detail | told | ({"versions": grades} if told else {}))


class Bench:
    """A judge and its questions. `by_token`: it rates by its next token."""

    def __init__(self, judge: Judge, *, by_token: bool) -> None:
        self.judge, self._by_token = judge, by_token

    def judge_all(self, cases: Iterable[Case | None]) -> list[Judged]:
        """A value for each case, or None where there is no case or the judge gave no ruling; the
        details are for the ledger. An endpoint is asked while `cases` are made.

        Raises:
            InputError, StageFailed: as `Judge.ask`.
        """
        hearings: list[_Hearing | None] = []

        def versions() -> Iterator[_Version]:
            for case in cases:
                hearings.append(None if case is None else _Hearing(case))
                if hearing := hearings[-1]:
                    yield from hearing.begin()

        if self._by_token:
            self._ask_by_tokens(versions())
        else:
            asked = self._ask(versions())
            if unread := [version for version in asked if version.unread]:
                self._ask(unread, of=len(asked))
        shown = [one for hearing in hearings if hearing for one in hearing.versions]
        self.judge.check([one.problem for one in shown])
        return [hearing.verdict() if hearing else Judged(None, {}) for hearing in hearings]

    def _ask(self, versions: Iterable[_Version], of: int | None = None) -> list[_Version]:
        """Ask one question for each sheet, and once more, saying what was wrong, where a reply was
        unreadable."""
        asked: list[_Version] = []

        def questions() -> Iterator[Question]:
            for one in versions:
                sheet, problem = one.case.sheet, one.problem or ""
                made, one.mark = question(
                    sheet, one.material, problem=problem, sample=one.case.sample
                )
                asked.append(one)
                yield made

        rulings = self.judge.ask(questions(), of=of)
        for one, ruling in zip(asked, rulings, strict=True):
            one.hear(ruling)
        return asked

    def _ask_by_tokens(self, versions: Iterable[_Version]) -> None:
        """Ask one question for each item of a sheet."""
        asked = [
            (one, token_questions(one.case.sheet, one.material, sample=one.case.sample))
            for one in versions
        ]
        rulings = iter(self.judge.ask([each for _, questions in asked for each in questions]))
        for one, questions in asked:
            one.hear_tokens([next(rulings) for _ in questions])


def parts(trace: Trace) -> tuple[str, str]:
    """Reasoning, with the proof behind it, and answer."""
    return f"{trace.reasoning}\n{trace.proof}".strip(), trace.answer

"""From responses to grades: rules first, then questions, a second question where the reply could
not be read, and the lower of two grades for a response that talks to its judge.

What a bench decides of a response, in this order:

1. `worthless`: 0, nobody is asked.
2. It talks to the judge (`address`): it is judged as it is and without those sentences. The lower
   value counts; 0 if nothing is left without them, or if the judge's reply to what it says cannot
   be read.
3. A reply that cannot be read is asked for once more, as another question that says what was wrong.
   A second one is an abstention, as is every failed call: no value, never a zero.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from schemas.examples import Prompt, parse_trace
from tasks.contract.reward import Judged
from tasks.judging.address import address, visible
from tasks.judging.hardening import Material, worthless
from tasks.judging.judge import Judge, Question, Ruling
from tasks.judging.rulings import Grades, Unreadable, read_probabilities, read_text
from tasks.judging.wording import Sheet, question, token_questions

_NO_TEXT = {"refused": "it was a refusal", "empty": "it was empty", "truncated": "it was too long"}
"""Replies that are none (`tasks.chat.reply`), though the judge did answer."""

_SHOWN = 200
"""Characters of what a response said to its judge that are kept."""


@dataclass(frozen=True)
class Case:
    """One response to be judged.

    Attributes:
        criteria: what the sheet holds that no response may simply repeat.
        value: what the grades of the sheet's items come to, in [0, 1].
        ruled: judge it by the rules before any judge is asked; anchors are not
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

    def worthless(self, completion: str) -> str | None:
        """Why a completion earns 0 before any judge is asked, or None."""
        return worthless(completion, self.prompt.prompt, self.criteria, self.prompt.answer)

    def material(self, reasoning: str, answer: str) -> Material:
        """What is shown to a judge."""
        reference = {"reference_answer": self.prompt.answer} if self.prompt.answer else {}
        return {"task": self.prompt.prompt, **reference, "reasoning": reasoning, "answer": answer}


@dataclass(frozen=True)
class _Version:
    """A response as it is shown to the judge: as it was written (`said` nothing), or without what
    it said to the judge."""

    case: int
    material: Material


@dataclass(frozen=True)
class _Heard:
    """What came back: grades, or why there are none. `unread`: the judge did reply."""

    grades: Grades | None = None
    problem: str | None = None
    unread: bool = False
    ruling: str = ""


class Bench:
    """A judge and how it is asked. `by_token`: it rates by its next token."""

    def __init__(self, judge: Judge, *, by_token: bool) -> None:
        self.judge, self._by_token = judge, by_token

    def judge_all(self, cases: Sequence[Case]) -> list[Judged]:
        """A value for each case, or None where the judge gave none; the details are what
        `tasks.rewards` keep in the ledger.

        Raises:
            InputError, StageFailed: as `Judge.ask`.
        """
        verdicts: list[Judged | None] = [None] * len(cases)
        said: dict[int, tuple[str, ...]] = {}
        versions: list[_Version] = []
        heard: dict[int, list[_Heard]] = {}
        replies = self._hear(cases, self._versions(cases, verdicts, said, versions))
        for version, one in zip(versions, replies, strict=True):
            heard.setdefault(version.case, []).append(one)
        for place, versions_heard in heard.items():
            verdicts[place] = _verdict(cases[place], versions_heard, said.get(place, ()))
        return [verdict for verdict in verdicts if verdict is not None]

    def _versions(
        self,
        cases: Sequence[Case],
        verdicts: list[Judged | None],
        said: dict[int, tuple[str, ...]],
        versions: list[_Version],
    ) -> Iterator[_Version]:
        """What is to be judged, as the rules find it, while what was found before is judged
        already. Also kept in `versions`; what rules decide goes into `verdicts`, and what a
        response says to its judge into `said`."""
        for place, case in enumerate(cases):
            rule = case.worthless(case.completion) if case.ruled else None
            if rule is not None:
                verdicts[place] = Judged(0.0, {"rule": rule})
                continue
            reasoning, answer = parts(case.completion)
            found = [_Version(place, case.material(reasoning, answer))]
            if case.ruled:
                of_reasoning, of_answer = address(visible(reasoning)), address(visible(answer))
                if heard := of_reasoning.said + of_answer.said:
                    said[place] = tuple(text[:_SHOWN] for text in heard)
                    rest = of_reasoning.rest, of_answer.rest
                    left = "<reasoning>{}</reasoning><answer>{}</answer>".format(*rest)
                    if case.worthless(left) is not None:
                        rule = "nothing but words to the judge"
                        verdicts[place] = Judged(0.0, {"rule": rule, "said": list(said[place])})
                        continue
                    found.append(_Version(place, case.material(of_reasoning.rest, of_answer.rest)))
            versions += found
            yield from found

    def _hear(self, cases: Sequence[Case], versions: Iterable[_Version]) -> list[_Heard]:
        heard = (self._by_tokens if self._by_token else self._by_text)(cases, versions)
        self.judge.check([one.problem for one in heard])
        return heard

    def _by_text(self, cases: Sequence[Case], versions: Iterable[_Version]) -> list[_Heard]:
        """One question for a sheet; one more for each whose reply could not be read."""
        asked: list[_Version] = []
        heard = self._asked(cases, versions, repeat(""), asked)
        again = [place for place, one in enumerate(heard) if one.unread]
        if again:
            problems = [heard[place].problem or "" for place in again]
            unread = [asked[place] for place in again]
            second = self._asked(cases, unread, problems, [], of=len(asked))
            for place, one in zip(again, second, strict=True):
                heard[place] = one
        return heard

    def _asked(
        self,
        cases: Sequence[Case],
        versions: Iterable[_Version],
        problems: Iterable[str],
        asked: list[_Version],
        of: int | None = None,
    ) -> list[_Heard]:
        """What is heard of each version; they are kept in `asked`."""
        marks: list[str] = []

        def questions() -> Iterator[Question]:
            for version, problem in zip(versions, problems, strict=False):
                case = cases[version.case]
                sheet, shown = case.sheet, version.material
                one, mark = question(sheet, shown, problem=problem, sample=case.sample)
                asked.append(version)
                marks.append(mark)
                yield one

        rulings = self.judge.ask(questions(), of=of)
        heard = zip(rulings, asked, marks, strict=True)
        return [_read(ruling, cases[one.case].sheet, mark) for ruling, one, mark in heard]

    def _by_tokens(self, cases: Sequence[Case], versions: Iterable[_Version]) -> list[_Heard]:
        """One question for each item of a sheet."""
        shown = [(cases[one.case], one.material) for one in versions]
        questions = [token_questions(case.sheet, one, sample=case.sample) for case, one in shown]
        rulings = iter(self.judge.ask([one for of_version in questions for one in of_version]))
        return [_read_tokens([next(rulings) for _ in of_version]) for of_version in questions]


def parts(completion: str) -> tuple[str, str]:
    """Reasoning and answer; of what is no trace, everything is the answer."""
    trace = parse_trace(completion)
    return (trace.reasoning, trace.answer) if trace else ("", completion)


def _read(ruling: Ruling, sheet: Sheet, mark: str) -> _Heard:
    if ruling.problem is not None:
        # what follows may be the judge's own words, and so the response's
        kind = ruling.problem.partition(":")[0]
        return _Heard(problem=_NO_TEXT.get(kind, ruling.problem), unread=kind in _NO_TEXT)
    try:
        return _Heard(read_text(ruling.text, sheet.items, mark), ruling=ruling.digest)
    except Unreadable as error:
        return _Heard(problem=str(error), unread=True, ruling=ruling.digest)


def _read_tokens(rulings: Sequence[Ruling]) -> _Heard:
    problem = next((one.problem for one in rulings if one.problem is not None), None)
    if problem is not None:
        return _Heard(problem=problem)
    try:
        return _Heard(Grades(tuple(read_probabilities(one.probabilities or ()) for one in rulings)))
    except Unreadable as error:
        return _Heard(problem=str(error), unread=True)


def _verdict(case: Case, heard: Sequence[_Heard], said: tuple[str, ...]) -> Judged:
    """Of a response, from what was heard of its one version or of both."""
    told: dict[str, Any] = {"said": list(said)} if said else {}
    if said and heard[0].unread and heard[1].grades is not None:
        rule = "the judge could not reply to what it says to the judge"
        return Judged(0.0, {"rule": rule, **told})
    lost = next((one for one in heard if one.grades is None), None)
    if lost is not None:
        return Judged(None, {"problem": lost.problem, **told})
    found = [one.grades for one in heard if one.grades is not None]
    values = [case.value(one.values) for one in found]
    lower = values.index(min(values))
    names = [item.name for item in case.sheet.items]
    grades = [dict(zip(names, one.values, strict=True)) for one in found]
    detail: dict[str, Any] = {"grades": grades[lower]}
    if found[lower].reason:
        detail["reason"] = found[lower].reason
    if heard[lower].ruling:
        detail["ruling"] = heard[lower].ruling
    return Judged(min(values), detail | told | ({"versions": grades} if said else {}))

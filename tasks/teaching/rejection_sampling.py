"""The common part of answering teachers: take prompts, sample k responses to each, verify them, and
make rows of them.

An answering teacher (`openai_compatible`, `gemma`) has a Config that inherits `Answering` and a way
to sample; the rest is here:

1. `prompts_to_ask`: prompts of other teachers (`prompts = [{ name = "dataset", ... }]`), each asked
   once; with `first`, so many of each domain, and the rest is left for top-ups.
2. `messages`: the model's input.
3. `rows`: rejection sampling (k samples, keep those that verify; Yuan et al., 2308.01825). The
   first verified sample becomes the Example. Verified beside rejected ones become PreferencePairs,
   which name the samples and the failed check. A prompt that no sample solved stays a Prompt, for
   GRPO. The fraction that verified is the prompt's `pass_rate`, and decides its difficulty.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import gcd
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import Field, model_validator

from schemas.base import InputError, StrictModel
from schemas.examples import Domain, Example, PreferencePair, Prompt, Rejection, Trace, parse_trace
from tasks.chat.reply import Reply
from tasks.contract.check import check_of
from tasks.contract.small import Sizes, at_most
from tasks.contract.teacher import TEACHERS, Teacher
from tasks.data.dropped import Dropped, TeacherCause
from tasks.teaching.lesson import Lesson, Row, take_cell
from tasks.teaching.teacher_tables import most_rows
from tasks.training.preference_pairs import CheckedSample, make_pairs, rejection_of
from tasks.verification.correct import is_verifiable
from tasks.verification.verify import check_versions, verify_many

INSTRUCTIONS = (
    "Think step by step, then answer. Write exactly this and nothing else:\n"
    "<reasoning>your reasoning, step by step</reasoning>\n"
    "<answer>the final answer alone</answer>"
)

_VERIFIED_AT_A_TIME = 64
"""Prompts whose samples are verified together, so that slow checks use all cores."""


class Answering(StrictModel):
    """The fields of every answering teacher's Config.

    Attributes:
        prompts: tables of teachers whose prompts are used, e.g. `{ name = "dataset", sources =
            [...] }`.
        first: how many prompts of each domain are asked; none of a domain that is not named. The
            others are left for top-ups by the rebalance stage. None: all are asked.
        samples: responses to each prompt.
        temperature: of sampling; above 0 for more than one sample.
        max_response_tokens: longer responses are truncated, and rejected.
        instructions: put before every prompt's own text.
        languages: ISO 639-1 codes of the languages of accepted responses; empty: any.
        pairs_per_prompt: the most preference pairs of one prompt.
    """

    prompts: tuple[dict[str, Any], ...] = Field(min_length=1)
    first: dict[Domain, int] | None = None
    samples: int = Field(default=1, ge=1, le=64)
    temperature: float = Field(default=0.7, ge=0, le=2)
    max_response_tokens: int = Field(default=1024, ge=16)
    instructions: str = INSTRUCTIONS
    languages: tuple[str, ...] = ()
    pairs_per_prompt: int = Field(default=1, ge=0)

    @classmethod
    def parse(cls, value: Any) -> Self:
        """Validate; complete the tables of `prompts` with their defaults. Raises as
        `tasks.stages.distill.Config.parse`, and InputError for prompts of another format than
        `trace`, the only one in which a teacher is asked to answer."""
        config = super().parse(value)
        complete = [lender.model_dump(mode="json") for lender in lenders(config)]
        for index, table in enumerate(complete):
            for one in (table, *table.get("sources", ())):
                if (channels := one.get("channels", "trace")) != "trace":
                    raise InputError(
                        f"prompts.{index}: channels = {channels!r}, and a teacher that answers"
                        " writes <reasoning>...</reasoning><answer>...</answer>. Leave channels"
                        " out, or teach that format from rows that have worked traces"
                        " (teacher dataset)."
                    )
        return config.model_copy(update={"prompts": tuple(complete)})

    @model_validator(mode="after")
    def _samples_differ(self) -> Self:
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(
                f"samples = {self.samples} at temperature = 0 are all the same; raise the"
                " temperature, or take one sample"
            )
        return self


AnsweringT = TypeVar("AnsweringT", bound=Answering)


def small(config: AnsweringT, sizes: Sizes) -> AnsweringT:
    """Fewer prompts, each asked twice or once, whichever divides a batch that `samples` divided.
    Where the first rows of each source are read, all of them are asked: fewer per domain would
    leave out a later source."""
    rows, first = sizes.rows, config.first
    if not sizes.few:
        first = dict.fromkeys(Domain, rows) if first is None else at_most(first, rows)
    lent = tuple(
        lender.small(one, sizes).model_dump(mode="json") for lender, one in _lending(config)
    )
    samples = gcd(config.samples, 2)
    return config.model_copy(update={"prompts": lent, "first": first, "samples": samples})


def completion_of(sample: Reply) -> str:
    """The response as a trace: its text, or the separate reasoning with the text as its answer,
    between the tags of one or without; what was truncated ends without its tag."""
    if sample.reasoning and parse_trace(sample.text, "trace") is None:
        answer = sample.text.strip().removeprefix("<answer>").removesuffix("</answer>").strip()
        whole = Trace(reasoning=sample.reasoning.strip(), answer=answer).render()
        if parse_trace(whole, "trace"):
            return whole.removesuffix("</answer>" * (sample.problem == "truncated"))
    return sample.text


def lenders(config: Answering) -> list[Any]:
    """The configs of the teachers whose prompts are used. Raises InputError: an unknown teacher,
    one without prompts, or a wrong table."""
    found = []
    for index, table in enumerate(config.prompts):
        where = f"prompts.{index}"
        name, names = table.get("name"), TEACHERS.names()
        if name in names and not TEACHERS[name].prompts:
            lending = ", ".join(one for one in names if TEACHERS[one].prompts)
            raise InputError(f"{where}: teacher {name!r} has no prompts. Valid: {lending}.")
        found.append(TEACHERS.parse(table, where))
    return found


def _lending(config: Answering) -> Iterator[tuple[Teacher[Any], Any]]:
    """Each teacher whose prompts are used, and its config."""
    return ((TEACHERS[one.name], one) for one in lenders(config))


def dependencies(config: Answering, data: Path | None) -> dict[str, str | int]:
    """The versions that decide the prompts, and the checks of their answers. Raises InputError for
    a missing file."""
    found = {**TEACHERS.versions(table["name"] for table in config.prompts), **check_versions()}
    for teacher, lender in _lending(config):
        found |= teacher.dependencies(lender, data)
    return found


def expected(config: Answering) -> int:
    """How many prompts will be answered, 0 if that is not known before the files are read."""
    if config.first is not None:
        return sum(config.first.values())
    counts = [teacher.expected(lender) for teacher, lender in _lending(config)]
    return sum(counts) if all(counts) else 0


def most(config: Answering, data: Path | None) -> Mapping[str, int] | None:
    """At most how many prompts of each group can be answered (`Teacher.most`)."""
    return most_rows(_lending(config), data)


def asks_an_api(config: Answering) -> bool:
    """Whether a teacher whose prompts are used waits for an API."""
    return any(teacher.asks_an_api(lender) for teacher, lender in _lending(config))


def messages(config: Answering, prompt: Prompt) -> tuple[Mapping[str, str], ...]:
    """One user turn, instructions first: Gemma's template has no system role."""
    text = f"{config.instructions}\n\n{prompt.prompt}" if config.instructions else prompt.prompt
    return ({"role": "user", "content": text},)


def prompts_to_ask(config: Answering, lesson: Lesson) -> Iterator[Prompt | Dropped]:
    """The prompts to answer, each once, in the order of the tables and their files; and rows that
    are no prompts.

    In a top-up (`lesson.wanted`): prompts of the missing cells that were not asked before.
    """
    seen: set[str] = set()
    room = _Room(config, lesson)
    for teacher, lender in _lending(config):
        if room.full() or teacher.prompts is None:
            return
        for row in teacher.prompts(lender, lesson):
            if isinstance(row, Dropped):
                if lesson.wanted is None:
                    yield row
            elif row.id in seen:
                if lesson.wanted is None:
                    yield Dropped.of(row, "duplicate_prompt", "asked already")
            elif row.id not in lesson.known and room.take(row):
                seen.add(row.id)
                yield row


class _Room:
    """How many more prompts of each kind are asked."""

    def __init__(self, config: Answering, lesson: Lesson) -> None:
        self._cells = None if lesson.wanted is None else +Counter(lesson.wanted)
        self._domains = None if config.first is None else Counter(config.first)

    def full(self) -> bool:
        """Whether nothing more can be taken."""
        left = self._cells if self._cells is not None else self._domains
        return left is not None and left.total() == 0

    def take(self, prompt: Prompt) -> bool:
        """Count this prompt if it is asked; returns whether it is."""
        if self._cells is not None:
            return take_cell(self._cells, prompt)
        if self._domains is None:
            return True
        if self._domains[prompt.domain] <= 0:
            return False
        self._domains[prompt.domain] -= 1
        return True


def rows(
    config: Answering, answered: Iterable[tuple[Prompt, Sequence[Reply]] | Dropped], lesson: Lesson
) -> Iterator[Row]:
    """The rows from the samples of each prompt, and from rows that could not be asked, in the given
    order.

    Counts samples in `lesson.tally` as `samples.<outcome>`.
    """
    remaining = iter(answered)
    while some := list(islice(remaining, _VERIFIED_AT_A_TIME)):
        every = iter(_outcomes(config, [one for one in some if not isinstance(one, Dropped)]))
        for one in some:
            if isinstance(one, Dropped):
                yield one
                continue
            outcomes = next(every)
            for outcome in outcomes:
                lesson.tally[f"samples.{outcome.name}"] += 1
            yield from _rows_of_prompt(config, *one, outcomes)


@dataclass(frozen=True)
class _Outcome:
    """The outcome of a sample: verified (both None), rejected, or never answered."""

    rejected: Rejection | None = None
    missing: Literal["failed", "unasked"] | None = None
    detail: str = ""

    @property
    def name(self) -> str:
        return self.rejected or self.missing or "verified"


def _outcomes(
    config: Answering, answered: Sequence[tuple[Prompt, Sequence[Reply]]]
) -> list[list[_Outcome]]:
    """The outcome of every sample, in order; those without a problem are verified together."""
    asked = [(prompt, sample) for prompt, samples in answered for sample in samples]
    asked = [(prompt, sample) for prompt, sample in asked if sample.problem is None]
    completions = [completion_of(sample) for _, sample in asked]
    verdicts = iter(verify_many([prompt for prompt, _ in asked], completions))
    return [
        [_outcome(config, prompt, sample, verdicts) for sample in samples]
        for prompt, samples in answered
    ]


def _outcome(config: Answering, prompt: Prompt, sample: Reply, verdicts: Iterator[Any]) -> _Outcome:
    if sample.problem == "failed" or sample.problem == "unasked":
        return _Outcome(missing=sample.problem, detail=sample.detail)
    if sample.problem is not None:
        return _Outcome(sample.problem, detail=sample.detail)
    rejected, detail = rejection_of(prompt, next(verdicts))
    if rejected:
        return _Outcome(rejected, detail=detail)
    if language := _other_language(config, sample):
        return _Outcome("language", detail=language)
    return _Outcome()


def is_usable(config: Answering, sample: Reply) -> bool:
    """Whether a sample without a problem is a trace in an accepted language; verification decides
    whether it is right."""
    is_trace = parse_trace(completion_of(sample), "trace") is not None
    return is_trace and not _other_language(config, sample)


def _other_language(config: Answering, sample: Reply) -> str | None:
    """The language of a response, if it is not an accepted one."""
    if not config.languages:
        return None
    from tasks.cleaning.filters import language_of

    language = language_of(completion_of(sample))
    return None if language in config.languages else language


def _rows_of_prompt(
    config: Answering, prompt: Prompt, samples: Sequence[Reply], outcomes: Sequence[_Outcome]
) -> Iterator[Row]:
    answered = [outcome for outcome in outcomes if outcome.missing is None]
    verified = [index for index, outcome in enumerate(outcomes) if outcome.name == "verified"]
    if not verified:
        yield _dropped(prompt, outcomes)
    if not answered:
        return
    if is_verifiable(prompt):
        update: dict[str, Any] = {"pass_rate": len(verified) / len(answered)}
        if config.samples > 1:
            update["difficulty"] = difficulty_of(len(verified), len(answered))
        prompt = prompt.model_copy(update=update)
        if not verified:
            yield prompt
    if verified:
        yield _example(prompt, completion_of(samples[verified[0]]))
        if is_verifiable(prompt):
            yield from _pairs(config, prompt, samples, outcomes, verified)


def difficulty_of(verified: int, samples: int) -> int:
    """1 when all samples verified, to 5 when fewer than one in five did (4 samples: 1, 2, 3, 4 for
    4, 3, 2, 1 of them, 5 for none)."""
    return 1 + min(4, (samples - verified) * 5 // samples)


def _example(prompt: Prompt, completion: str) -> Example:
    trace = parse_trace(completion, prompt.channels)
    assert trace is not None, "a verified sample is a trace"
    check = check_of(prompt.check)
    answer = prompt.answer if prompt.grounding or (check and check.by_reference) else trace.answer
    return Example(**{**prompt.model_dump(), "answer": answer, "reasoning": trace.reasoning})


def _pairs(
    config: Answering,
    prompt: Prompt,
    samples: Sequence[Reply],
    outcomes: Sequence[_Outcome],
    verified: Sequence[int],
) -> list[PreferencePair]:
    """Distinct verified samples beside distinct rejected ones, both in the order of sampling."""

    texts = [completion_of(sample) for sample in samples]

    def firsts(indices: Sequence[int]) -> list[int]:
        return sorted({texts[index]: index for index in reversed(indices)}.values())

    # not what is empty, or was cut off or filtered before its first word
    rejected = [at for at, one in enumerate(outcomes) if one.rejected and texts[at].strip()]
    bad = [
        CheckedSample(at, texts[at], outcomes[at].rejected, outcomes[at].detail)
        for at in firsts(rejected)
    ]
    good = [(texts[at], at) for at in firsts(verified)]
    return make_pairs(prompt, good, bad, most=config.pairs_per_prompt, chosen_from="teacher")


def _dropped(prompt: Prompt, outcomes: Sequence[_Outcome]) -> Dropped:
    """Why a prompt has no example, with all outcomes in the detail."""
    counts = Counter(outcome.name for outcome in outcomes)
    missing = counts["failed"] + counts["unasked"]
    said = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    detail = f"{len(outcomes)} samples: {said}"
    first = next((outcome.detail for outcome in outcomes if outcome.detail), "")
    cause: TeacherCause = (
        "unsolved" if missing < len(outcomes) else "failed" if counts["failed"] else "unasked"
    )
    return Dropped.of(prompt, cause, f"{detail}; {first}" if first else detail)

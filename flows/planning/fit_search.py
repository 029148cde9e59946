"""Searches for settings with which a program fits, with as few and as mild changes as possible, by
asking the compiler.

It tries settings in this order, each only if it changes a program that does not fit:

1. those that do not change what is computed: rows at a time (`micro_batch_size`,
   `sampling_batch_size`, of an evaluation `batch_size`), then `remat`;
2. lengths (`sequence_length`, `response_length`, `prompt_length`);
3. a trainer's `batch_size`.

It first sets each to its extreme; if that is not enough, the setting stays there and the next one
follows. Once all programs fit, each changed setting goes back as far as they still fit, those that
change what is computed first, by bisection, since memory only grows with them.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from pydantic import ValidationError

from flows.planning.compile_cache import Compiled, Compiler, Question
from flows.planning.estimate import program_json
from schemas.base import InputError
from schemas.trainer_config import Remat
from tasks.contract.kinds import stage_kind

LENGTH_STEP = 128
"""Lengths are tried in multiples of this: the lanes of a TPU."""


@dataclass(frozen=True)
class _Setting:
    """`values`: from the recipe's value to the extreme, each needing less memory than the one
    before. `free`: whether all compute the same."""

    name: str
    values: tuple[Any, ...]
    free: bool


def suggest(
    question: Question, programs: Sequence[Compiled], compiler: Compiler, groups: int
) -> tuple[dict[str, Any], list[Compiled]] | None:
    """The changes of a stage's config with which all its programs compile and fit, and these
    programs; None when nothing helps.

    Args:
        programs: of the unchanged stage, with reports; some do not fit.
        groups: the number of devices that share a batch. Batches stay multiples of it, so that none
            is idle.
    """
    failing = frozenset(one.name for one in programs if not _fits(one, compiler))
    search = _Search(question, failing, compiler)
    changed: list[_Setting] = []
    chosen: dict[str, Any] = {}
    for setting in settings_to_try(question, groups):
        floor = {**chosen, setting.name: setting.values[-1]}
        if search.same(chosen, floor):
            continue
        chosen, changed = floor, [*changed, setting]
        if search.fits(chosen):
            break
    else:
        return None
    costly = [one for one in reversed(changed) if not one.free]
    for setting in [*costly, *(one for one in changed if one.free)]:
        chosen[setting.name] = search.largest(setting, chosen)
    starts = {setting.name: setting.values[0] for setting in changed}
    chosen = {name: value for name, value in chosen.items() if value != starts[name]}
    everything = compiler.compile([question_with(question, chosen)])[0]
    return (chosen, everything) if all(_fits(one, compiler) for one in everything) else None


def _fits(program: Compiled, compiler: Compiler) -> bool:
    return bool(program_json(program, compiler.target)["fits"])


def settings_to_try(question: Question, groups: int) -> list[_Setting]:
    """The settings of a stage's config to try, in the order of the module's docstring, without
    those that have one value only."""
    config = question.config
    batch, sampled = config.get("batch_size"), config.get("sampling_batch_size")
    trains = "micro_batch_size" in config
    found: list[_Setting] = []
    if trains and batch:
        rows = _divisors(batch, config["micro_batch_size"] or batch, groups)
        found.append(_Setting("micro_batch_size", rows, True))
    if sampled:
        found.append(_Setting("sampling_batch_size", _halves(sampled, groups), True))
    if batch and not trains:
        found.append(_Setting("batch_size", _halves(batch, groups), True))
    if "remat" in config:
        policies = get_args(Remat)
        found.append(_Setting("remat", policies[policies.index(config["remat"]) :], True))
    for name in ("sequence_length", "response_length", "prompt_length"):
        if config.get(name):
            shorter = range((config[name] - 1) // LENGTH_STEP * LENGTH_STEP, 0, -LENGTH_STEP)
            found.append(_Setting(name, (config[name], *shorter), False))
    if trains and batch:
        found.append(_Setting("batch_size", _halves(batch, groups), False))
    return [setting for setting in found if len(setting.values) > 1]


def question_with(question: Question, changes: dict[str, Any]) -> Question:
    return replace(question, config={**question.config, **changes})


class _Search:
    """Asks the compiler about changed configs; each is compiled once."""

    def __init__(self, question: Question, failing: frozenset[str], compiler: Compiler) -> None:
        self._question, self._failing, self._compiler = question, failing, compiler

    def fits(self, changes: dict[str, Any]) -> bool:
        """Whether the programs that do not fit now would fit with these changes. An invalid config
        does not."""
        candidate = self._valid(changes)
        if candidate is None:
            return False
        tried = ", ".join(f"{name} = {value}" for name, value in changes.items())
        self._compiler.say(f"{candidate.name}: trying {tried}")
        try:
            programs = self._compiler.compile([candidate], self._failing)[0]
        except InputError:  # not valid on this target
            return False
        return all(_fits(program, self._compiler) for program in programs)

    def largest(self, setting: _Setting, chosen: dict[str, Any]) -> Any:
        """The first of a setting's values with which they fit, where the last one does; by
        bisection."""
        (*larger, _), name = setting.values, setting.name
        place = bisect_left(larger, True, key=lambda value: self.fits({**chosen, name: value}))
        return setting.values[place]

    def same(self, before: dict[str, Any], after: dict[str, Any]) -> bool:
        """Whether the second changes give the same programs, among those that do not fit, as the
        first, or are invalid."""
        questions = [self._valid(before), self._valid(after)]
        if questions[1] is None:
            return True
        try:
            listed = self._compiler.programs([question for question in questions if question])
        except InputError:
            return True
        digests = [
            [program.digest for program in programs if program.name in self._failing]
            for programs in listed
        ]
        return len(digests) == 2 and digests[0] == digests[1]

    def _valid(self, changes: dict[str, Any]) -> Question | None:
        candidate = question_with(self._question, changes)
        try:
            stage_kind(candidate.kind).config.parse(candidate.config)
        except (ValidationError, InputError):
            return None
        return candidate


def _divisors(batch: int, start: int, groups: int) -> tuple[int, ...]:
    """Sizes of micro-batches: from `start` down, what divides the batch; multiples of `groups`
    while `start` is one."""
    unit = groups if start % groups == 0 else 1
    return tuple(size for size in range(start, 0, -1) if batch % size == 0 and size % unit == 0)


def _halves(start: int, groups: int) -> tuple[int, ...]:
    """Sizes of batches: from `start` down, halving; multiples of `groups` while `start` is one."""
    unit = groups if start % groups == 0 else 1
    found = [start]
    while found[-1] > unit:
        found.append(max(unit, found[-1] // 2 // unit * unit))
    return tuple(found)

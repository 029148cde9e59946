"""Worked examples before a prompt, as turns of a chat (few-shot prompts: Brown et al., 2005.14165).
They show a base model the recipe's format, so that a comparison with it measures skill.

Examples are rows of the training split only. Each prompt has its own, drawn by the seed and the
prompt's id, so that no rate depends on one lucky draw: rows of the prompt's format and domain, and
for a grounded prompt of each grounding in turn; none that asks the same. An example takes at most
an even share of the tokens of `prompt_length` that the prompt and the earlier examples leave;
longer ones are skipped.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import numpy as np

from schemas.base import InputError
from schemas.evaluation import EvalPrompt
from schemas.examples import Domain, Example, Format, Grounding, prompt_id
from tasks.contract.job import read_jsonl
from tasks.data.tokens import Tokenizer, Turns, prompt_tokens
from tasks.evaluation.eval_config import EvalConfig

Group = Domain | Grounding


class WorkedExamples:
    """The training rows of a rebalance artifact, as examples.

    Args:
        rows: the training split.
        shots: examples before each prompt.
        seed: draws them.
        length: tokens that examples and prompt have together at most.
    """

    def __init__(
        self, rows: Sequence[Example], shots: int, seed: int, tokenizer: Tokenizer, length: int
    ) -> None:
        self._shots, self._seed, self._tokenizer, self._length = shots, seed, tokenizer, length
        self._rows: dict[tuple[Format, Group], list[Example]] = {}
        for row in rows:
            self._rows.setdefault((row.channels, row.grounding or row.domain), []).append(row)
        # the tokens of a turn around a prompt
        alone = len(prompt_tokens(tokenizer, ""))
        self._tokens = {
            row.id: len(prompt_tokens(tokenizer, "", (_turn(row),))) - alone for row in rows
        }

    def before(self, prompt: EvalPrompt) -> Turns:
        """The turns before a prompt.

        Raises:
            InputError: there are fewer rows than examples, or too few that are short enough.
        """
        groups = self._groups(prompt)
        room = self._length - len(prompt_tokens(self._tokenizer, prompt.prompt))
        drawn = {group: self._drawn(group, prompt) for group in groups}
        turns = []
        for place in range(self._shots):
            group = groups[place % len(groups)]
            most = room // (self._shots - place)
            row = next((one for one in drawn[group] if self._tokens[one.id] <= most), None)
            if row is None:
                raise InputError(self._too_short(prompt, group, most))
            drawn[group].remove(row)
            room -= self._tokens[row.id]
            turns.append(_turn(row))
        return tuple(turns)

    def _groups(self, prompt: EvalPrompt) -> list[Group]:
        """The groups whose rows are used, in turn. Raises InputError: they have too few."""
        groups: list[Group] = [prompt.domain]
        if prompt.grounding is not None:
            every: tuple[Grounding, ...] = get_args(Grounding)
            known = [one for one in every if (prompt.channels, one) in self._rows]
            groups = [*known] or [prompt.grounding]
            start = self._number(prompt) % len(groups)
            groups = groups[start:] + groups[:start]
        wanted = Counter(groups[place % len(groups)] for place in range(self._shots))
        for group, count in wanted.items():
            found = len(self._rows.get((prompt.channels, group), ()))
            if found < count:
                raise InputError(
                    f"shots = {self._shots} asks for {count} training rows of {group!s} in the"
                    f" format {prompt.channels}, and there are {found}: give the rebalance stage"
                    " more, or lower shots."
                )
        return groups

    def _drawn(self, group: Group, prompt: EvalPrompt) -> list[Example]:
        """The rows of a group, in the order in which they are tried for a prompt."""
        rows, same = self._rows[prompt.channels, group], prompt_id(prompt.prompt)
        order = np.random.default_rng(self._number(prompt)).permutation(len(rows))
        return [rows[index] for index in order if rows[index].id != same]

    def _number(self, prompt: EvalPrompt) -> int:
        """A number from seed and prompt."""
        name = f"{self._seed} {prompt.id}".encode()
        return int.from_bytes(hashlib.sha256(name).digest()[:8])

    def _too_short(self, prompt: EvalPrompt, group: Group, most: int) -> str:
        rows = self._rows[prompt.channels, group]
        shortest = sorted(self._tokens[row.id] for row in rows)
        return (
            f"prompt_length = {self._length} leaves {most} tokens for a worked example of {group!s}"
            f" before the prompt {prompt.id} (suite {prompt.suite}), and the shortest training rows"
            f" take {', '.join(map(str, shortest[: self._shots]))}. Raise prompt_length, or lower"
            f" shots (now {self._shots})."
        )


def turns_before(
    inputs: dict[str, Path], config: EvalConfig, prompts: Sequence[EvalPrompt], tokenizer: Tokenizer
) -> list[Turns]:
    """The worked examples before each prompt; none if the config has no `shots`. Instructions go
    before the first.

    Raises:
        InputError: no `prompts` input is connected, or as `WorkedExamples.before`.
    """
    if not config.shots:
        return [()] * len(prompts)
    if "prompts" not in inputs:
        raise InputError(NO_ROWS.format(shots=config.shots))
    rows = read_jsonl(inputs["prompts"] / "train.jsonl", Example)
    length = config.prompt_length - len(tokenizer.encode(config.asked("")))
    examples = WorkedExamples(rows, config.shots, config.seed, tokenizer, length)
    found = [examples.before(prompt) for prompt in prompts]
    return [((config.asked(asked), said), *rest) for (asked, said), *rest in found]


NO_ROWS = (
    "shots = {shots} asks for worked examples, which are training rows: connect `prompts` to a"
    " rebalance stage, or leave shots out."
)


def _turn(row: Example) -> tuple[str, str]:
    return row.prompt, row.response()

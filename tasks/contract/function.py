"""A function of your own, in the signature of TRL and Tunix, as a reward or as a metric:

    def fn(prompts, completions, **columns) -> list[float | None]

`prompts` and `completions` are lists of texts with one item per response: the question as the data
has it, without the chat template, and the response without its terminator. That is TRL's standard
form; its conversational form (lists of messages) is not used. `columns` are lists of the same
length, named as in `schemas.examples.Prompt`: `answer` is the reference; others are `id`, `domain`,
`check`, `tolerance`, `tests`, `constraints`, `difficulty`, `context`, `grounding`, ... TRL's
`completion_ids` and `trainer_state` are not passed. None abstains, as in TRL.

    [[stages.grpo.config.rewards]]              # a reward: values of a rollout
    name = "function"
    path = "mine.py:reward_fn"
    [[stages.grpo_eval.config.metrics]]         # a metric of an evaluation, called `brevity`:
    name = "function"                           # values of all greedy answers; higher is better;
    path = "mine.py:brevity"                    # `columns` has `suite`, too

The file is beside the recipe or below `--data` (`flows.recipe.code` puts its text into the config,
so it is part of the stage key, and travels with the job). It is one file: it can import what
Lyceum's environment has, but no file beside it. `lyceum run` requires `--code mine.py`, since it
runs with all rights of the worker (docs/security.md). Calls are sequential. An error in it fails
the stage; it does not abstain.
"""

import ast
import linecache
import math
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from types import ModuleType
from typing import Any, ClassVar, Literal, Self, TypeVar

from pydantic import Field, model_validator

from schemas.base import InputError, StageFailed, StrictModel, nearest
from schemas.evaluation import EvalPrompt
from schemas.examples import Prompt

ResultT = TypeVar("ResultT")


class FunctionConfig(StrictModel):
    """`path`: FILE.py:FUNCTION. `source`: that file's text; recipes do not set it."""

    ASKED: ClassVar[type[Prompt]] = EvalPrompt
    """The function's columns are its fields."""

    name: Literal["function"]
    path: str = Field(pattern=r"^[^:]+\.py:[A-Za-z_][A-Za-z0-9_]*$")
    source: str = ""

    @model_validator(mode="after")
    def _has_the_function(self) -> Self:
        """Check that the text is Python and defines the function, with parameters that it can be
        called with, without running it."""
        if not self.source:
            return self
        try:
            tree = ast.parse(self.source)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            where = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
            raise ValueError(f"{self.file}{where}: not valid Python: {error}") from error
        defined = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        if self.function not in defined:
            there = ", ".join(defined) or "none"
            raise ValueError(
                f"{self.file} has no function {self.function!r} at its top level; it has: {there}"
            )
        names = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
        again = any(one.id == self.function and isinstance(one.ctx, ast.Store) for one in names)
        found = defined[self.function]
        if not (again or found.decorator_list):  # else nobody knows what is called
            self._require_columns(found.args)
        return self

    def _require_columns(self, wanted: ast.arguments) -> None:
        """Check that all columns can be given by name, and that no other is asked for. Raises
        ValueError."""
        given = {"completions", *_named(self.ASKED.model_fields)}
        listed = [*wanted.posonlyargs, *wanted.args]
        needed = listed[: len(listed) - len(wanted.defaults)]
        kept = zip(wanted.kwonlyargs, wanted.kw_defaults, strict=True)
        needed += [one for one, default in kept if default is None]
        for name in (one.arg for one in needed):
            if name not in given:
                raise ValueError(
                    f"{self.file}: {self.function} asks for {name!r}, and prompts have no such"
                    f" column.{nearest(name, given)}"
                )
        if wanted.kwarg is None and given - {one.arg for one in (*listed, *wanted.kwonlyargs)}:
            raise ValueError(
                f"{self.file}: {self.function} gets every column by name; add **columns to its"
                " parameters for those that it does not use"
            )

    @property
    def file(self) -> str:
        return self.path.rpartition(":")[0]

    @property
    def function(self) -> str:
        return self.path.rpartition(":")[2]


class Function:
    """A loaded function. `what`: its name in messages, such as "reward function"."""

    def __init__(self, config: FunctionConfig, what: str) -> None:
        """Load the file. Raises InputError: its text is missing; StageFailed: it raises."""
        if not config.source:
            raise InputError(
                f"{what} {config.path} is run by `lyceum run` alone, which reads the file."
            )
        self._config, self._what, self._alone = config, what, threading.Lock()
        self._lines = f"<{config.file} of the recipe>"  # the file's name in tracebacks
        lines = config.source.splitlines(keepends=True)
        linecache.cache[self._lines] = (len(config.source), None, lines, self._lines)
        module = ModuleType(f"function {config.path}")
        sys.modules[module.__name__] = module  # dataclasses look their module up
        code = compile(config.source, self._lines, "exec")
        self._run("loading it", lambda: exec(code, vars(module)))  # noqa: S102
        self._function = vars(module)[config.function]

    def values(self, prompts: Sequence[Prompt], said: Sequence[str]) -> list[float | None]:
        """The function's value of each response. Raises StageFailed: it raises, or returns anything
        but one finite number or None for each."""
        rows = [
            {**prompt.model_dump(mode="json"), "channels": prompt.channels} for prompt in prompts
        ]
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        with self._alone:
            found = self._run(
                "calling it", lambda: self._function(completions=list(said), **_named(columns))
            )
        found = found.tolist() if hasattr(found, "tolist") else found
        if not isinstance(found, list | tuple):
            raise self._failed(f"it returned {_shown(found)} instead of a list of numbers")
        if len(found) != len(said):
            raise self._failed(
                f"it returned {len(found)} values for {len(said)} completions; return one for each"
            )
        return [self._value(place, value) for place, value in enumerate(found)]

    def _value(self, place: int, value: Any) -> float | None:
        value = value.item() if hasattr(value, "item") else value
        if value is None:
            return None
        if not isinstance(value, Real) or not math.isfinite(value):
            raise self._failed(
                f"value {place} that it returned is {_shown(value)}; return a finite number, or"
                " None to abstain"
            )
        return float(value)

    def _run(self, what: str, call: Callable[[], ResultT]) -> ResultT:
        try:
            return call()
        except (Exception, SystemExit) as error:
            frames = traceback.extract_tb(error.__traceback__)
            own = [frame.lineno for frame in frames if frame.filename == self._lines]
            where = f", line {own[-1]}" if own else ""
            said = " ".join(str(error).split())
            raised = f"{what} raised {type(error).__name__}{where}: {said}".rstrip(": ")
            raise self._failed(raised) from error

    def _failed(self, what: str) -> StageFailed:
        return StageFailed(f"{self._what} {self._config.path}: {what}")


def _named(columns: Mapping[str, ResultT]) -> dict[str, ResultT]:
    """The columns, with `prompt` renamed to `prompts`, as in TRL."""
    return {"prompts" if name == "prompt" else name: values for name, values in columns.items()}


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."

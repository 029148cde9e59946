"""Strict models, canonical JSON and digests: the bottom of every contract.

`canonical_json` is the subset of RFC 8785 (JCS) that Lyceum needs: sorted keys, no white space,
UTF-8, no NaN or infinity. Two objects have the same digest if and only if they have the same
canonical JSON.
"""

import difflib
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails


class InputError(ValueError):
    """Input from outside is wrong. The message names the value, the valid choices and the fix; the
    command line exits with 2.

    What a message quotes may be of any size: a word, a line and all of it are shortened here,
    wherever the message is shown.
    """

    def __init__(self, message: str) -> None:
        super().__init__(_shortened(message))


_LONGEST_WORD, _LONGEST_LINE, _MOST_LINES = 240, 2400, 40
"""Limits of a message: two in characters, one in lines. A path of the deepest directory that people
make by hand takes 200."""


def _shortened(message: str) -> str:
    words = re.sub(
        rf"\S{{{_LONGEST_WORD + 1},}}", lambda found: _middle_out(found[0], _LONGEST_WORD), message
    )
    lines = words.split("\n")
    if len(lines) > _MOST_LINES:
        lines = [*lines[:_MOST_LINES], f"... and {len(lines) - _MOST_LINES} more lines"]
    return "\n".join(_middle_out(line, _LONGEST_LINE) for line in lines)


def clip(text: str, most: int = 1200) -> str:
    """Shorten to at most `most` characters a model's or a data set's text, and say how many were
    left out. White space alone is made visible."""
    if not text.strip():
        text = repr(text)
    return text if len(text) <= most else f"{text[:most]} … ({len(text) - most:,} more characters)"


def _middle_out(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    part = most // 2 - 15
    return f"{text[:part]}...({len(text) - 2 * part} more)...{text[-part:]}"


class StageFailed(RuntimeError):
    """A stage's job ended without an artifact; the command line exits with 1."""


class AuditFailed(StageFailed):
    """A recipe rewards something other than what it wants; the command line exits with 3."""


class DoesNotFit(Exception):
    """A run's plan does not fit its target; the command line exits with 3."""


class Stopped(Exception):
    """The run was asked to stop (Ctrl-C, SIGTERM, a cancelled flow), for which the command line
    exits with 130; or a stage has paused."""


class StrictModel(BaseModel):
    """A frozen pydantic model that refuses unknown keys and never coerces types ("3" is no number,
    true is no integer)."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, validate_default=True, allow_inf_nan=False
    )

    @classmethod
    def parse(cls, value: Any) -> Self:
        """Validate plain JSON or TOML data (enums as strings, tuples as lists). Raises
        pydantic.ValidationError."""
        return cls.model_validate_json(canonical_json(value))


class Sealed(StrictModel):
    """A record that notices its own damage: `checksum` covers all other fields."""

    checksum: str = ""

    def sealed(self) -> Self:
        """This record with its checksum filled in. Raises ValueError when a field holds a NaN or an
        infinity."""
        return self.model_copy(update={"checksum": self._checksum()})

    @property
    def is_intact(self) -> bool:
        return self.checksum == self._checksum()

    def _checksum(self) -> str:
        return digest(self.model_dump(exclude={"checksum"}))


def canonical_json(value: Any) -> bytes:
    """Encode a pydantic model or plain JSON value as canonical UTF-8 JSON.

    Raises:
        ValueError: a float is NaN or infinite.
        TypeError: the value is not JSON.
    """
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode("utf-8")


def without_nulls(value: Any) -> Any:
    """Plain JSON without the keys whose value is null, at every depth."""
    if isinstance(value, dict):
        return {key: without_nulls(one) for key, one in value.items() if one is not None}
    return [without_nulls(one) for one in value] if isinstance(value, list) else value


def digest(value: Any) -> str:
    """sha256 of the canonical JSON of `value`, as 64 hexadecimal characters."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def nearest(name: str, valid: Iterable[str]) -> str:
    """The end of an error message: the closest valid name if there is one, then all valid names."""
    choices = sorted(valid)
    close = difflib.get_close_matches(name[:_LONGEST_WORD], choices, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    shown = ", ".join(choices[:_MOST_CHOICES])
    more = f" and {len(choices) - _MOST_CHOICES} more" if len(choices) > _MOST_CHOICES else ""
    return f"{hint} Valid: {shown or '(none)'}{more}."


_MOST_CHOICES = 60


def explain_validation(
    error: ValidationError, model: type[BaseModel], where: str, items: Sequence[str] = ()
) -> str:
    """One line per problem of a pydantic ValidationError, in the words of the recipe's author.

    Args:
        error: what pydantic raised while validating `model`.
        model: the model; its fields are the valid keys that an unknown key is compared with.
        where: the place, e.g. `recipe quickstart.toml, stages.grpo.config`.
        items: what people call the items of a list that the model has, e.g. its stages.
    """
    found = error.errors()
    # pydantic counts valid items alone: one that is wrong was reported
    problems = [one for one in found if one["type"] != "too_short" or _below(one, found) == [one]]
    lines = [_line(problem, model, where, items) for problem in problems[:_MOST_PROBLEMS]]
    if more := len(problems) - len(lines):
        lines.append(f"{where}: and {more} more problems.")
    return "\n".join(lines)


_MOST_PROBLEMS = 8


def _below(problem: ErrorDetails, problems: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    place = problem["loc"]
    return [one for one in problems if one["loc"][: len(place)] == place]


def _line(problem: ErrorDetails, model: type[BaseModel], where: str, items: Sequence[str]) -> str:
    place, parts = problem["loc"], list(map(str, problem["loc"]))
    if items and len(place) > 1 and isinstance(place[1], int):
        parts[1] = items[place[1]]
    # pydantic's [key], and tags of unions, which are written <so>, are no keys of a recipe
    path = ".".join(part for part in parts if part[:1] not in ("[", "<"))
    if problem["type"] == "extra_forbidden":
        valid = _fields_at(model, place[:-1])
        return f"{where}: unknown key {path!r}.{nearest(str(place[-1]), valid)}"
    if problem["type"] == "missing":
        return f"{where}: required key {path!r} is missing; add it."
    if problem["type"] in ("enum", "literal_error"):
        valid = [one.strip("'") for one in re.split(", | or ", problem["ctx"]["expected"])]
        given = nearest(str(problem["input"]), valid)
        return f"{where}: {path} = {problem['input']!r} is not valid.{given}"
    said = problem_text(problem).removesuffix(".")
    if problem["type"] in ("model_type", "dict_type"):
        fields = ", ".join(_fields_at(model, place))
        said = f"give a table, {{ key = value }}{fields and f', with {fields}'}"
    elif problem["type"] in ("list_type", "tuple_type"):
        said = "give a list in [ ]; one of tables may have [[ ]] around its name instead"
    value = f"{path or 'value'} = {problem['input']!r} is not valid: "
    if problem["type"] == "value_error" and isinstance(problem["input"], dict):
        value = f"{path}: " if path else ""  # a check of ours says what in it is wrong
    return f"{where}: {value}{said}."


def problem_text(problem: Mapping[str, Any]) -> str:
    """Why a value is wrong, of one of `ValidationError.errors()`, without pydantic's names for
    checks and for Python's types."""
    text = str(problem["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return re.sub(r"^\w+ should have (at \w+ \d+ items?) after validation.*", r"give \1", text)


def _fields_at(model: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    """Field names of the model reached by walking `path`; list indices and union tags are passed
    over."""
    current = model
    for part in path:
        field = current.model_fields.get(str(part)) if isinstance(part, str) else None
        if field is None:
            continue
        inner = _model_in(field.annotation)
        if inner is None:
            return []
        current = inner
    return list(current.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = _model_in(argument)
        if found is not None:
            return found
    return None

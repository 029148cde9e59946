"""The contract of a teacher, a source of worked traces: one `TEACHER = Teacher(...)` in a file of
`tasks/teachers/`."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic

from schemas.examples import Prompt
from tasks.contract.plugins import ConfigT, Configured, Family
from tasks.contract.small import Sizes
from tasks.data.dropped import Dropped
from tasks.teaching.lesson import Lesson, Row

if TYPE_CHECKING:
    from tasks.models.loading import LoadedModel
    from tasks.planning.programs import Program


@dataclass(frozen=True, kw_only=True)
class Teacher(Configured[ConfigT], Generic[ConfigT]):
    """A teacher.

    Attributes:
        teach: yields every row that it read or made, in a fixed order.
        dependencies: what else decides its rows, given the config and `--data`: digests of files,
            versions of packages. Raises InputError for a missing file, before any job starts.
        expected: how many rows `teach` yields, 0 if unknown.
        most: at most how many rows of each domain or grounding it has, top-ups included, as far as
            that is known before anything is asked; None: not.
        prompts: its prompts alone, for a teacher that answers (`prompts = [{ name = "dataset", ...
            }]` in that one's table). None: it offers none.
        model: the base model that answers on this job's devices; None: none.
        programs: what that model compiles.
        small: the same teacher with fewer rows (`tasks.contract.small`).
        asks_an_api: whether it waits for an API: then it runs on the flow's machine, where the key
            is.
    """

    teach: Callable[[ConfigT, Lesson], Iterator[Row]]
    dependencies: Callable[[ConfigT, Path | None], dict[str, str | int]]
    expected: Callable[[ConfigT], int] = field(default=lambda config: 0)
    most: Callable[[ConfigT, Path | None], Mapping[str, int] | None] = field(
        default=lambda config, data: None
    )
    prompts: Callable[[ConfigT, Lesson], Iterator[Prompt | Dropped]] | None = None
    model: Callable[[ConfigT], str | None] = field(default=lambda config: None)
    programs: "Callable[[ConfigT, LoadedModel], list[Program]]" = field(
        default=lambda config, model: []
    )
    small: Callable[[ConfigT, Sizes], ConfigT] = field(default=lambda config, sizes: config)
    asks_an_api: Callable[[ConfigT], bool] = field(default=lambda config: False)


TEACHERS: Family[Teacher[Any]] = Family("tasks.teachers", Teacher)

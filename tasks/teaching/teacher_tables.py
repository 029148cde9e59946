"""The teachers of a recipe, a table each, whose `name` is a file in `tasks/teachers/`; and the
files of their rows, in a distill stage and in a top-up."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tasks.contract.job import Job
from tasks.contract.teacher import TEACHERS, Teacher
from tasks.teaching.lesson import FILES, Lesson, Row


def teachers_of(tables: Sequence[Mapping[str, Any]]) -> list[tuple[Teacher[Any], Any]]:
    """Each teacher and its config. Raises InputError: an unknown teacher, or a table that does not
    validate."""
    numbered = enumerate(tables)
    configs = [TEACHERS.parse(dict(table), f"teachers.{index}") for index, table in numbered]
    return [(TEACHERS[config.name], config) for config in configs]


def most_rows(
    teachers: Iterable[tuple[Teacher[Any], Any]], data: Path | None
) -> Counter[str] | None:
    """At most how many rows of each domain or grounding these teachers have (`Teacher.most`)."""
    found = Counter[str]()
    for teacher, config in teachers:
        if (most := teacher.most(config, data)) is None:
            return None
        found.update(most)
    return found


def asks_an_api(tables: Sequence[Mapping[str, Any]]) -> bool:
    """Whether one of the teachers waits for an API."""
    return any(teacher.asks_an_api(config) for teacher, config in teachers_of(tables))


def lesson_of(job: Job[Any], seed: int, **more: Any) -> Lesson:
    """A lesson of a job, which reports its progress; `more`: the fields of a top-up."""
    return Lesson(
        seed=seed,
        data=job.data,
        answers=job.answers,
        progress=lambda done, total, unit, values: job.progress(done, total, unit, **values),
        **more,
    )


@contextmanager
def row_files(directory: Path) -> Iterator[Callable[[Row], None]]:
    """A function that writes each row into the file of its type in a directory; all files are
    created."""
    with ExitStack() as stack:
        files = {
            kind: stack.enter_context((directory / name).open("w", encoding="utf-8", newline="\n"))
            for kind, name in FILES.items()
        }

        def write(row: Row) -> None:
            files[type(row)].write(row.model_dump_json() + "\n")

        yield write

"""The teachers that a recipe names: a table for each, whose `name` is a file in
`tasks/teachers/`; and what becomes of their rows, in a distill stage and in a top-up."""

from collections.abc import Callable, Iterator, Mapping, Sequence
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


def asks_an_api(tables: Sequence[Mapping[str, Any]]) -> bool:
    """Whether one of the teachers waits for the answers of an API."""
    return any(teacher.asks_an_api(config) for teacher, config in teachers_of(tables))


def lesson_of(job: Job[Any], seed: int, **more: Any) -> Lesson:
    """A lesson of a job, which reports its progress; `more`: what a top-up wants and knows."""
    return Lesson(
        seed=seed,
        data=job.data,
        answers=job.answers,
        progress=lambda done, total, unit, values: job.progress(done, total, unit, **values),
        **more,
    )


@contextmanager
def row_files(directory: Path) -> Iterator[Callable[[Row], None]]:
    """Writes rows into the files of a directory, each into that of its type; every file is made."""
    with ExitStack() as stack:
        files = {
            kind: stack.enter_context((directory / name).open("w", encoding="utf-8", newline="\n"))
            for kind, name in FILES.items()
        }

        def write(row: Row) -> None:
            files[type(row)].write(row.model_dump_json() + "\n")

        yield write

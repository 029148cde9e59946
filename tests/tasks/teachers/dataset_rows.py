"""Files of rows, and what the dataset teacher makes of them."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from schemas.examples import Example, Prompt
from tasks.contract.teacher import TEACHERS
from tasks.data.dropped import Dropped
from tasks.teachers import dataset
from tasks.teaching.lesson import Lesson

MATH = {"domain": "math", "prompt": "question", "reasoning": "steps", "answer": "answer"}
ROWS = [
    {"question": f"What is {n}+{n}?", "steps": f"{n}+{n}={2 * n}", "answer": str(2 * n)}
    for n in range(10)
]


def config(*sources: Mapping[str, Any], **settings: Any) -> dataset.Config:
    table = {"name": "dataset", "sources": list(sources), **settings}
    parsed: dataset.Config = TEACHERS.parse(table, "stages.distill.config.teachers.0")
    return parsed


def lesson(data: Path | None, **more: Any) -> Lesson:
    return Lesson(seed=0, data=data, answers=None, **more)  # type: ignore[arg-type]


def teach(
    data: Path | None, *sources: Mapping[str, Any], **settings: Any
) -> list[Example | Dropped]:
    return list(dataset.teach(config(*sources, **settings), lesson(data)))


def lend(data: Path, *sources: Mapping[str, Any], **wanted: Any) -> list[Prompt | Dropped]:
    return list(dataset.prompts(config(*sources), lesson(data, **wanted)))


def write(path: Path, content: str | bytes | Iterable[Mapping[str, Any]]) -> Path:
    """A file of these bytes, this text, or these rows as JSONL."""
    if not isinstance(content, str | bytes):
        content = "".join(json.dumps(row) + "\n" for row in content)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def taught(data: Path, rows: Iterable[Mapping[str, Any]], **source: Any) -> list[Any]:
    """What one file of these rows teaches."""
    write(data / "a.jsonl", rows)
    return teach(data, {"path": "a.jsonl", "domain": "general", **source})


def causes(rows: Iterable[Any]) -> list[tuple[int, str]]:
    """Line and cause of what was dropped."""
    return [(row.line, row.cause) for row in rows if isinstance(row, Dropped)]

"""Where the rows lie that a rebalance stage reads."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path


@dataclass(frozen=True)
class Files:
    """What distill left, and what top-ups added."""

    directories: tuple[Path, ...]

    def named(self, name: str) -> list[Path]:
        return [directory / name for directory in self.directories]

    @cached_property
    def rows(self) -> list[Path]:
        """Files of prompts, solved and not."""
        return [*self.named("examples.jsonl"), *self.named("unsolved.jsonl")]

    @property
    def solved(self) -> list[bool]:
        """Which of `rows` hold examples."""
        return [path.name == "examples.jsonl" for path in self.rows]

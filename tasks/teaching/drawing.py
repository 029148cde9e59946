"""Draw problems from families of templates (`tasks.teaching.families`), with worked traces and
verified answers.

The rows of a group cycle through its families and the five difficulties, so both are evenly mixed.
Each (family, difficulty) has its own random stream, seeded by its name: asking for more rows keeps
the earlier ones, adding a family changes no other family's problems, and a top-up continues where
the known rows end.
"""

import importlib.metadata
import random
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from itertools import islice
from typing import Any

from schemas.base import InputError
from schemas.examples import ELEMENTS, Domain, Example, Format, Grounding, prompt_id
from tasks.teaching.families import Family, domain_of, families
from tasks.teaching.lesson import Cell

_REDRAWS = 500
"""Draws without a new prompt after which a family counts as exhausted."""


def dependencies() -> dict[str, str | int]:
    """reasoning-gym's version, since it draws some of the problems."""
    return {"package.reasoning-gym": importlib.metadata.version("reasoning-gym")}


@dataclass(frozen=True)
class Drawing:
    """Rows to draw.

    Attributes:
        counts: rows of each group, in order.
        seed: of all streams.
        families: each as `module.name` or a whole `module`; empty: those of the domains' own
            modules.
        channels: the format of the rows. It decides neither which problems are drawn nor their
            reasoning.
    """

    counts: Mapping[Domain | Grounding, int]
    seed: int
    families: tuple[str, ...] = ()
    channels: Format = "trace"

    def rows(self) -> Iterator[Example]:
        """The rows, group by group. Raises InputError: a family has too few distinct prompts of a
        difficulty."""
        drawn: set[str] = set()
        for group, count in self.counts.items():
            draw = _Draw(self._chosen(group), group, self.seed, self.channels, drawn)
            if count and not draw.names:
                raise InputError(
                    f"teacher procedural: rows has {count} rows of {group}, but families has none;"
                    " name only domains that have families."
                )
            for row in range(count):
                name, level = draw.names[row % len(draw.names)], 1 + row // len(draw.names) % 5
                example = draw.next(name, level)
                if example is None:
                    raise InputError(
                        f"teacher procedural: {count} rows of {group} exceed what family {name}"
                        f" has: after {row} rows, {_REDRAWS} draws of difficulty {level} gave no"
                        " new prompt. Ask for fewer rows."
                    )
                yield example

    def topped_up(self, wanted: Mapping[Cell, int], known: Set[str]) -> Iterator[Example]:
        """The wanted rows that are not known, from the beginning of the same streams."""
        drawn: set[str] = set()
        for group in self.counts:
            draw = _Draw(self._chosen(group), group, self.seed, self.channels, drawn)
            for level in (*range(1, 6), None):
                yield from islice(
                    draw.unknown(level, known), max(0, wanted.get(Cell(group, level), 0))
                )

    def _chosen(self, group: Domain | Grounding) -> dict[str, Family]:
        """The chosen families of a domain, or the grounded ones: `module.name` -> family."""
        chosen = [group.value] if isinstance(group, Domain) else ["grounded"]
        if self.families and isinstance(group, Domain):
            chosen = [one for one in self.families if domain_of(one.partition(".")[0]) == group]
        return {
            f"{module}.{name}": family
            for module, _, only in (one.partition(".") for one in chosen)
            for name, family in families(module).items()
            if only in ("", name)
        }


class _Draw:
    """Draws problems of one domain's families, or of the grounded ones; each (family, level) is a
    stream of its own.

    Attributes:
        names: of the families, as `module.name`.
    """

    def __init__(
        self,
        chosen: dict[str, Family],
        group: Domain | Grounding,
        seed: int,
        channels: Format,
        drawn: set[str],
    ) -> None:
        """`drawn`: ids of all prompts that this request has drawn so far, of any group."""
        self._domain = group if isinstance(group, Domain) else Domain.GENERAL
        self._grounding = None if isinstance(group, Domain) else group
        self._families, self._seed, self._channels, self._drawn = chosen, seed, channels, drawn
        self.names = list(chosen)
        self._streams: dict[tuple[str, int], random.Random] = {}

    def next(self, name: str, level: int) -> Example | None:
        """The next new problem of a stream, or None: the stream seems exhausted."""
        module, _, family = name.partition(".")
        begun = f"{self._seed}/{module}/{self._grounding}/{family}/{level}"
        rng = self._streams.setdefault((name, level), random.Random(begun))
        grounding = [self._grounding] if self._grounding else []
        for _ in range(_REDRAWS):
            problem = self._families[name](rng, level, *grounding)
            identity = prompt_id(problem.prompt)
            if identity not in self._drawn:
                self._drawn.add(identity)
                about: dict[str, Any] = {**vars(problem), "family": name, "source": "procedural"}
                about["channels"] = self._channels
                if "proof" not in ELEMENTS[self._channels]:
                    del about["proof"]
                return Example(id=identity, domain=self._domain, difficulty=level, **about)
        return None

    def unknown(self, level: int | None, known: Set[str]) -> Iterator[Example]:
        """Problems that are not known, cycling through families and (None) levels, until all
        streams are exhausted."""
        levels = [level] if level else range(1, 6)
        streams = [(name, one) for one in levels for name in self.names]
        while streams:
            for stream in list(streams):
                example = self.next(*stream)
                while example is not None and example.id in known:
                    example = self.next(*stream)
                if example is None:
                    streams.remove(stream)
                else:
                    yield example

"""Caches drawings on this machine: matplotlib takes a second to load and 40 ms for a plot, and a
run that reuses artifacts shows the plots of the run before.

A drawing lies below LYCEUM_CACHE, keyed by the function's data, the text of its file and
matplotlib's version. One that is unreadable or incomplete is drawn again.
"""

import functools
import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import ParamSpec

from markupsafe import Markup

from flows.report.blocks import Figure
from infra.context import context
from infra.store.space import write_whole

P = ParamSpec("P")

MOST_DRAWINGS = 2000
"""The most drawings, some 20 MB; the oldest are removed."""


def drawn_once(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Decorate a drawing function to run once for the same data, identified by their `repr`."""
    source = Path(draw.__code__.co_filename)

    @functools.wraps(draw)
    def drawn(*given: P.args, **named: P.kwargs) -> Figure:
        made_from = version("matplotlib"), _digest(source), draw.__name__, given, named
        path = Path(context().settings.cache) / "plots" / f"{_sha(repr(made_from))}.json"
        with suppress(OSError, ValueError, TypeError, KeyError):
            stored = json.loads(path.read_bytes())
            if stored["sha256"] == _sha(stored["title"] + stored["svg"]):
                return Figure(stored["title"], Markup(stored["svg"]))
        figure = draw(*given, **named)
        drawing = {"title": figure.title, "svg": str(figure.svg)}
        with suppress(OSError):
            _store(path, json.dumps({**drawing, "sha256": _sha("".join(drawing.values()))}))
        return figure

    return drawn


@functools.cache
def _digest(source: Path) -> str:
    return hashlib.sha256(source.read_bytes()).hexdigest()


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _store(path: Path, text: str) -> None:
    """Write a file atomically, and remove the oldest of too many."""
    write_whole(path, text)
    by_age = sorted(path.parent.iterdir(), key=lambda one: one.stat().st_mtime)
    for old in by_age[:-MOST_DRAWINGS]:
        old.unlink(missing_ok=True)

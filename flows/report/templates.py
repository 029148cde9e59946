"""Jinja templates, in which every text is escaped."""

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from flows.runs.wording import bounds, clip, duration, percent, points
from infra.visible import visible
from tasks.statistics.intervals import Interval


def rendered(template: str, **values: Any) -> str:
    """A page of a template, in which no character acts or hides (`infra.visible`), wherever it
    comes from."""
    return visible(environment().get_template(template).render(**values))


def fragment(template: str, **values: Any) -> Markup:
    """A part of a page, of a template."""
    return Markup(environment().get_template(template).render(**values))


@cache
def environment() -> Environment:
    """Jinja with escaping always on; a name that a template uses and nobody gave raises."""
    made = Environment(
        loader=PackageLoader("flows.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "percent": percent,
        "points": points,
        "clip": clip,
        "duration": lambda seconds: "" if seconds is None else duration(seconds),
        "bounds": lambda row: bounds(Interval(row["low"], row["high"])),
        "signed_bounds": lambda row: bounds(Interval(row["low"], row["high"]), signed=True),
    }
    return made

"""How to make this run again, `--set` changes included."""

import base64
import itertools
import shlex
from collections.abc import Iterator
from pathlib import PurePath

from flows.recipe.recipe_toml import recipe_toml
from flows.report.blocks import Block, Code, Details, Paragraph, Raw, card, code
from flows.report.html import tag
from flows.report.section import Section
from flows.runs.next_commands import copied
from flows.runs.results import RunResults


def blocks(run: RunResults) -> list[Block]:
    """The resolved recipe as TOML and as a link that saves it, the command that runs it, and the
    command that was given."""
    toml, file = recipe_toml(run.record.recipe), f"{run.record.recipe.name}.toml"
    link = "data:application/toml;base64," + base64.b64encode(toml.encode("utf-8")).decode("ascii")
    saved = tag("a", tag("code", file), download=file, href=link)
    argv = [str(argument) for argument in run.record.execution.get("command", [])]
    store, target = run.record.store, run.record.target
    command = copied("run", f"./{file}", *_given(argv), store=store, target=target)
    found: list[Block] = [
        Raw(tag("p", "Save the recipe as ", saved, " and run:")),
        card(Code(command)),
    ]
    if argv and PurePath(argv[0]).name == "lyceum":  # otherwise the Prefect UI started it
        given = code(shlex.join(["lyceum", *argv[1:]]))
        found.append(Paragraph(("This run was started with ", given), "note"))
    return [*found, Details(file, [Code(toml)])]


def _given(argv: list[str]) -> Iterator[str]:
    """`--data DIR` and each `--code FILE`, which no recipe has, in either of their two forms."""
    for argument, following in itertools.pairwise([*argv, ""]):
        name, equals, value = argument.partition("=")
        if name in ("--data", "--code"):
            yield from (name, value if equals else following)


SECTION = Section(title="Run it again", heading="Run it again", order=100, blocks=blocks)

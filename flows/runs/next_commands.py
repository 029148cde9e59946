"""Writes commands for a person to copy, and suggests three to try after a run."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from flows.recipe.overrides import TINY
from infra.context import context
from infra.store.location import parsed_location
from schemas.reports import RunRecord
from tasks.contract.kind import Product
from tasks.contract.kinds import kinds_producing, training_kinds


def copied(
    *words: str,
    store: str,
    data: str | Path | None = None,
    target: str = "local",
    overrides: Sequence[str] = (),
    code: Sequence[Path] = (),
) -> str:
    """A command line, ready to be copied: `lyceum`, these words, and the options without which it
    would do something else, the store where it is not the default one."""
    default = parsed_location(context().settings.store)
    options = {
        "--store": store if parsed_location(store) != default else None,
        "--data": str(data) if data else None,
        "--target": target if target != "local" else None,
    }
    given = [word for name, value in options.items() if value for word in (name, value)]
    for one in overrides:
        given += ["--tiny"] if one == TINY else ["--set", one]
    for file in code:
        given += ["--code", str(file)]
    return shlex.join(["lyceum", *words, *given])


def next_commands(
    record: RunRecord,
    recipe: str,
    store: str,
    data: str | Path | None = None,
    overrides: Sequence[str] = (),
    code: Sequence[Path] = (),
) -> list[str]:
    """Suggest what to try next. Arguments beside `record`: as they were given."""

    def command(*words: str) -> str:
        return copied(*words, store=store)

    run = record.run_id
    if record.status == "failed":
        # it cuts the sizes itself
        changed = [one for one in overrides if one != TINY]
        rehearse = copied("rehearse", recipe, store=store, data=data, overrides=changed, code=code)
        cloud = record.target != "local"
        doctor = copied("doctor", store=store, target=record.target)
        return [
            f"{command('report', run)}   # what there is so far; the same `run` goes on from it",
            f"{rehearse}   # finds in minutes what is wrong with a recipe",
            f"{doctor}   # or with {'credentials, zones and bucket' if cloud else 'this machine'}",
        ]
    if any(one.kind in training_kinds() and one.artifact for one in record.stages):
        evaluations = kinds_producing(Product.ANSWERS)
        asked = [one for one in record.recipe.stages if one.kind in evaluations]
        better = f"{command('gate', run)}   # is it better for certain?"
        page = f"{command('report', run)}   # its page again"
        return [
            command("ask", run, "What is 27+15?"),
            page if all("policy" in one.inputs for one in asked) else better,
            f"{command('export', run, '--to', 'model')}   # for transformers; needs --extra export",
        ]
    return [
        f"{command('scores', run, '--to', 'scores')}   # its answers, for other tools",
        f"{command('report', run)}   # its page again",
        f"{command('runs')}   # those to compare it with",
    ]

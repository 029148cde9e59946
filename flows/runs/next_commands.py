"""Suggests three commands to try after a run, complete and ready to be copied."""

import shlex
from collections.abc import Mapping

from schemas.reports import RunRecord
from tasks.contract.kind import Product
from tasks.contract.kinds import kinds_producing, training_kinds


def next_commands(record: RunRecord, recipe: str, elsewhere: Mapping[str, str]) -> list[str]:
    """Suggest what to try next.

    Args:
        recipe: as it was given.
        elsewhere: `--store` and `--data` as they were given, if they were.
    """
    store = {name: value for name, value in elsewhere.items() if name == "--store"}

    def command(*words: str, options: Mapping[str, str] = store) -> str:
        given = [word for option in options.items() for word in option]
        return shlex.join(["lyceum", *words, *given])

    run = record.run_id
    if record.status == "failed":
        rehearse = command("rehearse", recipe, options=elsewhere)
        cloud = {"--target": record.target} if record.target != "local" else {}
        doctor = command("doctor", options=store | cloud)
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

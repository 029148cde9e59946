"""Endpoints that jobs in the cloud ask (a judge's, a teacher's): whether they can be reached from
there, before a machine is paid for."""

from collections.abc import Collection

from flows.recipe.explain import outlook
from flows.recipe.resolve import ResolvedRecipe, ResolvedStage
from infra.context import context
from infra.store.store import Store
from schemas.base import InputError
from tasks.chat.provider import travelling


def check_endpoints(
    resolved: ResolvedRecipe, store: Store, target: str, force: Collection[str]
) -> None:
    """Raises InputError: a stage that is going to run on the target asks an endpoint whose URL or
    key cannot be had there."""
    problems = {
        stage.name: problem
        for stage in resolved.stages
        if (problem := _problem(resolved, stage, target))
    }
    if not problems:
        return
    made = {
        one.stage.name
        for one in outlook(resolved, store)
        if one.manifest is not None and one.stage.name not in force
    }
    wrong = [f"stage {name}: {problem}" for name, problem in problems.items() if name not in made]
    if wrong:
        raise InputError(" ".join(wrong))


def _problem(resolved: ResolvedRecipe, stage: ResolvedStage, target: str) -> str:
    if target == "local" or stage.kind in context().settings.local_kinds or resolved.at_home(stage):
        return ""
    try:
        travelling(stage.config_json)
    except InputError as error:
        return str(error)
    return ""

"""What every run begins with: its recipe resolved and all input checked, before anything is made or
started.

`lyceum run` prepares before Prefect is even imported, a night before it looks for what is new, and
a flow that was started elsewhere by itself: whoever prepared hands it to the flow (`handed`).
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from flows.planning.plan import check_fit
from flows.recipe.code import require_consent
from flows.recipe.explain import outlook
from flows.recipe.resolve import ResolvedRecipe, ResolvedStage, resolve
from infra.context import context
from infra.store.store import Store
from infra.targets import check_reach, check_target
from schemas.base import InputError
from schemas.reports import RunRecord
from tasks.chat.provider import travelling


@dataclass(frozen=True)
class Prepared:
    """A run that may begin. `data`: the absolute directory of `--data`.

    Attributes:
        ended: told the record of the run when it has ended, within its flow.
        plan: what it is going to take, on a TPU; minutes, where no plan like it was made on this
            machine. Raises DoesNotFit; StageFailed for a program that does not compile.
    """

    resolved: ResolvedRecipe
    store: Store
    target: str
    data: Path | None
    force: tuple[str, ...]
    ended: Callable[[RunRecord], None] = lambda record: None

    @cached_property
    def plan(self) -> dict[str, Any] | None:
        return check_fit(self.resolved, self.store, self.target)


def prepare(
    recipe: str,
    *,
    store: str,
    target: str,
    overrides: Collection[str],
    data: str,
    force: Collection[str],
    code: Collection[Path] | None = None,
) -> Prepared:
    """Resolve and check. `code`: the files that the recipe may run, as the person says who starts
    it; None where nobody is there to say so.

    Raises:
        InputError: bad input; nothing was made.
        StageFailed: the store does not answer.
    """
    directory = Path(data) if data else None
    resolved = resolve(recipe, tuple(overrides), directory)
    configs = {stage.name: stage.config_json for stage in resolved.stages}
    require_consent(configs, resolved.folders, code)
    check_target(target)
    for name in force:
        resolved.stage(name)
    check_reach(target, store)
    opened = context().store(store, write=False)  # nothing is made before all is well
    opened.require_near(context().settings)
    check_endpoints(resolved, opened, target, force)
    return Prepared(resolved, opened, target, directory and directory.absolute(), tuple(force))


def check_endpoints(
    resolved: ResolvedRecipe, store: Store, target: str, force: Collection[str]
) -> None:
    """Before a machine is paid for: raises InputError when a stage that is going to run on the
    target asks an endpoint (a judge's, a teacher's) whose URL or key cannot be had there."""
    found = {stage.name: _problem(resolved, stage, target) for stage in resolved.stages}
    problems = {name: f"stage {name}: {problem}" for name, problem in found.items() if problem}
    for one in outlook(resolved, store) if problems else ():
        if one.manifest is not None and one.stage.name not in force:
            problems.pop(one.stage.name, None)
    if problems:
        raise InputError(" ".join(problems.values()))


def _problem(resolved: ResolvedRecipe, stage: ResolvedStage, target: str) -> str:
    if target == "local" or stage.kind in context().settings.local_kinds or resolved.at_home(stage):
        return ""
    try:
        travelling(stage.config_json)
    except InputError as error:
        return str(error)
    return ""


_HANDED: ContextVar[Prepared] = ContextVar("prepared")


@contextmanager
def handed(prepared: Prepared) -> Iterator[None]:
    """The flow that is called inside begins with this."""
    token = _HANDED.set(prepared)
    try:
        yield
    finally:
        _HANDED.reset(token)


def taken() -> Prepared | None:
    """What was handed to this flow."""
    return _HANDED.get(None)

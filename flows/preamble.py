"""The beginning of every run: its recipe resolved and all input checked, before anything is made or
started.

`lyceum run` prepares before Prefect is even imported, a night before it looks for what is new, and
a flow that was started elsewhere by itself: whoever prepared hands it to the flow (`handed`).
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from flows.planning.stage_plans import check_fit
from flows.recipe.code import require_consent
from flows.recipe.explain import Neighbours, Outlook, outlook
from flows.recipe.resolve import ResolvedRecipe, ResolvedStage, resolve
from flows.runs.forecast import Forecast
from flows.runs.record import RunLog
from infra.backend import check_reach
from infra.context import context
from infra.store.location import expanded
from infra.store.store import Store
from infra.targets import check_target, require_account
from schemas.artifact import Manifest
from schemas.base import InputError
from schemas.job import JobRequest
from schemas.reports import RunRecord
from tasks.chat.provider import travelling


@dataclass(frozen=True)
class Parameters:
    """The arguments with which a run is started: the parameters of its flow
    (`flows.recipe.parameters`)."""

    recipe: str
    target: str
    store: str
    overrides: tuple[str, ...] = ()
    data: str = ""
    force: tuple[str, ...] = ()


@dataclass(frozen=True)
class Prepared:
    """A run that may begin. `data`: the absolute directory of `--data`.

    Attributes:
        given: what its flow is called with.
        ended: told the record of the run when it has ended, within its flow.
        group: the id that the run shares with runs of the same recipe under other seeds.
        label: what it is called on the terminal, beside others.
        opened: its store, for writing.
        plan: what it is going to take, on a TPU; minutes, where no plan like it was made on this
            machine. Raises DoesNotFit; StageFailed for a program that does not compile.
    """

    given: Parameters
    resolved: ResolvedRecipe
    store: Store
    data: Path | None
    ended: Callable[[RunRecord], None] = lambda record: None
    group: str | None = None
    label: str = ""

    @property
    def opened(self) -> Store:
        return context().store(self.store.uri)

    @cached_property
    def plan(self) -> dict[str, Any] | None:
        return check_fit(self.resolved, self.store, self.given.target)

    def outlook(self) -> list[Outlook]:
        """The outlook for each stage now, in file order."""
        return outlook(self.resolved, self.store)

    def forecast(self, outlooks: list[Outlook] | None = None) -> Forecast:
        """Tell what would happen, and how long it would take: by the plan, or as earlier runs took.
        `outlooks`: the `outlook`, where it is known already."""
        slots, recipe = context().settings.parallel_jobs, self.resolved.recipe
        if self.plan is not None and self.given.target != "local":
            stages = [{**one, **one.get("at_least", {})} for one in self.plan["stages"]]
            return Forecast(recipe, stages, True, slots)
        outlooks = self.outlook() if outlooks is None else outlooks
        stages = Neighbours(outlooks, self.store).plans(self.resolved, self.given.target)
        if self.given.target != "local":  # durations here say nothing about a machine there
            stages = [one if one["cached"] else {**one, "seconds": None} for one in stages]
        return Forecast(recipe, stages, False, slots)

    def request(self, stage: ResolvedStage, given: Mapping[str, Manifest], run: str) -> JobRequest:
        """The job's specification for a stage.

        Args:
            given: the artifacts of the stages that feed it, by their names.
            run: the id of the run, or empty where nothing is submitted.
        """
        inputs = {name: given[source].ref() for name, source in stage.inputs.items()}
        return JobRequest(
            stage=stage.name,
            kind=stage.kind,
            key=stage.key({name: ref.digest for name, ref in inputs.items()}),
            store=self.store.uri,
            target="local" if self.resolved.at_home(stage) else self.given.target,
            run=run,
            config=stage.config_json,
            dependencies=stage.dependencies,
            inputs=inputs,
            data=str(self.data) if self.data else None,
        )


def prepare(given: Parameters, code: Collection[Path] | None = None) -> Prepared:
    """Resolve and check. `code`: the files that the recipe may run, as the person says who starts
    it; None where nobody is there to say so.

    Raises:
        InputError: bad input; nothing was made.
        StageFailed: the store does not answer.
    """
    directory = expanded(given.data, "--data") if given.data else None
    target, force = given.target, given.force
    resolved = resolve(given.recipe, given.overrides, directory)
    resolved.foresee(directory)
    configs = {stage.name: stage.config_json for stage in resolved.stages}
    require_consent(configs, resolved.folders, code)
    check_target(target)
    if target != "local":
        _ = context().tpu  # raises what does not fit
    for name in force:
        resolved.stage(name)
    check_reach(target, given.store)
    opened = context().store(given.store, write=False)  # make nothing before all checks have passed
    opened.require_near(context().settings)
    check_away(resolved, opened, target, force)
    return Prepared(given, resolved, opened, directory and directory.absolute())


def check_away(resolved: ResolvedRecipe, store: Store, target: str, force: Collection[str]) -> None:
    """Before a machine is paid for: raises InputError when a stage that is going to run on the
    target asks an endpoint (a judge's, a teacher's) whose URL or key cannot be had there, or when
    no machine of the target can be asked for."""
    away = [stage for stage in resolved.stages if not resolved.at_home(stage)]
    if target == "local" or not away:
        return
    problems: list[tuple[set[str], str]] = []
    for stage in away:
        try:
            travelling(stage.config_json)
        except InputError as error:
            problems.append(({stage.name}, f"stage {stage.name}: {error}"))
    try:
        require_account(target)
    except InputError as error:
        problems.append(({stage.name for stage in away}, str(error)))
    going = {
        one.stage.name
        for one in (outlook(resolved, store) if problems else ())
        if one.manifest is None or one.stage.name in force
    }
    if told := [problem for names, problem in problems if names & going]:
        raise InputError(" ".join(told))


class Handed(NamedTuple):
    """The beginning of a flow: a run that may begin, and its record where it has begun already."""

    prepared: Prepared
    run: RunLog | None = None


_HANDED: ContextVar[Handed] = ContextVar("handed")


@contextmanager
def handed(prepared: Prepared, run: RunLog | None = None) -> Iterator[None]:
    """The flow that is called inside begins with this."""
    token = _HANDED.set(Handed(prepared, run))
    try:
        yield
    finally:
        _HANDED.reset(token)


def taken() -> Handed | None:
    """The run that was handed to this flow."""
    return _HANDED.get(None)

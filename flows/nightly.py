"""The nightly flow: train again on the rows that have come in, and promote the new model if, and
only if, it is better for certain.

Everything it does can be done again. The run reuses what is cached; whether a champion was decided
on is what the store says (`flows.promotion.champion`), so a night that was killed anywhere, even
between the gate and the promotion, is finished by the next one or by *Retry*, and a model is never
promoted twice. Whatever goes wrong, the champion stays.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import httpx
from prefect import flow, get_run_logger
from prefect.exceptions import Pause
from prefect.states import Cancelled, Completed, Failed, State

from flows.cli.interrupt import interruptible, suspendable
from flows.post_train import bad_input, post_train
from flows.preamble import Parameters, Prepared, handed, prepare
from flows.promotion.champion import Champion, current, history, model_of, promote, withdrawn
from flows.promotion.gate import gate, rematches
from flows.promotion.levels import take
from flows.promotion.nights import (
    Decision,
    NewRows,
    decision_name,
    is_unchanged,
    last_nightly,
    name_rematches,
    new_rows,
)
from flows.recipe.code import runs_code
from flows.recipe.parameters import Data, Force, Overrides, Recipe, StoreUri, Target
from flows.report.blocks import Block, Heading, Paragraph, Span, code
from flows.report.gate_blocks import gate_table
from flows.report.publish import publish_page
from flows.runs.next_commands import copied
from flows.runs.record import record_name
from flows.server.prefect_view import unless_busy
from flows.trackers import followed, logged
from infra.context import context
from infra.store.objects import Damaged
from infra.store.store import Store
from schemas.base import InputError, StageFailed, Stopped
from schemas.reports import RunRecord
from tasks.running.backends import close_backends
from tasks.running.watch import WATCH, Watch
from tasks.stage import submit_stage

BY = "nightly"
"""Who promotes, in the history of champions."""


# else than as JSON an exception is pickled
@flow(name="nightly", flow_run_name="{recipe}", persist_result=False, result_serializer="json")
def nightly(
    recipe: Recipe = "default",
    target: Target = "local",
    store: StoreUri = "",
    overrides: Overrides = (),
    data: Data = "",
    force: Force = (),
) -> State[Any]:
    """Train a recipe again with the rows that are new; promote the model if it gained for certain
    and lost nothing; say why or why not."""
    try:
        place = store or context().settings.store
        given = Parameters(recipe, target, place, overrides, data, force)
        prepared = prepare(given)
        opened, resolved = prepared.store, prepared.resolved
        champion = current(opened, resolved.recipe.name)
        last = last_nightly(opened, resolved.recipe.name)
        if last and not force and is_unchanged(opened, resolved, *last, champion):
            return Completed(
                name="Unchanged",
                message=f"nothing is new since run {last[0].run_id}; {_stays(champion)}",
            )
    except (InputError, StageFailed, OSError) as error:
        return bad_input(error)
    with _watched() as (watch, seen), interruptible(watch.stop), suspendable(watch):
        try:
            with handed(prepared):  # the run of a flow in a flow is made by a client of Prefect's
                state = unless_busy(lambda: post_train(**asdict(given), return_state=True))
        except httpx.TransportError as error:
            return Failed(message=f"{error}, so the run could not begin; {_stays(champion)}")
        if state.is_cancelled():
            return Cancelled(message=state.message)
        if not state.is_completed():
            return Failed(message=f"{_clause(state.message)}; {_stays(champion)}")
        run = seen[-1]
        try:
            fresh = new_rows(opened, run, last[0] if last else None)
            get_run_logger().info("%s", fresh.text)
            decision, champion = _decide(prepared, run, fresh, watch)
        except Stopped as stopped:
            return Cancelled(message=str(stopped))
        except (InputError, StageFailed, OSError, Damaged) as error:
            return Failed(
                message=f"run {run.run_id} could not be judged: {_clause(error)};"
                f" {_stays(champion)}"
            )
    said = f"run {run.run_id} was promoted: {decision.why}"
    if not decision.promoted:
        said = f"{_stays(champion)}; run {run.run_id} was not promoted: {decision.why}"
    try:
        opened.write_json(decision_name(run.run_id), decision)
    except (InputError, OSError) as error:
        return Failed(message=f"{said}; that could not be written: {error}")
    try:  # only a view: when the API cannot be reached, all is decided and done
        publish_page(run, "nightly", _page(run, decision, said), said)
    except httpx.HTTPError as error:
        get_run_logger().warning("the decision could not be shown in Prefect: %s", error)
    asked = f"; {decision.gate.night.text}" if decision.gate.night else ""
    return Completed(
        name="Promoted" if decision.promoted else "Kept", message=f"{said}{asked}; {fresh.text}"
    )


def _clause(said: object) -> str:
    """A message, for a sentence that goes on after it."""
    return str(said).removesuffix(".")


def _stays(champion: Champion | None) -> str:
    return f"the champion stays run {champion.run_id}" if champion else "there is no champion yet"


@contextmanager
def _watched() -> Iterator[tuple[Watch, list[RunRecord]]]:
    """The watch of the flow and its stages, and the versions of the run record that it is told from
    here on, the newest last."""
    outer = WATCH.get(None) or followed(Watch(), logged)
    seen: list[RunRecord] = []

    def record(version: RunRecord) -> None:
        seen[:] = [version]
        outer.record(version)

    token = WATCH.set(replace(outer, record=record))
    try:
        yield WATCH.get(), seen
    finally:
        WATCH.reset(token)


def _decide(
    prepared: Prepared, run: RunRecord, fresh: NewRows, watch: Watch
) -> tuple[Decision, Champion | None]:
    """Ask the gate and promote or not; again, when another champion counts by the time of the
    promotion. Returns the decision, and the champion that counts since.

    Raises:
        Stopped: the flow was stopped; nothing was promoted.
        InputError: the champion's run, or an artifact of this one, is gone or damaged.
        StageFailed: the champion could not be evaluated again.
    """
    store = prepared.store
    while True:
        entries = history(store, run.recipe.name)
        champion = entries[-1] if entries else None
        opponent = _run_of(store, champion) if champion else None
        _evaluate(prepared, run, opponent, watch)
        verdict = gate(store, run, opponent)
        if verdict.night and not take(store, run.recipe.name, verdict.night):
            get_run_logger().warning("another night was judged in this moment; deciding again")
            continue
        model = model_of(run).artifact
        given_up = withdrawn(entries).get(model.digest) if model else None
        why, entry = verdict.why, None
        if verdict.promote and given_up:
            overrule = copied("promote", run.run_id, store=store.uri)
            why = (
                f"its model was given up before, by {given_up.by} ({given_up.why}); `{overrule}`"
                " overrules that"
            )
        elif verdict.promote:
            if watch.stop.is_set():
                raise Stopped("stopped before the promotion; retry, or the next night, finishes it")
            entry = promote(store, run, why, by=BY, replacing=champion)
        if entry or given_up or not verdict.promote:
            champion = entry or champion
            decision = Decision(
                run_id=run.run_id,
                fresh=fresh,
                gate=verdict,
                why=why,
                promoted=entry is not None,
                champion=champion.number if champion else None,
                decided=time.time(),
            )
            return decision, champion
        get_run_logger().warning(
            "somebody else promoted another run in this moment; deciding again"
        )


def _run_of(store: Store, champion: Champion) -> RunRecord:
    record = store.read_json(record_name(champion.run_id), RunRecord)
    if record is None:
        raise InputError(
            f"the champion's run {champion.run_id} has no record in store {store.uri}, so nothing"
            " can be compared with it; `lyceum promote RUN` makes another run's model the champion"
        )
    return record


def _evaluate(prepared: Prepared, run: RunRecord, opponent: RunRecord | None, watch: Watch) -> None:
    """Have the opponent answer the candidate's prompts, held-out ones and suites, where it has not.
    What it answers is on record before, so that `lyceum gc` leaves it alone until the decision.
    Raises Stopped and StageFailed."""
    targets = dict.fromkeys(context().settings.local_kinds, "local")
    data = str(prepared.data) if prepared.data else None
    found = rematches(prepared.store, run, opponent)
    if found:
        name_rematches(prepared.store, run.run_id, [spec.key for spec in found])
    specs = [
        spec.model_copy(update={"target": targets.get(spec.kind, spec.target), "data": data})
        for spec in found
        if not runs_code(spec.config)  # it is made, or `rematches` would have refused it
    ]
    jobs = [(spec, submit_stage(spec)) for spec in specs]
    for _, future in jobs:
        try:
            future.wait()
        except Pause:
            watch.pause.set()
    for message in close_backends() if jobs else ():
        get_run_logger().error(message)
    if watch.stop.is_set() or watch.pause.is_set():
        raise Stopped("stopped before the decision; retry, or the next night, finishes it")
    for spec, future in jobs:
        if not future.state.is_completed():
            raise StageFailed(f"{spec.stage}: {future.state.message}")


def _page(run: RunRecord, decision: Decision, said: str) -> Iterator[Block]:
    """The decision: candidate and champion, what is new, every rule with what was found, and
    why."""
    verdict = decision.gate
    yield Heading(f"{run.recipe.name}: {'promoted' if decision.promoted else 'not promoted'}", 1)
    yield said
    model = f", model of stage {model_of(run).name}, against "
    against: tuple[str | Span, ...] = ("its own base: there is no champion",)
    if verdict.champion:
        against = "the champion, run ", code(verdict.champion)
    yield Paragraph(("Candidate: run ", code(run.run_id), model, *against, "."))
    yield f"Data: {decision.fresh.text}."
    yield from gate_table(verdict)

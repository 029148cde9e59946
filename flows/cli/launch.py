"""`lyceum run`: check everything, find a Prefect API, run the flow, and show it on the terminal
meanwhile."""

import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from flows.cli.interrupt import interruptible
from flows.cli.terminal import Terminal
from flows.planning.plan import check_fit
from flows.recipe.endpoints import check_endpoints
from flows.recipe.resolve import resolve
from flows.server.prefect_api import prefect_api, startup_seconds
from infra.settings import Settings
from infra.store.store import open_store
from infra.targets import check_reach, check_target
from schemas.base import StageFailed, Stopped
from schemas.reports import RunRecord

START_SECONDS = 15.0
"""A run that has not begun waits so long for a Prefect API that was lost; for one of ours, as long
as its start may take."""

END_SECONDS = 20.0
"""How long after the loss of the API a run that ends waits for it, so that how it ended is
recorded."""


def launch(
    recipe: str,
    *,
    store: str,
    target: str,
    overrides: Sequence[str],
    data: Path | None,
    force: Sequence[str],
) -> RunRecord:
    """Run a recipe to its end.

    All input is checked here first, before Prefect is even imported; the flow checks it again,
    because it can be started from elsewhere.

    Returns:
        The record of the run, whether it succeeded, failed or was stopped.

    Raises:
        InputError: bad input; nothing was started.
        DoesNotFit: a program is too large for the target; nothing was started.
        StageFailed: a program does not compile for the target, or Prefect's API does not answer;
            nothing was started.
        Stopped: Ctrl-C before the flow began.
    """
    resolved = resolve(recipe, overrides, data)
    check_target(target)
    for name in force:
        resolved.stage(name)
    settings = Settings.from_environment()
    check_reach(target, store)
    opened = open_store(store, write=False)  # nothing is made before all is well
    opened.require_near(settings)
    check_endpoints(resolved, opened, target, force)
    check_fit(resolved, opened, target)
    opened = open_store(store)

    stop = threading.Event()
    with interruptible(stop), Terminal() as terminal:
        terminal.say("Looking for a Prefect API ...")
        with prefect_api(stop, terminal.say) as api:
            import httpx
            from prefect.exceptions import CancelledRun, FailedRun

            from flows.post_train import post_train
            from flows.server.prefect_view import prefect_view
            from tasks.stage import WATCH, Watch

            terminal.say(f"Prefect API: {api}  Store: {opened.uri}")
            WATCH.set(Watch(stop, terminal.progress, terminal.say_of, terminal.record))
            patience = {
                "start_seconds": startup_seconds(api) or START_SECONDS,
                "end_seconds": END_SECONDS,
            }
            with (
                prefect_view(api.url, terminal.say, stop, **patience),
                suppress(CancelledRun, FailedRun),
            ):  # the record says it, and more
                try:
                    post_train(
                        recipe=recipe,
                        target=target,
                        store=opened.uri,
                        overrides=tuple(overrides),
                        data=str(data) if data else "",
                        force=tuple(force),
                    )
                except (
                    httpx.TransportError
                ) as error:  # before the flow began; after that nobody asks for an answer
                    raise (
                        Stopped
                        if stop.is_set()
                        else StageFailed(f"{error}, so the run could not begin")
                    ) from error
    assert terminal.latest is not None, "the flow begins its record before it returns a state"
    return terminal.latest


def exit_code(record: RunRecord) -> int:
    """The command line's exit code for a run that has ended."""
    if record.status == "succeeded":
        return 0
    if record.status == "cancelled":
        return 130
    failed = [stage.exit_code for stage in record.stages if stage.status == "failed"]
    return (failed[0] if failed else None) or 1


def run_json(record: RunRecord) -> dict[str, Any]:
    """What `lyceum run --json` prints."""
    stages = []
    for stage in record.stages:
        described = stage.model_dump(mode="json", exclude={"usage"})
        stages.append(
            {
                name: value
                for name, value in described.items()
                if name not in ("cost_usd", "error", "exit_code", "repaired") or value is not None
            }
        )
    return {
        "run_id": record.run_id,
        "recipe": record.recipe.name,
        "target": record.target,
        "store": record.store,
        "status": record.status,
        "stages": stages,
        "report": record.report,
    }

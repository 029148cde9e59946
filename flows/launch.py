"""`lyceum run`: check everything, find a Prefect API, run the flow, and show it on the terminal meanwhile."""

import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from flows.endpoints import check_endpoints
from flows.interrupt import interruptible
from flows.planning import check_fit
from flows.prefect_api import is_kept_up, prefect_api
from flows.resolve import resolve
from flows.terminal import Terminal
from infra.settings import Settings
from infra.store import open_store
from infra.targets import check_reach, check_target
from schemas.base import StageFailed, Stopped
from schemas.reports import RunRecord


def launch(recipe: str, *, store: str | None, target: str, overrides: Sequence[str], data: Path | None, force: Sequence[str]) -> RunRecord:
    """Run a recipe to its end.

    All input is checked here first, before Prefect is even imported; the flow checks it again, because it can be started from elsewhere.

    Returns:
        The record of the run, whether it succeeded, failed or was stopped.

    Raises:
        InputError: bad input; nothing was started.
        DoesNotFit: a program is too large for the target; nothing was started.
        StageFailed: a program does not compile for the target, or Prefect's API does not answer; nothing was started.
        Stopped: Ctrl-C before the flow began.
    """
    resolved = resolve(recipe, overrides, data)
    check_target(target)
    for name in force:
        resolved.stage(name)
    settings = Settings.from_environment()
    check_reach(target, store or settings.store)
    opened = open_store(store or settings.store)
    opened.require_near(settings)
    check_endpoints(resolved, opened, target, force)
    check_fit(resolved, opened, target)

    stop = threading.Event()
    with interruptible(stop), Terminal() as terminal:
        terminal.say("Looking for a Prefect API ...")
        with prefect_api(stop, terminal.say) as api:
            import httpx
            from prefect.exceptions import CancelledRun, FailedRun

            from flows.post_train import post_train
            from flows.prefect_view import prefect_view
            from tasks.stage import WATCH, Watch

            terminal.say(f"Prefect API: {api}  Store: {opened.uri}")
            WATCH.set(Watch(stop, terminal.progress, terminal.say_of, terminal.record))
            with prefect_view(api, terminal.say, stop, ours=is_kept_up(api)), suppress(CancelledRun, FailedRun):  # the record says so, and says more
                try:
                    post_train(
                        recipe=recipe,
                        target=target,
                        store=opened.uri,
                        overrides=tuple(overrides),
                        data=str(data) if data else "",
                        force=tuple(force),
                    )
                except httpx.TransportError as error:
                    if stop.is_set():
                        raise Stopped from error
                    raise StageFailed(f"{error}; nothing was started. Start the server, or unset PREFECT_API_URL.") from error
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
            {name: value for name, value in described.items() if name not in ("cost_usd", "error", "exit_code") or value is not None}
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

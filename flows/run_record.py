"""The run record: `runs/<run_id>/run.json`, written again whenever a stage ends. A view of what happened; the manifests are the truth."""

import os
import platform
import secrets
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Literal

from flows.resolve import ResolvedRecipe
from infra.store import Store
from schemas.base import InputError, nearest
from schemas.reports import RunRecord, StageRecord

PACKAGES = ("lyceum", "jax", "google-tunix", "flax", "optax", "qwix", "prefect")
"""Packages whose versions a run record states."""


def new_run_id(recipe: str) -> str:
    """`quickstart-20261121-101500-ab12`: recipe, local time, and four random characters against two starts in one second."""
    return f"{recipe}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def record_name(run_id: str) -> str:
    """The run record's name in the store."""
    return f"runs/{run_id}/run.json"


class RunLog:
    """Keeps the record of a run in the store while the run goes on; `watch` sees every new version of it."""

    def __init__(self, store: Store, resolved: ResolvedRecipe, target: str, watch: Callable[[RunRecord], None]) -> None:
        self._store = store
        self._watch = watch
        self._order = [stage.name for stage in resolved.stages]
        self.record = RunRecord(
            run_id=new_run_id(resolved.recipe.name),
            recipe=resolved.recipe,
            target=target,
            store=store.uri,
            status="running",
            started=time.time(),
            execution=_execution(),
        )
        self._save()

    def stage(self, stage: StageRecord) -> None:
        """A stage ended."""
        stages = sorted((*self.record.stages, stage), key=lambda one: self._order.index(one.name))
        self._update(stages=tuple(stages))

    def finish(self, status: Literal["succeeded", "failed", "cancelled"]) -> None:
        """The run ended. Stages without a record were never begun."""
        self._update(status=status, finished=time.time())

    def report(self, path: str) -> None:
        """The report was written."""
        self._update(report=path)

    def _update(self, **changes: Any) -> None:
        self.record = self.record.model_copy(update=changes)
        self._save()

    def _save(self) -> None:
        self._store.write_json(record_name(self.record.run_id), self.record)
        self._watch(self.record)


def read_run(store: Store, run_id: str) -> RunRecord:
    """The record of a run. Raises InputError naming the known runs."""
    known = store.list_runs()
    record = store.read_json(record_name(run_id), RunRecord) if run_id in known else None
    if record is None:
        raise InputError(f"unknown run {run_id!r} in store {store.uri}.{nearest(run_id, known)}")
    return record


def _execution() -> dict[str, Any]:
    return {
        "host": platform.node(),
        "cores": os.cpu_count(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "command": sys.argv,
    }

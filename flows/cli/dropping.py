"""Drops runs for `lyceum gc --drop-run`: not those that still run, nor those that a champion
needs."""

from collections.abc import Collection
from contextlib import suppress

from pydantic import ValidationError

from flows.promotion.champion import protected
from flows.runs.record import record_name, run_folder, run_status
from infra.store.store import Store
from schemas.base import InputError, nearest
from schemas.reports import RunRecord


def check_drop(store: Store, drop: Collection[str]) -> None:
    """Raise InputError for a run that may not be dropped: it is unknown, still running, or a
    champion's."""
    known, champions = (store.list_runs(), protected(store)) if drop else ([], {})
    for run in drop:
        if run not in known:
            raise InputError(f"unknown run {run!r} in store {store.uri}.{nearest(run, known)}")
        if run in champions:
            raise InputError(f"run {run!r} cannot be dropped: {champions[run]}.")
        with suppress(ValidationError):
            record = RunRecord.model_validate_json(store.read_bytes(record_name(run)) or b"")
            if run_status(record) == "running":
                raise InputError(
                    f"run {run!r} is running (process {record.process and record.process.pid});"
                    " stop it before dropping it."
                )


def drop_run(store: Store, run: str) -> None:
    """Remove a run. Its record goes first, and comes back if somebody has promoted the run
    meanwhile. Raises InputError."""
    name, kept = record_name(run), True
    record = store.read_bytes(name)
    remove(store, name)
    try:
        champions = protected(store)
        kept = run in champions
    finally:
        if kept and record is not None:
            store.create_bytes(name, record)
    if kept:
        raise InputError(f"run {run!r} cannot be dropped: {champions[run]}.")
    remove(store, run_folder(run))


def remove(store: Store, name: str) -> None:
    """Remove an object and all below it. Raises InputError: something is left."""
    store.remove(name)
    if next(store.objects(name), None) is not None:
        raise InputError(
            f"{store.location(name)} could not be removed; see whether you may write there, and run"
            " the same command again."
        )

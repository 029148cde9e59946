"""The stage kinds: the files in `tasks/stages/`."""

from typing import Any

from tasks.contract.kind import Evaluation, Kind, Product
from tasks.contract.plugins import Family

KINDS: Family[Kind[Any]] = Family("tasks.stages", Kind, "stage kind")


def stage_kinds() -> tuple[str, ...]:
    """Names of all stage kinds: the files in `tasks/stages/`."""
    return KINDS.names()


def stage_kind(name: str) -> Kind[Any]:
    """The stage kind of that name. Raises InputError with the valid kinds."""
    return KINDS[name]


def kinds_producing(*products: Product) -> tuple[str, ...]:
    """The names of all kinds that produce one of these."""
    return tuple(name for name in stage_kinds() if stage_kind(name).produces in products)


def training_kinds() -> tuple[str, ...]:
    """The names of all kinds that produce a model."""
    return kinds_producing(Product.MODEL)


def evaluation_of(kind: str) -> Evaluation:
    """The evaluation of a kind. Raises KeyError for a kind without one."""
    found = stage_kind(kind).evaluation
    if found is None:
        raise KeyError(f"stage kind {kind!r} has no evaluation")
    return found

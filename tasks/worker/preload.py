"""Imports what a job's kind needs before the job does, which is faster (`infra.importing`), and in
the server of forks once for all of them."""

from importlib import import_module

from infra.importing import importing
from tasks.contract.kind import Product
from tasks.contract.kinds import stage_kind

SAMPLING = ("tasks.models.loading", "tasks.sampling.sampler")
TRAINING = ("tasks.training.loop", "tasks.training.checkpoints", "tasks.models.lora")
"""Modules that import most of what stages import when they run."""


def preload(kind: str, devices: bool) -> None:
    """Import it; what computes only for a job that has devices.

    Raises InputError for an unknown kind, and what an import raises.
    """
    with importing():
        trains = stage_kind(kind).produces in (Product.MODEL, Product.REWARD)
        for module in (SAMPLING + TRAINING * trains) * devices:
            import_module(module)

"""A stage kind for `benchmarks.orchestration`, which puts this file into `tasks/stages/` of a copy
of the repository: see `chain_stage`."""

from typing import Any

from chain_stage import stage

from schemas.base import StrictModel
from tasks.contract.job import Job
from tasks.contract.kind import Input, Kind, Product


class Config(StrictModel):
    """`number`: which stage of the chain; `setting`: what it is made of beside its parent."""

    number: int
    setting: int


def run(job: Job[Config]) -> dict[str, Any]:
    """Write `data`."""
    parent = (job.inputs["parent"] / "data").read_bytes() if "parent" in job.inputs else b""
    (job.out / "data").write_bytes(stage(job.config.number, job.config.setting, parent))
    return {}


KIND = Kind(
    version=1,
    config=Config,
    inputs={"parent": Input(Product.EXPORT, required=False, same_kind=True)},
    produces=Product.EXPORT,
    run=run,
    small=lambda config, sizes: config,
)

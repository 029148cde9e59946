"""The chain on Prefect alone. `default`: its default cache policy; `content`: inputs and source,
without the run's id."""

import sys

from chain_stage import STAGES, finish, settings, stage
from prefect import flow, task
from prefect.cache_policies import DEFAULT, INPUTS, TASK_SOURCE

POLICY = DEFAULT if sys.argv[1] == "default" else INPUTS + TASK_SOURCE


@task(cache_policy=POLICY, persist_result=True)
def one(number: int, setting: int, parent: bytes) -> bytes:
    return stage(number, setting, parent)


@flow
def chain() -> None:
    data = b""
    for number, setting in zip(range(1, STAGES + 1), settings(), strict=True):
        data = one(number, setting, data)
    finish(data)


if __name__ == "__main__":
    chain()

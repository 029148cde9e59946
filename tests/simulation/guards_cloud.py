"""Guards of jobs on machines in the cloud, taken away."""

from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

from flows.cli import gc
from infra.tpu import reaper, state_machine
from infra.tpu.api import TpuApi
from infra.tpu.backend import CloudTpuBackend
from infra.tpu.host import Agent
from infra.tpu.job import TpuJob
from tasks.running import execution
from tests.simulation.guards_store import unheld_all
from tests.simulation.plan import Event, Fault, Plan
from tests.simulation.plant import Plant, replaced


def _request_unrecorded() -> AbstractContextManager[Any]:
    real = TpuJob._request

    def request(self: TpuJob) -> Any:
        with patch.object(self, "_write", lambda: True):
            return real(self)

    return patch.object(TpuJob, "_request", request)


def _foreign(self: TpuApi, name: str, *rest: Any) -> None:
    parent, _, short = name.partition("/queuedResources/")
    order = self.order(parent, short, *rest[:2], rest[2])
    request = {"parent": parent, "queued_resource_id": short, "queued_resource": order}
    self._ask(name, "create_queued_resource", request)


def _zone_left_alone() -> AbstractContextManager[Any]:
    real = TpuJob._go_on_elsewhere

    def go_on(self: TpuJob, problem: Any) -> None:
        real(self, problem)
        self._leaving.clear()
        self.record = self.record.model_copy(update={"resources": self.record.resources[-1:]})

    return patch.object(TpuJob, "_go_on_elsewhere", go_on)


def _never_silent() -> AbstractContextManager[Any]:
    real = state_machine._running

    def running(state: Any, seen: Any, terms: Any) -> Any:
        hosts = [replace(host, silent=0.0) for host in seen.hosts]
        return real(state, replace(seen, hosts=hosts), terms)

    return patch.object(state_machine, "_running", running)


def _charged_to_the_first(self: CloudTpuBackend, run: str) -> str | None:
    """What a job costs counts for the run that has submitted it."""
    spent = sum(job.cost_usd() for job in self.jobs.values() if job.record.run == run)
    limit = self._settings.max_usd
    return None if limit is None or spent < limit else "no more are started"


cloud = partial(Plant, target="v5e-8", place="bucket")

PLANTS = (
    cloud(
        "a machine of a job that ended is deleted",
        replaced(TpuJob, "_delete", lambda self: self._accepted.set()),
    ),
    cloud(
        "a request is on record before it is sent", _request_unrecorded, needs=("flow.* is killed",)
    ),
    cloud(
        "a job that outlived its flow is taken over",
        replaced(CloudTpuBackend, "attach", lambda self, *rest: None),
        needs=("flow.* (is killed|stands still)",),
    ),
    cloud("gc: machines that a run follows are left alone", replaced(reaper, "_free", unheld_all)),
    cloud(
        "gc: machines go before the records of their jobs",
        replaced(gc, "_with_machines", lambda *rest: set()),
        aim=Plan(
            *(0, "bucket", "v5e-8", 3, (0.0, 24.0)),
            (Fault("kill", "flow", "write tpu", 2),),
            (Event("refusal", 19.6, "cloud", 2.0, 4.0), Event("gc", 19.9, amount=1.0)),
        ),
    ),
    cloud(
        "a request that exists already may be ours",
        replaced(TpuApi, "create", _foreign),
        needs=("flow.* loses the answer to its 'ask create'",),
    ),
    cloud("a zone that is given up is cleared", _zone_left_alone),
    cloud(
        "a machine that nobody deletes deletes itself",
        replaced(Agent, "_wait_for_deletion", lambda self, final: None),
    ),
    cloud(
        "a run that finds its stage done clears its machines",
        replaced(CloudTpuBackend, "release", lambda self, *rest: None),
        aim=Plan(
            *(0, "bucket", "v5e-8", 1, (0.0,)),
            (Fault("kill", "flow 1", "ask get", 10),),
            (Event("freeze", 20.0, "machine 1"),),
        ),
    ),
    cloud("a run waits for the end of its machines", replaced(TpuJob, "cancel", lambda self: None)),
    cloud(
        "a run pays for what it has taken over",
        replaced(CloudTpuBackend, "_too_dear", _charged_to_the_first),
        aim=Plan(
            *(0, "bucket", "v5e-8", 3, (0.0, 0.0, 0.0)),
            (Fault("kill", "flow 2", "ask delete", 1),),
            (Event("stuck", 21.7, "machine 1"),),
            budget=0.01,
        ),
    ),
    cloud(
        "a job that has ended is not asked for again",
        replaced(TpuJob, "_has_come_and_gone", lambda self: False),
        aim=Plan(
            *(0, "bucket", "v5e-8", 4, (0.0, 35.0)),
            (Fault("pause", "flow 1", "ask get", 1, "before", 200.0),),
        ),
    ),
    cloud(
        "machines that came unseen are paid for",
        replaced(TpuJob, "_count_unseen", lambda self, found: None),
        aim=Plan(
            *(0, "bucket", "v5e-8", 2, (0.0,)),
            events=(
                Event("away", 6.1, seconds=150.0),
                Event("unbootable", 12.9, "machine 1"),
            ),
            budget=0.03,
        ),
    ),
    cloud(
        "a flow that another has passed gives its job up",
        replaced(execution, "_has_newer_job", lambda store, claim: False),
        aim=Plan(
            *(0, "bucket", "v5e-8", 2, (0.0, 0.0)),
            (Fault("pause", "flow", "ask create", 1, "before", 15.0),),
        ),
    ),
    cloud("a silent machine is given up", _never_silent),
)

"""One job on TPUs, from its request to the moment when nothing of it is left:
`infra.tpu.state_machine` decides, this does.

The job's thread asks the API, decides and acts; it never waits long for anything, so that a
cancellation is acted upon within seconds. What the VMs say is read by another
(`infra.tpu.listener`). Whoever polls reads what these two know, at once.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from infra.backend import JobHandle
from infra.secrets import mask
from infra.settings import TpuSettings
from infra.store.store import Store
from infra.tpu.api import GONE, QUEUED, ApiError, Resource, TpuApi, left_over, zone_of
from infra.tpu.job_record import TpuRecord, record_name
from infra.tpu.listener import Listener
from infra.tpu.problems import Problem
from infra.tpu.reaper import gc_command
from infra.tpu.state_machine import BEFORE, Seen, State, Step, Terms, duration, failure, next_step
from infra.tpu.types import TpuType
from schemas.base import InputError
from schemas.job import JobStatus

log = logging.getLogger("lyceum.tpu")

RECORD_SECONDS = 5.0
"""How long one attempt to write the record may take."""
EXPIRY_SECONDS = 60.0
"""A request fails by itself so long after this process, if it lives, has given it up."""
ACCEPT_SECONDS = 15.0
"""How long `cancel` waits until the API has accepted the deletion."""
FINAL_LOOK_SECONDS = 3.0
"""How long the store is asked for a last word of a job that is dead by what the API says."""
_WITH_VMS = ("booting", "running")


@dataclass(frozen=True)
class Order:
    """The request to the API for a job, in whatever zone."""

    short: str
    labels: Mapping[str, str]
    metadata: Mapping[str, str]


class TpuJob:
    """A job, which begins to live with `start`.

    Args:
        record: as far as it has come.
        zones: where else it may be tried, the preferred one first.
        order: what to ask for.
        too_dear: why no machine may be asked for any more, None if one may.
        asked: whether another process may have sent the request.
        final: the final status of a job that has ended already, and only needs to be deleted.
    """

    def __init__(
        self,
        api: TpuApi,
        kind: TpuType,
        store: Store,
        handle: JobHandle,
        record: TpuRecord,
        zones: Sequence[str],
        order: Order,
        tpu: TpuSettings,
        too_dear: Callable[[], str | None],
        asked: bool,
        final: JobStatus | None = None,
    ) -> None:
        self.record = record
        self._api, self._kind, self._store = api, kind, store
        self._handle, self._order, self._tpu = handle, order, tpu
        tried = {zone_of(name) for name in record.resources}
        self._zones = [zone for zone in zones if zone not in tried]
        self._refusals: tuple[Problem, ...] = ()
        self._taken_over, self._too_dear = record.state != "requested", too_dear
        self._looked = self._before = (time.monotonic(), time.time())
        self._phase, self._final = "", final
        self._since = self._asked = time.monotonic()
        self._sent, self._may_exist = False, asked
        self._resource: Resource | None = None
        self._problem: Problem | None = None
        self._next_look = self._unanswered = 0.0
        self._leaving: set[str] = set()
        self._unseen: dict[str, float] = {}  # given up -> the last look that found no VM of it
        self._following = float("inf")
        self._cancelled, self._accepted = threading.Event(), threading.Event()
        self._left, self._wake = threading.Event(), threading.Event()
        self._thread = threading.Thread(
            target=self._work, name=f"tpu-{handle.key[:8]}-{handle.attempt}", daemon=True
        )
        self._listener = Listener(
            store, handle, kind.hosts, tpu.poll_seconds, lambda: self._has_vms, self._wake.set
        )
        self.log = self._listener.log

    @property
    def _has_vms(self) -> bool:
        return self.record.state in _WITH_VMS

    def start(self) -> None:
        """Begin. Once."""
        self._thread.start()
        self._listener.start()

    # What others ask, at any time, without waiting

    def status(self) -> JobStatus:
        cost = self.cost_usd()
        if self._final is not None:
            return self._final.model_copy(update={"cost_usd": cost})
        heard = self._listener.hosts()[0].status
        if heard is not None:
            # a final one is the job's as soon as the machine has taken note of it
            return JobStatus(
                state="running", heartbeat=heard.heartbeat, progress=heard.progress, cost_usd=cost
            )
        return JobStatus(state="queued", heartbeat=time.time(), phase=self._phase, cost_usd=cost)

    def cost_usd(self) -> float:
        """The dollars paid until now: for a job that has ended until its deletion is accepted."""
        gone = self._final is None or self._accepted.is_set()
        record = self.record if gone else self.record.model_copy(update={"ended": None})
        return record.cost_usd(time.time())

    def cancel(self) -> None:
        self._cancelled.set()
        self._wake.set()
        if not self._accepted.wait(ACCEPT_SECONDS):
            log.warning(
                "the deletion of %s was not accepted for %.0f s; it is tried again",
                self.record.resources[-1],
                ACCEPT_SECONDS,
            )

    def leave(self) -> None:
        """See JobBackend.leave: its machine stays, for whoever has taken the job over."""
        self._left.set()
        self._wake.set()

    def close(self) -> str | None:
        """Wait until nothing is left of a job that was cancelled or has ended, `delete_seconds`
        from then on. Returns what is, for people."""
        if self._final is None and not self._cancelled.is_set():
            return None
        most = self._tpu.delete_seconds
        self._thread.join(max(0.0, min(most, self._following - time.monotonic())) + ACCEPT_SECONDS)
        if not self._thread.is_alive():
            return None
        left = sorted(self._leaving) or self.record.resources
        return left_over(left, f"it was not gone after {duration(most)}")

    # The machine

    def _work(self) -> None:
        try:
            self._live()
        except (OSError, InputError) as error:
            self._end("failed", failure(str(error), 2 if isinstance(error, InputError) else 1))
        except Exception as error:
            log.exception("the job on %s is given up", self.record.resources)
            why = f"the TPU is given up because of an error in Lyceum: {error!r}"
            self._end("failed", failure(why))
        self._listener.stop()
        if self._final is None:
            self._accepted.set()
        else:
            self._delete()

    def _live(self) -> None:
        """Until the job has ended, or is left to another run."""
        while self._final is None and not self._left.is_set():
            if self._cancelled.is_set():
                self._end("done", JobStatus(state="cancelled", heartbeat=time.time()))
                return
            if time.monotonic() >= self._next_look:
                self._looked = time.monotonic(), time.time()
                self._next_look = self._looked[0] + self._tpu.poll_seconds
                self._problem = self._request() if self.record.state == "requested" else self._ask()
            if self._final is None:
                self._take(self._decide())
            self._sweep()
            if self._final is None:
                self._wake.wait(max(0.0, self._next_look - time.monotonic()))
                self._wake.clear()

    def _decide(self) -> Step:
        if self._listener.trouble is not None:
            raise self._listener.trouble
        step = self._next()
        ending = step.action in ("delete", "next_zone") and step.state != "done"
        if ending and self._may_have_worked():
            heard = self._listener.look(FINAL_LOOK_SECONDS)
            step = self._next()
            if step.action == "next_zone" and not heard:  # as long as nobody can tell
                return Step(self.record.state, phase=step.phase)
        return step

    def _next(self) -> Step:
        # of the last look: what this process saw before it stood still is no news
        record, now = self.record, self._looked[0]
        seen = Seen(
            seconds=max(0.0, now - self._since),
            asked_seconds=max(0.0, now - self._asked),
            active_seconds=time.time() - record.active if record.active is not None else 0.0,
            resource=self._resource,
            problem=self._problem,
            hosts=self._listener.hosts(),
        )
        what, zone = f"{self._kind.name} ({self._tpu.tier})", zone_of(record.resources[-1])
        gc = gc_command(self._kind.name, self._store.uri)
        terms = Terms(what, zone, self._tpu, gc, bool(self._zones), self._refusals)
        return next_step(record.state, seen, terms)

    def _take(self, step: Step) -> None:
        """Go where the step leads."""
        self._phase = step.phase
        if step.state in BEFORE and self._problem is None:
            self._before = self._looked
        if step.action == "next_zone" and step.problem is not None:
            self._go_on_elsewhere(step.problem)
        elif step.status is not None:
            self._end(step.state, step.status)
        elif step.state != self.record.state:
            self._since = time.monotonic()
            began: dict[str, float] = {}
            if step.state in _WITH_VMS and self.record.active is None:
                # After the last look that found none; of a job taken over, when they were made.
                created = self._resource.created if self._taken_over and self._resource else None
                began = {"active": created or self._before[1]}
            self.record = self.record.model_copy(update={"state": step.state, **began})
            self._write()

    def _go_on_elsewhere(self, problem: Problem) -> None:
        """Give the zone up, and ask in the next one at once."""
        log.warning("%s; trying %s", problem.text, self._zones[0])
        record = self.record
        self._leaving.add(record.resources[-1])
        if record.active is None:
            self._unseen[record.resources[-1]] = self._before[1]
        self._refusals = (*self._refusals, problem)
        name = self._api.name(self._zones.pop(0), self._order.short)
        changes = {
            "resources": (*record.resources, name),
            "active": None,
            "spent_usd": record.cost_usd(time.time()),
            "state": "requested",
        }
        self.record = record.model_copy(update=changes)
        self._resource, self._problem, self._next_look = None, None, 0.0
        self._since = self._asked = time.monotonic()
        self._sent = self._may_exist = False

    def _end(self, state: State, status: JobStatus) -> None:
        """The job has ended, and whoever polls is told so; the deletion comes next."""
        error = mask(status.error) if status.error else None
        changes = {"state": state, "ended": time.time(), "reason": error or status.state}
        if self.record.active is None and self._may_have_worked():
            changes["active"] = self._before[1]
        self.record = self.record.model_copy(update=changes)
        if self.record.active is None:
            self._unseen[self.record.resources[-1]] = self._before[1]
        self._final = status.model_copy(update={"error": error, "phase": ""})

    def _may_have_worked(self) -> bool:
        """Whether there are VMs, or some may have come and gone while this process slept."""
        beyond = (*QUEUED, "PROVISIONING", "FAILED")
        seen = self._resource is not None and self._resource.request not in beyond
        return self._has_vms or seen or self._listener.hosts()[0].status is not None

    def _request(self) -> Problem | None:
        """Send the request, which is on record before, unless one that was sent before is there or
        its machine came and went meanwhile. Returns what stands against it."""
        name = self.record.resources[-1]
        gone = self._may_exist and self._has_come_and_gone()
        if gone:
            return None
        if gone is None or not self._write():
            return Problem("transient", f"{self._store.uri} does not answer")
        if self._cancelled.is_set():
            return None
        if why := self._too_dear():
            self._end("failed", failure(why))
            return None
        if not self._sent:  # measure from now on: this process may have stood still before
            self._since = time.monotonic()
            self._sent = True
        try:
            # with its name, so that the VM can delete itself
            metadata = {**self._order.metadata, "lyceum-resource": name}
            expiry = self._tpu.queue_seconds + EXPIRY_SECONDS
            found = self._api.find(name, self._order.labels) if self._may_exist else None
            if found is None:
                self._may_exist = True
                self._api.create(name, self._order.labels, metadata, expiry)
            self._asked = time.monotonic()  # accepted, late if the API was away: it waits from here
            self._resource = found or self._api.look(name)
        except ApiError as error:
            if error.problem.kind == "transient":
                self._unanswered = time.monotonic()
            return error.problem
        return None

    def _has_come_and_gone(self) -> bool | None:
        """Whether its machine worked and went, or another run ended the job; None: unknown."""
        try:
            known = self._store.read_json(record_name(self._handle), TpuRecord)
        except InputError:  # damaged
            known = None
        except OSError:
            return None
        if known is not None and known.ended is not None:
            self._end("failed", failure("another run has ended this job", lost=True))
            return True
        heard = self._listener.look(FINAL_LOOK_SECONDS)
        return self._listener.hosts()[0].status is not None if heard else None

    def _ask(self) -> Problem | None:
        """Look at the resource. Returns why the API does not tell."""
        try:
            self._resource = self._api.look(self.record.resources[-1])
        except ApiError as error:
            self._resource = None
            return error.problem
        return None

    def _write(self) -> bool:
        """Write the record, without much patience. Returns whether that worked. What a person must
        put right ends a job that lives, and makes no difference to one that has ended."""
        try:
            self._store.write_json(record_name(self._handle), self.record, RECORD_SECONDS)
        except (OSError, InputError) as error:
            if isinstance(error, InputError) and self._final is None:
                raise
            log.warning("%s could not be written: %s", record_name(self._handle), error)
            return False
        return True

    # The deletion

    def _sweep(self) -> bool:
        """Ask for the deletion of all that is to go. Returns whether the API has accepted that."""
        accepted = True
        for name in sorted(self._leaving):
            try:
                gone = self._api.remove(name, self._count_unseen)
            except ApiError as error:
                accepted = False
                log.warning("the deletion of %s is tried again: %s", name, error)
                continue
            # A request whose acknowledgement was lost may still arrive after it was not found.
            if gone and time.monotonic() - self._unanswered > 2 * self._tpu.poll_seconds:
                self._leaving.discard(name)
        return accepted

    def _count_unseen(self, found: Resource) -> None:
        """VMs that came while the API did not answer are paid for as well."""
        if found.node in ("", GONE, "CREATING") or found.name not in self._unseen:
            return
        since, record = self._unseen.pop(found.name), self.record
        changes = {"active": since}
        if found.name != record.resources[-1]:
            hours = max(0.0, time.time() - since) / 3600
            changes = {"spent_usd": record.spent_usd + hours * record.usd_per_hour}
        self.record = record.model_copy(update=changes)

    def _delete(self) -> None:
        """Until nothing is left, as long as this process lives: nobody else may be there to ask."""
        self._leaving |= set(self.record.resources)
        self._following = time.monotonic() + self._tpu.delete_seconds
        written, began, ended = False, time.time(), self.record.ended
        while self._leaving:
            swept = self._sweep()
            if ended is not None and not self._accepted.is_set():  # it is paid for until now
                later = ended + time.time() - began
                self.record = self.record.model_copy(update={"ended": later})
            if swept:
                self._accepted.set()
            written = written or self._write()
            if self._leaving:
                hurry = 1.0 if time.monotonic() < self._following else self._tpu.poll_seconds
                time.sleep(min(self._tpu.poll_seconds, hurry))
        self.record = self.record.model_copy(update={"state": "deleted"})
        self._write()
        self._accepted.set()

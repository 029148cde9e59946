"""A job on several hosts: the same worker on each, a process of its own here, with CPU devices, a
cache of its own, and one bucket."""

import os
import sys

from infra.process import Worker, worker_environment
from infra.store.store import open_store
from tests.fakes.process import free_port, python, until

SETTINGS = {
    "LYCEUM_CHECKPOINT_STEPS": "2",
    "LYCEUM_CHECKPOINT_SECONDS": "3600",
    "LYCEUM_HEARTBEAT_SECONDS": "0.2",  # a host that is gone is missed after 3 s
    "LYCEUM_TEST_LAYERS": "1",
}


def test_a_worker_that_jax_has_ended_says_that_a_host_is_gone(tmp_path, monkeypatch):
    monkeypatch.setenv("LYCEUM_HOSTS", "2")
    worker = Worker(
        open_store(tmp_path), "key", "1", command=[sys.executable, "-c", "import os; os.abort()"]
    )
    worker.start(worker_environment(""))
    status = until(lambda: worker.poll(1), lambda status: status.state != "running")
    assert status.lost
    assert "killed by signal 6 (Aborted), as JAX does when another host of the job is gone" in str(
        status.error
    )


FAILURES = """
import os, sys
from infra.settings import Settings
from tasks.devices import hosts

hosts.connect(Settings.from_environment())
agreed = hosts.agree([hosts.host()])
if hosts.host() == 1:
    failure = hosts.first_failure("the disk is full", 2, sure=True)
    hosts.barrier()
else:
    hosts.barrier()
    failure = hosts.first_failure("Gloo: connection closed", 1, sure=False)
print(agreed, *failure)
sys.stdout.flush()
hosts.leave()
os._exit(0)
"""


def test_all_hosts_say_of_what_the_first_one_failed() -> None:
    coordinator = f"127.0.0.1:{free_port()}"
    shared = {
        **os.environ,
        **SETTINGS,
        "JAX_PLATFORMS": "cpu",
        "LYCEUM_HOSTS": "2",
        "LYCEUM_COORDINATOR": coordinator,
    }
    hosts = [python("-c", FAILURES, env={**shared, "LYCEUM_HOST": host}) for host in ("0", "1")]
    said = [host.communicate(timeout=120)[0].splitlines()[-1] for host in hosts]
    assert said == ["[0] host 1: the disk is full 2", "[0] the disk is full 2"]

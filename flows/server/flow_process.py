"""`python -m flows.server.flow_process`: the process of a run that a worker starts. It is Prefect's
engine, and goes on while the server is away.

The work pool of `lyceum serve` starts runs this way; Prefect's worker puts the flow run's id into
the environment.
"""

import runpy
import threading

from flows.cli.answer import say
from flows.server.prefect_api import bypass_proxy

PATIENCE_SECONDS = 120.0
"""Seconds that a run waits for a server that is lost before the run begins, or shortly before it
ends, while the server restarts."""


def main() -> None:
    """Run the flow. It ends like Prefect's engine."""
    bypass_proxy()
    from prefect.settings import get_current_settings

    from flows.server.prefect_view import prefect_view
    from flows.trackers import followed, logged
    from tasks.running.watch import WATCH, Watch

    url, stop = get_current_settings().api.url, threading.Event()
    assert url is not None, "a worker gives each run PREFECT_API_URL"
    # a run that is stopped does not wait for the server either
    WATCH.set(followed(Watch(stop), logged))
    with prefect_view(url, say, stop, start_seconds=PATIENCE_SECONDS, end_seconds=PATIENCE_SECONDS):
        runpy.run_module("prefect.engine", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

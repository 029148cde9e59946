"""`lyceum` as a process of its own that begins as a fork of one which has imported Prefect and
scikit-learn: each process would take 6 s of a core to import them again.

The first fork starts that process, with the environment of this one, of which Prefect reads
PREFECT_API_URL as it is imported; the fixture `prefect_api` comes before.
"""

import multiprocessing
import os
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from flows.cli.main import main
from infra.process import ROOT

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["flows.cli.rehearse", "flows.post_train", "sklearn.linear_model", "pyarrow.parquet", __name__]
)


class Ended(NamedTuple):
    """What became of a command: its exit code, what it printed, and the processor seconds that it
    and the processes that it started took."""

    code: int
    out: str
    error: str
    processor_seconds: float


def lyceum(arguments: list[str], environment: Mapping[str, str], place: Path) -> Ended:
    """Run a command to its end. `place`: an empty directory for what it prints."""
    process = FORKS.Process(target=_run, args=(arguments, dict(environment), place))
    process.start()
    process.join()
    assert process.exitcode is not None
    texts = [(place / name).read_text(encoding="utf-8") for name in ("out", "error")]
    used = (place / "used").read_text() if (place / "used").exists() else "nan"
    return Ended(process.exitcode, texts[0], texts[1], float(used))


def _run(arguments: list[str], environment: dict[str, str], place: Path) -> None:
    """In the fork."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(ROOT)
    for number, name in ((1, "out"), (2, "error")):
        os.dup2(os.open(place / name, os.O_WRONLY | os.O_CREAT), number)
    try:
        sys.exit(main(arguments))
    finally:
        own, started = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        used = own.ru_utime + own.ru_stime + started.ru_utime + started.ru_stime
        (place / "used").write_text(str(used))

"""The stage that every tool of `benchmarks.orchestration` runs six times: 1 MiB, a function of its
parent's bytes and of its setting.

Standard library only: it is imported by each tool's own Python. A line in `ran.log` says that a
stage began; it waits while a file `hold-<number>` is there. `BENCH_DIR` is where both are, and
`settings.json`.
"""

import hashlib
import json
import os
import time
from pathlib import Path

STAGES = 6
SIZE = 1 << 20


def directory() -> Path:
    return Path(os.environ["BENCH_DIR"])


def settings() -> list[int]:
    """The setting of each stage."""
    found: list[int] = json.loads((directory() / "settings.json").read_text(encoding="utf-8"))
    return found


def made_of(setting: int, parent: bytes) -> bytes:
    """The artifact of a stage."""
    return hashlib.shake_256(hashlib.sha256(parent + str(setting).encode()).digest()).digest(SIZE)


def stage(number: int, setting: int, parent: bytes) -> bytes:
    """Run a stage, 1 to 6."""
    with (directory() / "ran.log").open("a", encoding="utf-8") as log:
        log.write(f"{number}\n")
    while (directory() / f"hold-{number}").exists():
        time.sleep(0.005)
    return made_of(setting, parent)


def finish(last: bytes) -> None:
    """Say what the tool holds the last stage's artifact to be."""
    (directory() / "final.txt").write_text(hashlib.sha256(last).hexdigest(), encoding="utf-8")

"""What the tables of `benchmarks/README.md` share: peers' environments, figures of several rounds, and the line about the machine."""

import datetime
import importlib.metadata
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil


def installed(scratch: Path, name: str, packages: Sequence[str], python: str = "") -> Path:
    """The Python of the environment `scratch/envs/name`, which holds these packages and what they need; made unless it is there.

    Wheels where PIP_FIND_LINKS points are taken, too (a machine may have a torch without CUDA there).

    Args:
        packages: with exact versions.
        python: its version, by default this one's.
    """
    environment = scratch / "envs" / name
    done, wanted = environment / "installed.txt", "\n".join(packages)
    interpreter = environment / "bin" / "python"
    if not done.exists() or done.read_text(encoding="utf-8") != wanted:
        sys.stderr.write(f"installing {name}: {', '.join(packages)}\n")
        version = python or f"{sys.version_info.major}.{sys.version_info.minor}"
        subprocess.run(["uv", "venv", "--quiet", "--clear", "--python", version, str(environment)], check=True)
        wheels = {"UV_FIND_LINKS": os.environ["PIP_FIND_LINKS"]} if "PIP_FIND_LINKS" in os.environ else {}
        # From there, because uv would hold a peer to the constraints in this project's pyproject.toml.
        install = ["uv", "pip", "install", "--quiet", "--python", str(interpreter.absolute()), *packages]
        subprocess.run(install, cwd=environment, env={**os.environ, **wheels}, check=True)
        done.write_text(wanted, encoding="utf-8")
    return interpreter


def resident(pid: int) -> int:
    """Bytes that a process and those below it hold in memory; pages that they share count for each."""
    total = 0
    try:
        for process in (one := psutil.Process(pid), *one.children(recursive=True)):
            total += process.memory_info().rss
    except psutil.Error:
        return total
    return total


def spread(values: Sequence[float], form: str) -> str:
    """Median (lowest to highest), as a cell of a table: "1.52 (1.48 to 1.60)"."""
    low, middle, high = (format(value, form) for value in (min(values), statistics.median(values), max(values)))
    return middle if low == high else f"{middle} ({low} to {high})"


def machine(*packages: str) -> str:
    """Date, machine, and the versions of these packages here: the line above a table."""
    versions = [f"{name} {importlib.metadata.version(name)}" for name in packages]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    about = [
        datetime.date.today().isoformat(), f"{processor()}, {os.cpu_count()} cores, {memory:.0f} GiB", platform.platform(),
        f"Python {platform.python_version()}", *versions,
    ]  # fmt: skip
    return "; ".join(about)


def processor() -> str:
    """The processor's name, as Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()

"""The parts that all tables here share: rounds in which the sides take turns, ratios of one round,
watched processes, peers' environments, and the printing.

A ratio is always of two measurements of the same round, so that a busy minute strikes both sides.
"""

import argparse
import datetime
import importlib.metadata
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

ROOT = Path(__file__).resolve().parent.parent
T = TypeVar("T")


def parser(doc: str | None, rounds: int = 0, *, scratch: bool = False) -> argparse.ArgumentParser:
    """The command line of a script, whose help is the script's docstring.

    Args:
        rounds: the default of `--rounds`; 0: there is no such option.
        scratch: whether the script wants a directory to work in.
    """
    made = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if scratch:
        made.add_argument("scratch", type=lambda text: Path(text).absolute())
    if rounds:
        made.add_argument("--rounds", type=int, default=rounds)
    return made


def take_turns(sides: Mapping[str, Callable[[int], T]], rounds: int) -> dict[str, list[T]]:
    """Call every side once a round with the round's number, in every second round backwards."""
    found: dict[str, list[T]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in list(sides)[:: 1 if number % 2 == 0 else -1]:
            began = time.perf_counter()
            found[name].append(sides[name](number))
            tell(f"round {number + 1} of {rounds}, {name}: {time.perf_counter() - began:.1f} s")
    return found


def ratios(numerators: Iterable[float], denominators: Iterable[float]) -> list[float]:
    """One round's value over the other's, round by round."""
    return [one / other for one, other in zip(numerators, denominators, strict=True)]


def spread(values: Sequence[float], form: str) -> str:
    """Median (lowest to highest), as a cell of a table: "1.52 (1.48 to 1.60)"."""
    ends = (min(values), statistics.median(values), max(values))
    low, middle, high = (format(value, form) for value in ends)
    return middle if low == high else f"{middle} ({low} to {high})"


def heading(*columns: str) -> None:
    """Print the first two lines of a table."""
    print(f"\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)


def row(*cells: object) -> None:
    """Print a line of a table."""
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def tell(text: str) -> None:
    """Say how far the measurement is, on stderr."""
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Watched:
    """A process that has ended.

    Attributes:
        wall: seconds from its start to its end.
        cpu: processor seconds, with those of children that it waited for.
        peak: the most bytes that its process tree had resident, sampled every 0.1 s; pages that
            its processes share count once for each.
    """

    wall: float
    cpu: float
    peak: int


def watch(command: Sequence[str], log: Path, limit: float = 3600.0, **options: Any) -> Watched:
    """Run a command to its end; `log` gets what it says.

    Raises SystemExit with the end of the log when it fails or takes longer than `limit` seconds.
    """
    began, peak, pid = time.perf_counter(), 0, 0
    with log.open("ab") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=out, start_new_session=True, **options
        )
    while not pid:
        peak = max(peak, resident(process.pid))
        time.sleep(0.1)
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if not pid and time.perf_counter() - began > limit:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise SystemExit(f"{command} has not ended after {limit:g} s: {end_of(log)}")
    wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command} ended with {process.returncode}; see {log}\n{end_of(log)}")
    return Watched(wall, usage.ru_utime + usage.ru_stime, peak)


def end_of(log: Path) -> str:
    """The last 2,000 characters of a log."""
    return log.read_text(encoding="utf-8", errors="replace")[-2000:]


def resident(pid: int) -> int:
    """Bytes that a process and those below it hold in memory."""
    total = 0
    try:
        for process in (one := psutil.Process(pid), *one.children(recursive=True)):
            total += process.memory_info().rss
    except psutil.Error:
        return total
    return total


def installed(scratch: Path, name: str, packages: Sequence[str]) -> Path:
    """The Python of the environment `scratch/envs/name`, made unless it holds these packages.

    Wheels where PIP_FIND_LINKS points are taken, too: a machine may have a torch without CUDA
    there.

    Args:
        packages: with exact versions.
    """
    environment = scratch / "envs" / name
    done, wanted = environment / "installed.txt", "\n".join(packages)
    python = environment / "bin" / "python"
    if not done.exists() or done.read_text(encoding="utf-8") != wanted:
        tell(f"installing {name}: {', '.join(packages)}")
        make = ["uv", "venv", "--quiet", "--clear", "--python", sys.executable, str(environment)]
        subprocess.run(make, check=True)
        links = os.environ.get("PIP_FIND_LINKS")
        # Called in the environment, since here uv would hold a peer to our own constraints.
        install = ["uv", "pip", "install", "--quiet", "--python", str(python), *packages]
        settings = {**os.environ, **({"UV_FIND_LINKS": links} if links else {})}
        subprocess.run(install, cwd=environment, env=settings, check=True)
        done.write_text(wanted, encoding="utf-8")
    return python


def machine(*packages: str) -> str:
    """Date, machine, load, and the versions of these packages here: the line above a table."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    about = [datetime.date.today().isoformat(), f"{processor()}, {os.cpu_count()} cores"]
    about += [f"{memory:.0f} GiB", platform.platform(), f"Python {platform.python_version()}"]
    about += [f"{name} {importlib.metadata.version(name)}" for name in packages]
    return "; ".join([*about, f"load {os.getloadavg()[0]:.1f} before"])


def processor() -> str:
    """The processor's name, as Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()

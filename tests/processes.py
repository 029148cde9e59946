"""Processes of this machine, as /proc has them. They, and threads, may end while they are looked
at."""

from contextlib import suppress
from pathlib import Path


def descendants(pid: int) -> list[tuple[int, str]]:
    """Process ids below one, its own children first, with their states."""
    children: list[int] = []
    with suppress(OSError):
        for task in list(Path(f"/proc/{pid}/task").iterdir()):
            with suppress(OSError):
                children += map(int, (task / "children").read_text().split())
    return [(child, state_of(child)) for child in children] + [
        found for child in children for found in descendants(child)
    ]


def name_of(pid: int) -> str:
    """The name of a process; nothing where there is no such process any more."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def exists(pid: int) -> bool:
    """Whether a process runs; a zombie has ended."""
    return state_of(pid) not in "ZX"


def state_of(pid: int) -> str:
    """One letter as in /proc; X where there is no such process any more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def marked(mark: str) -> dict[int, str]:
    """Every process with a variable of its environment, `NAME=VALUE`, and its command line."""
    found = {}
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (directory / "environ").read_bytes().split(b"\0"):
                command = (directory / "cmdline").read_bytes().decode(errors="replace")
                found[int(directory.name)] = command.replace("\0", " ")
    return found

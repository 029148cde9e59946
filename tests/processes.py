"""Processes of this machine, as /proc has them."""

from pathlib import Path


def descendants(pid: int) -> list[tuple[int, str]]:
    """Process ids below one, with their states."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    return [(child, state_of(child)) for child in children] + [
        found for child in children for found in descendants(child)
    ]


def state_of(pid: int) -> str:
    """One letter as in /proc; X where there is no such process any more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"

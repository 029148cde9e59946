"""From nothing to a finished quickstart: commands, minutes, bytes; and the installations of TRL and
Tunix as their READMEs have them.

    python -m benchmarks.newcomer SCRATCH [--only lyceum,trl,tunix]

Each project gets an empty home (so empty caches of uv, pip and hubs), an empty directory below
SCRATCH, and a Python with nothing but pip. Then its documented commands run, one after the other,
as a newcomer would type them; ours are taken out of README.md, in a fresh clone of the last commit.
Settings of this machine for pip, uv and hubs are not passed on.

installed     seconds until the last documented command of installation ended; ours is the part of
              `uv run` up to uv's line "Installed"
first figure  until the first loss of a training step is on the screen
finished      until the documented program has ended
downloaded    bytes that came through a proxy on 127.0.0.1 which every command had to use
              (`newcomer_proxy`), TLS included; our clone by its pack. Of them "index": hosts other
              than the one that sent most, which serves the packages
on disk       what lies below home and directory in the end, a file with several names once

TRL's and Tunix's programs cannot download their weights and data where there is no hub:
docs/measurements.md has what a few steps of them took on stand-ins.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.newcomer_proxy import Counts, counting
from benchmarks.paired import ROOT, heading, machine, parser, row, tell

PATIENCE = 1800.0
"""Seconds after which a command is ended."""
OURS_ONLY = (
    *("PIP_", "UV_", "VIRTUAL_ENV", "PYTHON", "CONDA_", "HF_"),
    *("LYCEUM_", "PREFECT_", "JAX_", "XLA_"),
)
"""Settings of this machine that a newcomer has not."""
TRL, TUNIX = "trl==1.16.0", "google-tunix==0.1.7"
NOT_EQUAL = """
Not equal: the quickstarts do different things. Ours takes a tiny model of random weights through
six stages and measures it before and after. TRL's and Tunix's fine-tune real ones of 494 and 268
million parameters by SFT alone, and are meant for an accelerator; only their installation is
measured here. The peers document pip, which is slower than uv. Only the named versions are pinned:
what they need is the newest of the day, and for TRL a torch with CUDA. This machine's package index
sends its pages uncompressed: elsewhere they are a fraction.

Sources, read on 2026-11-22: README.md of TRL 1.16.0 in its wheel ("Installation"), and
docs/quickstart.md of google/tunix at v0.1.7 (tunix.readthedocs.io/en/latest/quickstart.html)."""


@dataclass
class Command:
    """One command that has ended."""

    text: str
    seconds: float
    down: Counter[str]
    """Bytes received, by host."""
    lines: list[tuple[float, str]]
    """What it printed, with seconds since its begin."""
    memory: int
    """Bytes of its largest process, children that it waited for included."""

    def at(self, pattern: str) -> float:
        """When the first line with this was printed."""
        for seconds, line in self.lines:
            if re.search(pattern, line):
                return seconds
        raise SystemExit(f"`{self.text}` printed no line like {pattern!r}:\n{self.tail()}")

    def tail(self) -> str:
        return "\n".join(line for _, line in self.lines[-30:])


@dataclass
class Newcomer:
    """Somebody with an empty home, an empty directory and a bare Python."""

    name: str
    directory: Path
    proxy: Counts
    commands: list[Command] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.directory.exists():
            shutil.rmtree(self.directory)
        self.work, self.home = self.directory / "work", self.directory / "home"
        self.bare = self.directory / "python"
        self.work.mkdir(parents=True)
        self.home.mkdir()
        subprocess.run([sys.executable, "-m", "venv", str(self.bare)], check=True)

    def environment(self) -> dict[str, str]:
        """This machine's, less its own settings: certificates stay, as the way out needs them."""
        kept = {k: v for k, v in os.environ.items() if not k.upper().startswith(OURS_ONLY)}
        path = os.pathsep.join([str(self.bare / "bin"), "/usr/local/bin", "/usr/bin", "/bin"])
        own = {"HOME": str(self.home), "PATH": path, "PIP_CONFIG_FILE": os.devnull}
        return kept | own | {"PYTHONUNBUFFERED": "1"} | self.proxy.environment

    def type(self, text: str, where: Path | None = None) -> Command:
        """A line of a shell. Raises SystemExit when it fails."""
        tell(f"[{self.name}] {text}")
        before, begun, lines = Counter(self.proxy.down), time.perf_counter(), []
        process = subprocess.Popen(
            ["bash", "-c", text],
            cwd=where or self.work,
            env=self.environment(),
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

        def end() -> None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

        timer = threading.Timer(PATIENCE, end)
        timer.start()
        assert process.stdout is not None
        try:
            for line in process.stdout:
                lines.append((time.perf_counter() - begun, line.rstrip()))
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        finally:
            timer.cancel()
            end()  # its children do not outlive it
        seconds, down = time.perf_counter() - begun, Counter(self.proxy.down) - before
        command = Command(text, seconds, down, lines, usage.ru_maxrss * 1024)
        self.commands.append(command)
        tell(f"[{self.name}]   {seconds:.1f} s, {down.total() / 1e6:.1f} MB {dict(down)}")
        if process.returncode:
            code = process.returncode
            raise SystemExit(f"{self.name}: `{text}` ended with {code}:\n{command.tail()}")
        return command

    @property
    def seconds(self) -> float:
        """All commands so far."""
        return sum(command.seconds for command in self.commands)

    def downloaded(self, clone: int = 0) -> str:
        by_host = sum((command.down for command in self.commands), Counter[str]())
        index = by_host.total() - max(by_host.values(), default=0)
        more = f", clone {size(clone)}" if clone else ""
        return f"{size(by_host.total() + clone)} (index {size(index)}{more})"

    def disk(self) -> str:
        """Bytes on disk below the newcomer's directories."""
        seen: dict[tuple[int, int], int] = {}
        for folder, _, names in os.walk(self.directory):
            for name in names:
                about = os.lstat(os.path.join(folder, name))
                seen[about.st_dev, about.st_ino] = about.st_blocks * 512
        return size(sum(seen.values()))


Column = dict[str, str]
"""What stands in a project's column, by line of the table."""


def lyceum(newcomer: Newcomer) -> Column:
    """Clone, then the first command of the README."""
    newcomer.type(f"git clone --no-local {ROOT} lyceum")
    clone = newcomer.work / "lyceum"
    pack = sum(path.stat().st_size for path in (clone / ".git/objects/pack").iterdir())
    readme = (clone / "README.md").read_text(encoding="utf-8")
    block = re.search(r"^```\n(.+?)\n```", readme, re.MULTILINE | re.DOTALL)
    if not block:
        raise SystemExit("README.md has no block of commands")
    quickstart = block[1].splitlines()[0]
    for command in quickstart.split(" && "):
        newcomer.type(command, clone)
    *before, run = newcomer.commands
    spent = sum(command.seconds for command in before)
    [found] = (clone / ".lyceum" / "runs").glob("*/run.json")
    stages = json.loads(found.read_text(encoding="utf-8"))["stages"]
    rates = {stage["name"]: stage["metrics"] for stage in stages}
    base, end = rates["base_eval"], rates["grpo_eval"]
    safe = [rates[name]["safe_rate"] for name in ("base_safety", "safety_eval")]
    return {
        "commands": f"{1 + quickstart.count('&&') + 1}: `git clone`, `{quickstart}`",
        "accounts, accelerator": "no account, no accelerator",
        "installed": minutes(spent + run.at(r"^Installed \d+ packages")),
        "first figure of training": minutes(spent + run.at(r"steps loss=")),
        "finished": minutes(newcomer.seconds),
        "downloaded": newcomer.downloaded(pack),
        "on disk": newcomer.disk(),
        "memory of the largest process": size(run.memory),
        "what one has in the end": (
            "six stages, two evaluations and a report; exact answers of "
            f"{end['n']} held-out prompts {base['exact_answer']:.1%} -> {end['exact_answer']:.1%}, "
            f"safe answers {safe[0]:.0%} -> {safe[1]:.0%}, a model that `lyceum ask` talks to"
        ),
    }


def trl(newcomer: Newcomer) -> Column:
    """README of TRL 1.16.0: "Installation"."""
    return peer(newcomer, "no account; an accelerator, unnamed", f"pip install {TRL}")


def tunix(newcomer: Newcomer) -> Column:
    """Quick Start of Tunix 0.1.7's documentation: "Installation", option A, CPU."""
    enter = "source .venv/bin/activate"
    install = [
        f"{enter} && pip install --upgrade pip",
        f'{enter} && pip install {TUNIX} "jax[cpu]"',
    ]
    return peer(
        newcomer,
        "a Hugging Face account that accepted Gemma's licence, and gcloud",
        "python3 -m venv .venv",
        *install,
    )


def peer(newcomer: Newcomer, needs: str, *commands: str) -> Column:
    """The installation of a peer."""
    for command in commands:
        newcomer.type(command)
    return {
        "commands": f"{len(commands)} to install",
        "accounts, accelerator": needs,
        "installed": minutes(newcomer.seconds),
        "downloaded": f"{newcomer.downloaded()}, without weights and data",
        "on disk": f"{newcomer.disk()}, without weights and data",
    }


PROJECTS: dict[str, Callable[[Newcomer], Column]] = {"lyceum": lyceum, "trl": trl, "tunix": tunix}


def minutes(seconds: float) -> str:
    return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"


def size(amount: float) -> str:
    """Bytes in MB or GB (powers of ten)."""
    return f"{amount / 1e9:.2f} GB" if amount >= 1e9 else f"{amount / 1e6:.0f} MB"


def main() -> None:
    made = parser(__doc__, scratch=True)
    made.add_argument("--only", default=",".join(PROJECTS), help="which, with commas between")
    options = made.parse_args()
    columns: dict[str, Column] = {}
    typed: list[Command] = []
    names = options.only.split(",")
    if unknown := {*names} - {*PROJECTS}:
        made.error(f"--only: there is no {', '.join(unknown)}; there are {', '.join(PROJECTS)}")
    for name in names:
        with counting() as proxy:
            newcomer = Newcomer(name, options.scratch / "newcomer" / name, proxy)
            columns[name] = PROJECTS[name](newcomer)
        typed += newcomer.commands
        shutil.rmtree(newcomer.directory)  # gigabytes
    print(f"{machine()}; {TRL}, {TUNIX}; one round")
    heading("", *columns)
    for line in dict.fromkeys(line for column in columns.values() for line in column):
        row(line, *(column.get(line, "") for column in columns.values()))
    heading("command", "s", "MB")
    for command in typed:
        text = command.text.replace(str(ROOT), "REPOSITORY")
        row(f"`{text}`", f"{command.seconds:.1f}", f"{command.down.total() / 1e6:.1f}")
    print(NOT_EQUAL)


if __name__ == "__main__":
    main()

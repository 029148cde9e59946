"""From nothing to a finished quickstart: commands, minutes, bytes: ours, TRL's and Tunix's, as their READMEs have them.

    python -m benchmarks.newcomer SCRATCH [--only lyceum,trl,tunix]

Each project gets an empty home (so empty caches of uv, pip and hubs) and an empty directory below SCRATCH, and a Python with nothing but
pip. Then its documented commands run, one after the other, as a newcomer would type them; ours are taken out of README.md, in a fresh
clone of the last commit. Settings of this machine for pip, uv and hubs are not passed on.

installed         seconds until the last documented command of installation ended; ours is the part of `uv run` up to uv's line "Installed".
first figure      until the first loss of a training step is on the screen.
finished          until the documented program has ended.
downloaded        bytes that came through a proxy on 127.0.0.1 which every command had to use (`newcomer_proxy`), TLS included; our clone by
                  its pack. Of them "index": hosts other than the one that sent most, which serves the packages.
on disk           what lies below home and directory in the end, a file with several names once; stand-ins and our measurements not counted.

Here is no hub: TRL's and Tunix's programs cannot download their weights and data. So their steps are measured on stand-ins of the published
shape (`newcomer_peers`), and what follows from seconds per step and the documented number of steps is marked "~". Sizes of weights and data
are marked "published". The sources are named below the table.
"""

import argparse
import contextlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.newcomer_proxy import Counts, counting
from benchmarks.side_by_side import machine

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / "benchmarks" / "newcomer_peers"
PATIENCE = 1800.0
"""Seconds after which a command is ended."""
OURS_ONLY = (
    "PIP_",
    "UV_",
    "VIRTUAL_ENV",
    "PYTHON",
    "CONDA_",
    "HF_",
    "LYCEUM_",
    "PREFECT_",
    "JAX_",
    "XLA_",
)
"""Settings of this machine that a newcomer has not."""
STEPS = {"trl": 2, "tunix": 2}
"""Measured training steps of each shape; the first one warms up or compiles, and is not counted in the rate."""


@dataclass
class Command:
    """One command that has ended."""

    text: str
    seconds: float
    down: dict[str, int]
    """Bytes received, by host."""
    lines: list[tuple[float, str]]
    """What it printed, with seconds since its begin."""
    code: int
    memory: int
    """Bytes of its largest process, children that it waited for included."""

    def at(self, pattern: str) -> float:
        """When the first line with this was printed."""
        for seconds, line in self.lines:
            if re.search(pattern, line):
                return seconds
        tail = "\n".join(line for _, line in self.lines[-20:])
        raise SystemExit(
            f"`{self.text}` printed no line like {pattern!r}, and ended with {self.code}; its last lines:\n{tail}"
        )


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
        self.work.mkdir(parents=True)
        self.home.mkdir()
        subprocess.run([sys.executable, "-m", "venv", str(self.bare)], check=True)

    @property
    def work(self) -> Path:
        return self.directory / "work"

    @property
    def home(self) -> Path:
        return self.directory / "home"

    @property
    def bare(self) -> Path:
        return self.directory / "python"

    def environment(self) -> dict[str, str]:
        """This machine's, less its own settings: certificates stay, as the way out needs them."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.upper().startswith(OURS_ONLY)
        }
        path = os.pathsep.join([str(self.bare / "bin"), "/usr/local/bin", "/usr/bin", "/bin"])
        own = {
            "HOME": str(self.home),
            "PATH": path,
            "PIP_CONFIG_FILE": os.devnull,
            "PYTHONUNBUFFERED": "1",
        }
        return kept | own | self.proxy.environment

    def type(
        self, text: str, where: Path | None = None, limit: float = PATIENCE, counted: bool = True
    ) -> Command:
        """A line of a shell. Commands that fail end the benchmark; `counted` False: a measurement of ours, not a newcomer's."""
        sys.stderr.write(f"[{self.name}] {text}\n")
        before, begun, lines = dict(self.proxy.down), time.perf_counter(), []
        process = subprocess.Popen(
            ["bash", "-c", text], cwd=where or self.work, env=self.environment(), text=True, errors="replace",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        with _ended(process, limit):
            assert process.stdout is not None
            for line in process.stdout:
                lines.append((time.perf_counter() - begun, line.rstrip()))
            _, status, usage = os.wait4(process.pid, 0)
            code = process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - begun
        down = {
            host: amount - before.get(host, 0)
            for host, amount in self.proxy.down.items()
            if amount > before.get(host, 0)
        }
        command = Command(text, seconds, down, lines, code, usage.ru_maxrss * 1024)
        sys.stderr.write(
            f"[{self.name}]   {seconds:.1f} s, {sum(down.values()) / 1e6:.1f} MB {down}, exit {code}\n"
        )
        if code:
            tail = "\n".join(line for _, line in lines[-30:])
            raise SystemExit(f"{self.name}: `{text}` ended with {code}:\n{tail}")
        if counted:
            self.commands.append(command)
        return command

    def measured(self, peer: str, before: str) -> tuple[dict[str, Any], float, int]:
        """What `newcomer_peers/PEER_measured.py` found; seconds of its imports and from "ready" to the first step; its memory."""
        out = self.directory / f"{peer}.json"
        command = self.type(
            f"{before}python {PEERS / peer}_measured.py {STEPS[peer]} {out}", counted=False
        )
        found = json.loads(out.read_text(encoding="utf-8"))
        return (
            found,
            command.at("^imported")
            + command.at("^step 1 of")
            - found["seconds"][0]
            - command.at("^ready"),
            command.memory,
        )

    @property
    def seconds(self) -> float:
        """All counted commands so far."""
        return sum(command.seconds for command in self.commands)

    def downloaded(self) -> tuple[int, int]:
        """Bytes, and those of them that the index served."""
        by_host: dict[str, int] = {}
        for command in self.commands:
            for host, amount in command.down.items():
                by_host[host] = by_host.get(host, 0) + amount
        return sum(by_host.values()), sum(by_host.values()) - max(by_host.values(), default=0)

    def disk(self) -> int:
        """Bytes on disk below the newcomer's directories."""
        seen: dict[tuple[int, int], int] = {}
        for folder, _, names in os.walk(self.directory):
            for name in names:
                about = os.lstat(os.path.join(folder, name))
                seen[about.st_dev, about.st_ino] = about.st_blocks * 512
        return sum(seen.values())


@contextlib.contextmanager
def _ended(process: subprocess.Popen[str], limit: float) -> Iterator[None]:
    """The process and its children do not outlive this block, nor `limit` seconds."""

    def end() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(limit, end)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        end()


@dataclass
class Row:
    """A column of the table."""

    commands: str
    needs: str
    installed: float
    first: str
    finished: str
    downloaded: str
    disk: str
    memory: str
    ends_with: str
    typed: list[Command]


def lyceum(newcomer: Newcomer) -> Row:
    """Clone, then the first command of the README."""
    newcomer.type(f"git clone --no-local {ROOT} lyceum")
    clone = newcomer.work / "lyceum"
    pack = sum(path.stat().st_size for path in (clone / ".git" / "objects" / "pack").iterdir())
    block = re.search(
        r"^```\n(.+?)\n```",
        (clone / "README.md").read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    if not block:
        raise SystemExit("README.md has no block of commands")
    quickstart = block[1].splitlines()[0]
    for command in quickstart.split(" && "):
        newcomer.type(command, clone)
    *before, run = newcomer.commands
    spent = sum(command.seconds for command in before)
    record = json.loads(
        next((clone / ".lyceum" / "runs").glob("*/run.json")).read_text(encoding="utf-8")
    )
    rates = {stage["name"]: stage["metrics"] for stage in record["stages"]}
    (total, index), base, end = newcomer.downloaded(), rates["base_eval"], rates["grpo_eval"]
    safe = rates["base_safety"]["safe_rate"], rates["safety_eval"]["safe_rate"]
    return Row(
        commands=f"{1 + quickstart.count('&&') + 1}: `git clone`, `{quickstart}`",
        needs="no account, no accelerator",
        installed=spent + run.at(r"^Installed \d+ packages"),
        first=minutes(spent + run.at(r"steps loss=")),
        finished=minutes(newcomer.seconds),
        downloaded=f"{size(total + pack)} (index {size(index)}, clone {size(pack)}); weights and data: none",
        disk=size(newcomer.disk()),
        memory=size(run.memory),
        ends_with=f"six stages, two evaluations and a report; exact answers of {end['n']} held-out prompts {base['exact_answer']:.1%} -> "
        f"{end['exact_answer']:.1%}, safe answers {safe[0]:.0%} -> {safe[1]:.0%}, a model that `lyceum ask` talks to",
        typed=newcomer.commands,
    )


def trl(newcomer: Newcomer) -> Row:
    """README of TRL 1.16.0: "Installation", and the first program of "Quick Start"."""
    newcomer.type(f"pip install trl=={TRL}")
    installed, (total, index), disk = newcomer.seconds, newcomer.downloaded(), newcomer.disk()
    found, begin, memory = newcomer.measured("trl", "")
    rows, update = found["rows_by_default"], found["optimizer"][-1]
    step = update + (found["seconds"][-1] - update) * rows / found["rows"]
    steps = round(math.ceil(CAPYBARA_ROWS / rows) * found["epochs"])
    by = f"{step:.0f} s each by {found['seconds'][-1]:.1f} s for {found['rows']} rows"
    holds = f"{steps:,} steps of {rows} x {found['length']:,} tokens, {by}"
    refused = (
        f'never as printed: "{found["refused"]}"; with `use_cpu=True`, ' if found["refused"] else ""
    )
    return Row(
        commands="2: `pip install trl`, and `python` with a file of 7 lines from its README",
        needs="no account; an accelerator, though its README names none"
        if found["refused"]
        else "no account; no accelerator is named",
        installed=installed,
        first=f"~{minutes(installed + begin + found['logging_steps'] * step)} ({found['logging_steps']} steps)",
        finished=f"{refused}~{minutes(installed + begin + steps * step)} ({holds})",
        downloaded=f"{size(total)} (index {size(index)}); published: weights 988 MB, tokenizer 11 MB, data 38 MB",
        disk=f"{size(disk)} + 1.04 GB of weights and data, and ~{size(QWEN_PARAMETERS * CHECKPOINT_BYTES)} a checkpoint",
        memory=f"{size(memory)} with {found['rows']} rows",
        ends_with="a model after SFT; nothing is evaluated",
        typed=newcomer.commands,
    )


def tunix(newcomer: Newcomer) -> Row:
    """Quick Start of Tunix 0.1.7's documentation: "Installation", option A, CPU."""
    enter = "source .venv/bin/activate"
    newcomer.type("python3 -m venv .venv")
    newcomer.type(f"{enter} && pip install --upgrade pip")
    newcomer.type(f'{enter} && pip install google-tunix=={TUNIX} "jax[cpu]"')
    installed, (total, index), disk = newcomer.seconds, newcomer.downloaded(), newcomer.disk()
    found, begin, memory = newcomer.measured("tunix", f"{enter} && ")
    few, many = (found["by_rows"][str(rows)] for rows in found["rows"])
    whole = few + (many - few) / (found["rows"][1] - found["rows"][0]) * (
        TUNIX_BATCH - found["rows"][0]
    )
    begin += max(0.0, found["seconds"][0] - few)
    wrong = ", ".join(f"`{each}`" for each in found["unknown"])
    holds = f"{TUNIX_STEPS} steps of {TUNIX_BATCH} x {found['length']} tokens"
    return Row(
        commands="4 to install; then `gcloud storage cp`, a login to Hugging Face, and 5 blocks of Python of its page, less their imports",
        needs="a Hugging Face account that accepted Gemma's licence, and gcloud; its notebook: a TPU v6e-1, of which 43 GiB are used",
        installed=installed,
        first=f"~{minutes(installed + begin + whole)}",
        finished=f"never as printed: {TUNIX} knows no {wrong}; mended, ~{minutes(installed + begin + TUNIX_STEPS * whole)} ({holds}, "
        f"{whole:.0f} s each by {few:.1f} and {many:.1f} s for {found['rows'][0]} and {found['rows'][1]} rows)",
        downloaded=f"{size(total)} (index {size(index)}); published: weights 536 MB, tokenizer 5 MB, and the data",
        disk=f"{size(disk)} + 0.54 GB of weights, and the data",
        memory=f"{size(memory)} with {found['rows'][1]} rows; published for {TUNIX_BATCH}: 43 GiB",
        ends_with="weights in memory, two translations; nothing is evaluated",
        typed=newcomer.commands,
    )


TRL, TUNIX = "1.16.0", "0.1.7"
CAPYBARA_ROWS = 15_806
QWEN_PARAMETERS = 494_032_768
CHECKPOINT_BYTES = 2 + 8
"""A parameter in a checkpoint of TRL's default precision and optimizer: weights, and two moments of AdamW."""
TUNIX_BATCH, TUNIX_STEPS = 64, 100
PROJECTS: dict[str, Callable[[Newcomer], Row]] = {"lyceum": lyceum, "trl": trl, "tunix": tunix}
NOT_EQUAL = """\
Not equal: the quickstarts do different things. Ours takes a tiny model of random weights through six stages and measures it before and
after. TRL's and Tunix's fine-tune real ones of 494 and 268 million parameters by SFT alone, and are meant for an accelerator (Tunix's
notebook: 1.2 s a step on a v6e-1); the table has what this processor takes. Figures with "~" are extrapolated from steps measured here
on stand-ins of the same shape with random weights (`benchmarks/newcomer_peers`); the time of the downloads that could not be made is not in
them. The peers document pip, which is slower than uv. Only the named versions are pinned: what they need is the newest of the day, and for
TRL a torch with CUDA. This machine's package index sends its pages uncompressed: elsewhere they are a fraction.

Sources, read on 2026-11-22: README.md of TRL 1.16.0 in its wheel ("Installation", "Quick Start"); docs/quickstart.md of google/tunix at
v0.1.7 (tunix.readthedocs.io/en/latest/quickstart.html) and examples/qlora_gemma.ipynb, to which it refers; Qwen2.5-0.5B as mirrored on the
hub (model.safetensors 988 MB, tokenizer.json 7.03, vocab.json 2.78, merges.txt 1.67); huggingface.co/datasets/HuggingFaceH4/capybara, the
same conversations (15,806 rows, 37.7 MB), and datasets/LDJnr/Capybara ("average context length per conversation is over 1,000 tokens");
Gemma 3 270M by its shape at two bytes a parameter."""


def minutes(seconds: float) -> str:
    """Seconds below ten minutes as min and s; then hours; then days."""
    if seconds < 600:
        return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"


def size(amount: float) -> str:
    """Bytes in MB or GB (powers of ten)."""
    return f"{amount / 1e9:.2f} GB" if amount >= 1e9 else f"{amount / 1e6:.0f} MB"


def show(rows: dict[str, Row]) -> None:
    """Print the table, then what each command took."""
    titles = {"lyceum": "Lyceum", "trl": f"TRL {TRL}", "tunix": f"Tunix {TUNIX}"}
    print(
        f"{machine()}; one round\n\n| | {' | '.join(titles[name] for name in rows)} |\n|---|{'---|' * len(rows)}"
    )
    cells: dict[str, Callable[[Row], str]] = {
        "commands": lambda row: row.commands,
        "accounts, accelerator": lambda row: row.needs,
        "installed": lambda row: minutes(row.installed),
        "first figure of training": lambda row: row.first,
        "finished": lambda row: row.finished,
        "downloaded": lambda row: row.downloaded,
        "on disk": lambda row: row.disk,
        "memory of the largest process": lambda row: row.memory,
        "what one has in the end": lambda row: row.ends_with,
    }
    for title, cell in cells.items():
        print(f"| {title} | {' | '.join(cell(row) for row in rows.values())} |")
    print("\n| command | s | MB |\n|---|---|---|")
    for row in rows.values():
        for command in row.typed:
            text = command.text.replace(str(ROOT), "REPOSITORY")
            print(f"| `{text}` | {command.seconds:.1f} | {sum(command.down.values()) / 1e6:.1f} |")
    print("\n" + NOT_EQUAL)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scratch", type=Path)
    parser.add_argument(
        "--only", default=",".join(PROJECTS), help="which of them, with commas between"
    )
    options = parser.parse_args(arguments)
    rows = {}
    for name in options.only.split(","):
        with counting() as proxy:
            newcomer = Newcomer(name, options.scratch.absolute() / "newcomer" / name, proxy)
            rows[name] = PROJECTS[name](newcomer)
        shutil.rmtree(newcomer.directory)  # gigabytes
    show(rows)


if __name__ == "__main__":
    main()

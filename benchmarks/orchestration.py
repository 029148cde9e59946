"""Six cached stages that do nothing: first run, the same again, one change, kill and resume, and what becomes of lost or damaged artifacts.

    python -m benchmarks.orchestration SCRATCH [--rounds 3] [--only lyceum,prefect]

Each stage makes 1 MiB out of its parent's bytes and a setting (`benchmarks/orchestration_peers`). Every tool does the same in a directory
of its own, from the command line, as its documentation has it, with its local defaults; peers live in environments below SCRATCH, made by
the first call. Lyceum runs a copy of the last commit with one file more, the stage kind `nothing`.

first, again      a run in an empty directory; the same command again.
one change        stage 4's setting changed: stages 4, 5 and 6 have to run.
resume            SIGKILL of all its processes while stage 4 runs, then the tool's way to go on: stages 4, 5 and 6 have to run.
lost, damaged     stage 2's artifact is deleted, or one byte of it flipped, in every place where the tool keeps it; then the same command
                  again (is it noticed?), then stage 3's setting is changed, so that stage 2's artifact is needed: is the end right?

Seconds are medians over the rounds, of whole processes, with the lowest and the highest; in brackets the stages that ran. The ratios are
those of one round, the peer's time to Lyceum's, above 1 where Lyceum is faster.
"""

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from benchmarks.orchestration_peers.chain_stage import STAGES, made_of
from benchmarks.side_by_side import installed, machine, spread

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / "benchmarks" / "orchestration_peers"
INSTALLS = {"metaflow": "metaflow==2.19.39", "dvc": "dvc==3.67.1", "zenml": "zenml[local]==0.98.0"}
BIG = 100_000
"""Bytes from which a file may hold a stage's artifact of 1 MiB."""
PATIENCE = 300.0
NOT_EQUAL = """\
Not equal: Lyceum runs every stage as a job in a process of its own, verifies every byte that it reuses, and ends with a report; DVC runs a
process per stage, too, and takes a file of the same size and time for the same file; Metaflow runs a process per step and has no cache
across runs, only `resume`; Prefect and ZenML run all stages in one process and verify nothing. Prefect is started as Lyceum starts it: with
a server of its own for the run."""


@dataclass
class Tool(ABC):
    """A tool in a directory of its own."""

    name: str
    home: Path
    scratch: Path
    settings: list[int] = field(default_factory=lambda: list(range(STAGES)))

    def begin(self) -> None:
        """An empty directory, prepared as a user would before the first run."""
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir(parents=True)
        shutil.copy(PEERS / "chain_stage.py", self.home)
        self.settings = list(range(STAGES))
        self.configure()

    def configure(self) -> None:
        """Write the settings where the tool reads them."""
        (self.home / "settings.json").write_text(json.dumps(self.settings), encoding="utf-8")

    @abstractmethod
    def command(self, resume: bool) -> list[str]:
        """The command that runs the chain, or goes on after a kill."""

    def environment(self) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PREFECT_", "LYCEUM_", "VIRTUAL_ENV"))
        }
        return {**kept, "BENCH_DIR": str(self.home), "PYTHONPATH": str(self.home)}

    def final(self) -> str:
        """sha256 of what the tool holds the last stage's artifact to be; empty where it has none."""
        path = self.home / "final.txt"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    # What is done with it

    def change(self, stage: int, setting: int) -> None:
        self.settings[stage - 1] = setting
        self.configure()

    def start(self, resume: bool = False) -> "subprocess.Popen[bytes]":
        (self.home / "final.txt").unlink(missing_ok=True)
        with (self.home / "out.log").open("ab") as log:
            return subprocess.Popen(
                self.command(resume),
                cwd=self.home,
                env=self.environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def run(self, resume: bool = False) -> tuple[float, list[int], bool]:
        """Seconds, the stages that ran, and whether the tool said that all went well."""
        before, began = len(self.ran()), time.monotonic()
        code = self.start(resume).wait(PATIENCE)
        return time.monotonic() - began, self.ran()[before:], code == 0

    def ran(self) -> list[int]:
        path = self.home / "ran.log"
        return (
            [int(line) for line in path.read_text(encoding="utf-8").split()]
            if path.exists()
            else []
        )

    def hold(self, stage: int, held: bool) -> None:
        path = self.home / f"hold-{stage}"
        path.touch() if held else path.unlink()

    def is_right(self) -> bool:
        return self.final() == expected(self.settings)

    def big_files(self) -> set[Path]:
        return {
            path
            for path in self.home.rglob("*")
            if path.is_file() and not path.is_symlink() and path.stat().st_size >= BIG
        }

    def until_began(self, stage: int, process: "subprocess.Popen[bytes]") -> None:
        deadline = time.monotonic() + PATIENCE
        while stage not in self.ran():
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(
                    f"{self.name}: stage {stage} did not begin; see {self.home / 'out.log'}"
                )
            time.sleep(0.005)


class OnPrefect(Tool):
    """With a Prefect of its own, whose database was made before: that takes 10 s, once on a machine."""

    def begin(self) -> None:
        super().begin()
        template = self.scratch / "prefect"
        if not template.exists():
            command = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "--yes"]
            subprocess.run(
                command,
                env={**self.environment(), "PREFECT_HOME": str(template)},
                check=True,
                capture_output=True,
            )
        shutil.copytree(template, self.home / "prefect")

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "PREFECT_HOME": str(self.home / "prefect")}


class Lyceum(OnPrefect):
    @cached_property
    def source(self) -> Path:
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        )
        return self.scratch / f"lyceum-{commit.stdout.strip()}"

    def begin(self) -> None:
        if not self.source.exists():
            self.source.mkdir(parents=True)
            archive = subprocess.run(
                ["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True
            ).stdout
            subprocess.run(["tar", "-x"], cwd=self.source, input=archive, check=True)
            shutil.copy(PEERS / "nothing.py", self.source / "tasks")
            shutil.copy(PEERS / "chain_stage.py", self.source)
        super().begin()

    def configure(self) -> None:
        stages = []
        for number, setting in enumerate(self.settings, start=1):
            parent = f'inputs = {{ parent = "stage_{number - 1}" }}\n' if number > 1 else ""
            stages.append(
                f'[stages.stage_{number}]\nkind = "nothing"\n{parent}config = {{ number = {number}, setting = {setting} }}\n'
            )
        (self.home / "chain.toml").write_text(
            'name = "chain"\nmodel = "gemma3-tiny"\n' + "\n".join(stages), encoding="utf-8"
        )

    def command(self, resume: bool) -> list[str]:
        return [sys.executable, "-m", "flows.cli.main", "run", "chain.toml"]

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "PYTHONPATH": str(self.source)}

    def final(self) -> str:
        records = [
            json.loads(path.read_text(encoding="utf-8"))
            for path in self.home.glob(".lyceum/runs/*/run.json")
        ]
        last = max(records, key=lambda record: record["started"])["stages"][-1]
        if last["artifact"] is None:
            return ""
        files = list(
            (self.home / ".lyceum" / "artifacts" / "nothing" / last["key"]).glob("data/*/data")
        )
        return hashlib.sha256(files[0].read_bytes()).hexdigest() if len(files) == 1 else ""


class Prefect(OnPrefect):
    def command(self, resume: bool) -> list[str]:
        shutil.copy(PEERS / "prefect_chain.py", self.home)
        return [
            sys.executable,
            "prefect_chain.py",
            "default" if self.name.endswith("default") else "content",
        ]

    def environment(self) -> dict[str, str]:
        patience = {
            "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120"
        }  # 20 are not enough on busy cores
        return {**super().environment(), **patience}


class Metaflow(Tool):
    def command(self, resume: bool) -> list[str]:
        shutil.copy(PEERS / "metaflow_chain.py", self.home)
        return [
            str(self.scratch / "envs" / "metaflow" / "bin" / "python"),
            "metaflow_chain.py",
            "resume" if resume else "run",
        ]

    def environment(self) -> dict[str, str]:
        return {
            **super().environment(),
            "USERNAME": "bench",
            "METAFLOW_HOME": str(self.home / "home"),
        }


class ZenML(Tool):
    def command(self, resume: bool) -> list[str]:
        shutil.copy(PEERS / "zenml_chain.py", self.home)
        return [str(self.scratch / "envs" / "zenml" / "bin" / "python"), "zenml_chain.py"]

    def environment(self) -> dict[str, str]:
        own = {
            "ZENML_CONFIG_PATH": str(self.home / "zenml"),
            "ZENML_ANALYTICS_OPT_IN": "false",
            "AUTO_OPEN_DASHBOARD": "false",
        }
        return {**super().environment(), **own}


class DVC(Tool):
    @property
    def python(self) -> Path:
        return self.scratch / "envs" / "dvc" / "bin" / "python"

    def begin(self) -> None:
        super().begin()
        shutil.copy(PEERS / "dvc_chain.py", self.home)
        for command in (["git", "init", "-q"], [str(self.python), "-m", "dvc", "init", "-q"]):
            subprocess.run(
                command, cwd=self.home, env=self.environment(), check=True, capture_output=True
            )

    def configure(self) -> None:
        super().configure()
        params = "\n".join(
            f"s{number}: {setting}" for number, setting in enumerate(self.settings, start=1)
        )
        (self.home / "params.yaml").write_text(params + "\n", encoding="utf-8")
        stages = ["stages:"]
        for number in range(1, STAGES + 1):
            stages += [
                f"  stage_{number}:",
                f"    cmd: {self.python} dvc_chain.py {number}",
                f"    params: [s{number}]",
            ]
            stages += [f"    deps: [out-{number - 1}]"] if number > 1 else []
            stages += [f"    outs: [out-{number}]"]
        (self.home / "dvc.yaml").write_text("\n".join(stages) + "\n", encoding="utf-8")

    def command(self, resume: bool) -> list[str]:
        return [str(self.python), "-m", "dvc", "repro"]

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "DVC_NO_ANALYTICS": "1"}

    def final(self) -> str:
        path = self.home / f"out-{STAGES}"
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


TOOLS: dict[str, type[Tool]] = {
    "lyceum": Lyceum,
    "prefect, default": Prefect,
    "prefect, inputs and source": Prefect,
    "dvc": DVC,
    "metaflow": Metaflow,
    "zenml": ZenML,
}


def expected(settings: Sequence[int]) -> str:
    """sha256 of what the last stage has to make."""
    data = b""
    for setting in settings:
        data = made_of(setting, data)
    return hashlib.sha256(data).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(name.split(",")[0] for name in TOOLS))
    options = parser.parse_args()
    scratch: Path = options.scratch.absolute()
    wanted = set(options.only.split(","))
    for name in INSTALLS.keys() & wanted:
        installed(scratch, name, [INSTALLS[name]])
    tools = [
        kind(name, scratch / name.replace(", ", "-").replace(" ", "-"), scratch)
        for name, kind in TOOLS.items()
    ]
    tools = [tool for tool in tools if tool.name.split(",")[0] in wanted]
    found: dict[str, dict[str, list[tuple[float, str]]]] = {tool.name: {} for tool in tools}
    for number in range(options.rounds):
        for tool in tools:  # side by side within a round, so that a busy minute strikes all of them
            for what, (seconds, text) in measure(tool).items():
                found[tool.name].setdefault(what, []).append((seconds, text))
            sys.stderr.write(f"round {number + 1}: {tool.name}\n")
    show(found)


def measure(tool: Tool) -> dict[str, tuple[float, str]]:
    """What happened, by column: seconds, and words."""
    found: dict[str, tuple[float, str]] = {}

    def timed(column: str, resume: bool = False) -> None:
        seconds, ran, well = tool.run(resume)
        wrong = "" if well and tool.is_right() else ", wrong" if well else ", failed"
        found[column] = seconds, f"[{stages_text(ran)}{wrong}]"

    tool.begin()
    timed("first")
    if not tool.is_right():
        raise SystemExit(f"{tool.name}: the first run went wrong; see {tool.home / 'out.log'}")
    timed("again")
    tool.change(4, 40)
    timed("one change")

    tool.begin()
    tool.hold(4, True)
    process = tool.start()
    tool.until_began(4, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    tool.hold(4, False)
    timed("resume", resume=True)

    for column, damage in (("lost", Path.unlink), ("damaged", flip)):
        found[column] = struck(tool, damage)
    return found


def struck(tool: Tool, damage: Callable[[Path], None]) -> tuple[float, str]:
    """Damage stage 2's artifact everywhere; see the module's docstring."""
    tool.begin()
    tool.hold(2, True)
    tool.hold(3, True)
    process = tool.start()
    tool.until_began(2, process)
    before = tool.big_files()
    tool.hold(2, False)
    tool.until_began(3, process)
    kept = tool.big_files() - before
    tool.hold(3, False)
    process.wait(PATIENCE)
    kept = {path for path in kept if path.exists()}
    if not kept:
        raise SystemExit(f"{tool.name}: where stage 2's artifact is was not found")
    for path in kept:
        path.chmod(0o644)
        damage(path)
    _, again, well = tool.run()
    noticed = "noticed" if 2 in again or not well else "served"
    tool.change(3, 30)
    seconds, ran, well = tool.run()
    end = "right" if well and tool.is_right() else "wrong result" if well else "fails"
    return seconds, f"{noticed}; then {end} [{stages_text(again)}; {stages_text(ran)}]"


def flip(path: Path) -> None:
    """Change one byte in the middle; its time stays, as it does when a disk does this."""
    times = path.stat()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def stages_text(ran: Sequence[int]) -> str:
    """1, 2, 3, 4 -> 1-4; nothing -> none."""
    distinct = sorted(set(ran))
    if not distinct:
        return "none"
    return (
        f"{distinct[0]}-{distinct[-1]}"
        if distinct == list(range(distinct[0], distinct[-1] + 1)) and len(distinct) > 1
        else ",".join(map(str, distinct))
    )


def show(found: dict[str, dict[str, list[tuple[float, str]]]]) -> None:
    """Print the tables."""
    columns = ("first", "again", "one change", "resume")
    rounds = len(next(iter(found.values()))["first"])
    print(f"{machine('prefect')}; {', '.join(INSTALLS.values())}; {rounds} rounds\n")
    print(f"| | {' | '.join(columns)} | lost | damaged |\n|---|{'---|' * (len(columns) + 2)}")
    for name, by_column in found.items():
        cells = [
            f"{spread([s for s, _ in by_column[column]], '.1f')} s {words(by_column[column])}"
            for column in columns
        ]
        print(
            f"| {name} | {' | '.join(cells)} | {words(by_column['lost'])} | {words(by_column['damaged'])} |"
        )
    ours = found.get("lyceum")
    if ours:
        print(f"\n| time, peer / Lyceum | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for name, by_column in found.items() if ours else ():
        if by_column is not ours:
            ratios = [
                [its[0] / our[0] for its, our in zip(by_column[column], ours[column], strict=True)]
                for column in columns
            ]
            print(f"| {name} | {' | '.join(spread(each, '.2f') for each in ratios)} |")
    print("\n" + NOT_EQUAL)


def words(rounds: Sequence[tuple[float, str]]) -> str:
    """What happened; everything that did, where rounds differ."""
    return " or ".join(dict.fromkeys(text for _, text in rounds))


if __name__ == "__main__":
    main()

"""Six cached stages that do nothing: first run, the same again, one change, kill and resume, and
what becomes of lost or damaged artifacts.

    python -m benchmarks.orchestration SCRATCH [--rounds 3] [--only lyceum,prefect]

Each stage makes 1 MiB out of its parent's bytes and a setting (`benchmarks/orchestration_peers`).
Every tool does the same in a directory of its own, from the command line, as its documentation has
it, with its local defaults; peers live in environments below SCRATCH, made by the first call.
Lyceum runs a copy of the last commit with one file more, the stage kind `nothing`.

first, again   a run in an empty directory; the same command again
one change     stage 4's setting changed: stages 4, 5 and 6 have to run
resume         SIGKILL of all its processes while stage 4 runs, then the tool's way to go on:
               stages 4, 5 and 6 have to run
lost, damaged  stage 2's artifact is deleted, or one byte of it flipped, in every place where the
               tool keeps it; then the same command again (is it noticed?), then stage 3's setting
               is changed, so that stage 2's artifact is needed: is the end right?

Seconds are of whole processes; in brackets the stages that ran. The ratios are the peer's time to
Lyceum's of the same round.
"""

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
from functools import cached_property, reduce
from pathlib import Path

from benchmarks import paired
from benchmarks.orchestration_peers.chain_stage import STAGES, made_of
from benchmarks.paired import ROOT, heading, ratios, row, spread

PEERS = ROOT / "benchmarks" / "orchestration_peers"
INSTALLS = {"metaflow": "metaflow==2.19.39", "dvc": "dvc==3.67.1", "zenml": "zenml[local]==0.98.0"}
BIG = 100_000
"""Bytes from which a file may hold a stage's artifact of 1 MiB."""
PATIENCE = 300.0
COLUMNS = ("first", "again", "one change", "resume")
Found = dict[str, tuple[float, str]]
"""By column: seconds, and words."""


class Tool(ABC):
    """A tool in a directory of its own.

    Attributes:
        program: what the tool runs, a file of `orchestration_peers` that is copied for it.
        own: settings of its environment, NAME=VALUE; {home} is the directory.
    """

    program = ""
    own: tuple[str, ...] = ()

    def __init__(self, name: str, scratch: Path) -> None:
        self.name, self.scratch = name, scratch
        self.home = scratch / name.replace(", ", "-").replace(" ", "-")

    def begin(self) -> None:
        """An empty directory, prepared as a user would before the first run."""
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir(parents=True)
        for name in ("chain_stage.py", self.program):
            if name:
                shutil.copy(PEERS / name, self.home)
        self.settings = list(range(STAGES))
        self.configure()

    def configure(self) -> None:
        """Write the settings where the tool reads them."""
        (self.home / "settings.json").write_text(json.dumps(self.settings), encoding="utf-8")

    @property
    def python(self) -> str:
        return str(self.scratch / "envs" / self.name / "bin" / "python")

    @abstractmethod
    def command(self, resume: bool) -> list[str]:
        """The command that runs the chain, or goes on after a kill."""

    def environment(self) -> dict[str, str]:
        hidden = ("PREFECT_", "LYCEUM_", "VIRTUAL_ENV")
        remaining = {name: one for name, one in os.environ.items() if not name.startswith(hidden)}
        own = dict(text.format(home=self.home).split("=", 1) for text in self.own)
        return {**remaining, "BENCH_DIR": str(self.home), "PYTHONPATH": str(self.home), **own}

    def final(self) -> str:
        """sha256 of what the tool holds the last artifact to be; empty where it has none."""
        path = self.home / "final.txt"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def prepare(self, *command: str, **environment: str) -> None:
        """Run what a user runs once before the first run."""
        settings = {**self.environment(), **environment}
        subprocess.run(command, cwd=self.home, env=settings, check=True, capture_output=True)

    def change(self, stage: int, setting: int) -> None:
        self.settings[stage - 1] = setting
        self.configure()

    def start(self, resume: bool = False) -> "subprocess.Popen[bytes]":
        (self.home / "final.txt").unlink(missing_ok=True)
        command, own = self.command(resume), self.environment()
        with (self.home / "out.log").open("ab") as log:
            return subprocess.Popen(
                command, cwd=self.home, env=own, stdout=log, stderr=log, start_new_session=True
            )

    def run(self, resume: bool = False) -> tuple[float, list[int], bool]:
        """Seconds, the stages that ran, and whether the tool said that all went well."""
        before, began = len(self.ran()), time.monotonic()
        code = self.start(resume).wait(PATIENCE)
        return time.monotonic() - began, self.ran()[before:], code == 0

    def ran(self) -> list[int]:
        path = self.home / "ran.log"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def hold(self, stage: int, waits: bool) -> None:
        path = self.home / f"hold-{stage}"
        path.touch() if waits else path.unlink()

    def is_right(self) -> bool:
        return self.final() == expected(self.settings)

    def big_files(self) -> set[Path]:
        files = (path for path in self.home.rglob("*") if path.is_file() and not path.is_symlink())
        return {path for path in files if path.stat().st_size >= BIG}

    def until_began(self, stage: int, process: "subprocess.Popen[bytes]") -> None:
        deadline = time.monotonic() + PATIENCE
        while stage not in self.ran():
            if process.poll() is not None or time.monotonic() > deadline:
                log = self.home / "out.log"
                raise SystemExit(f"{self.name}: stage {stage} did not begin; see {log}")
            time.sleep(0.005)


class OnPrefect(Tool):
    """Start it with a Prefect of its own, whose database was made before: 10 s, once on a
    machine."""

    own: tuple[str, ...] = ("PREFECT_HOME={home}/prefect",)

    def begin(self) -> None:
        super().begin()
        template, module = self.scratch / "prefect", [sys.executable, "-m", "prefect"]
        if not template.exists():
            upgrade = [*module, "server", "database", "upgrade", "--yes"]
            self.prepare(*upgrade, PREFECT_HOME=str(template))
        shutil.copytree(template, self.home / "prefect")


class Prefect(OnPrefect):
    program = "prefect_chain.py"
    # 20 s, its default, are not enough on busy cores.
    own = (*OnPrefect.own, "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS=120")

    def command(self, resume: bool) -> list[str]:
        policy = "default" if self.name.endswith("default") else "content"
        return [sys.executable, self.program, policy]


class Lyceum(OnPrefect):
    @cached_property
    def source(self) -> Path:
        """A copy of the last commit, with the stage kind `nothing`."""
        archive = subprocess.run(
            ["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True
        )
        source = self.scratch / "lyceum-source"
        shutil.rmtree(source, ignore_errors=True)
        source.mkdir()
        subprocess.run(["tar", "-x"], cwd=source, input=archive.stdout, check=True)
        shutil.copy(PEERS / "nothing.py", source / "tasks" / "stages")
        shutil.copy(PEERS / "chain_stage.py", source)
        return source

    def configure(self) -> None:
        text = 'name = "chain"\nmodel = "gemma3-tiny"\n'
        for number, setting in enumerate(self.settings, start=1):
            text += f'\n[stages.stage_{number}]\nkind = "nothing"\n'
            text += f"config = {{ number = {number}, setting = {setting} }}\n"
            if number > 1:
                text += f'inputs = {{ parent = "stage_{number - 1}" }}\n'
        (self.home / "chain.toml").write_text(text, encoding="utf-8")

    def command(self, resume: bool) -> list[str]:
        return [sys.executable, "-m", "flows.cli.main", "run", "chain.toml"]

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "PYTHONPATH": str(self.source)}

    def final(self) -> str:
        paths = self.home.glob(".lyceum/runs/*/run.json")
        records = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
        last = max(records, key=lambda record: record["started"])["stages"][-1]
        if last["artifact"] is None:
            return ""
        artifact = self.home / ".lyceum" / "artifacts" / "nothing" / last["key"]
        files = list(artifact.glob("data/*/data"))
        return hashlib.sha256(files[0].read_bytes()).hexdigest() if len(files) == 1 else ""


class Metaflow(Tool):
    program = "metaflow_chain.py"
    own = ("USERNAME=bench", "METAFLOW_HOME={home}/home")

    def command(self, resume: bool) -> list[str]:
        return [self.python, self.program, "resume" if resume else "run"]


class ZenML(Tool):
    program = "zenml_chain.py"
    own: tuple[str, ...] = ("ZENML_CONFIG_PATH={home}/zenml", "ZENML_ANALYTICS_OPT_IN=false")
    own += ("AUTO_OPEN_DASHBOARD=false",)

    def command(self, resume: bool) -> list[str]:
        return [self.python, self.program]


class DVC(Tool):
    program = "dvc_chain.py"
    own = ("DVC_NO_ANALYTICS=1",)

    def begin(self) -> None:
        super().begin()
        self.prepare("git", "init", "-q")
        self.prepare(self.python, "-m", "dvc", "init", "-q")

    def configure(self) -> None:
        super().configure()
        stages, params = "stages:\n", ""
        for number, setting in enumerate(self.settings, start=1):
            params += f"s{number}: {setting}\n"
            stages += f"  stage_{number}:\n    cmd: {self.python} {self.program} {number}\n"
            stages += f"    params: [s{number}]\n    outs: [out-{number}]\n"
            stages += f"    deps: [out-{number - 1}]\n" if number > 1 else ""
        (self.home / "params.yaml").write_text(params, encoding="utf-8")
        (self.home / "dvc.yaml").write_text(stages, encoding="utf-8")

    def command(self, resume: bool) -> list[str]:
        return [self.python, "-m", "dvc", "repro"]

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
    data = reduce(lambda parent, setting: made_of(setting, parent), settings, b"")
    return hashlib.sha256(data).hexdigest()


def main() -> None:
    names = dict.fromkeys(name.split(",")[0] for name in TOOLS)
    made = paired.parser(__doc__, rounds=3, scratch=True)
    made.add_argument("--only", default=",".join(names))
    options = made.parse_args()
    wanted = {*options.only.split(",")}
    if unknown := wanted - {*names}:
        made.error(f"--only: there is no {', '.join(unknown)}; there are {', '.join(names)}")
    for name in INSTALLS.keys() & wanted:
        paired.installed(options.scratch, name, [INSTALLS[name]])
    turns = {}
    for name, kind in TOOLS.items():
        if name.split(",")[0] in wanted:
            tool = kind(name, options.scratch)
            turns[name] = lambda _, tool=tool: measure(tool)
    show(paired.take_turns(turns, options.rounds))


def measure(tool: Tool) -> Found:
    """What happened."""
    found: Found = {}

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
    remaining = tool.big_files() - before
    tool.hold(3, False)
    process.wait(PATIENCE)
    remaining = {path for path in remaining if path.exists()}
    if not remaining:
        raise SystemExit(f"{tool.name}: where stage 2's artifact is was not found")
    for path in remaining:
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
    times, data = path.stat(), bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def stages_text(ran: Sequence[int]) -> str:
    """1, 2, 3, 4 -> 1-4; nothing -> none."""
    distinct = sorted(set(ran))
    if len(distinct) > 1 and distinct == list(range(distinct[0], distinct[-1] + 1)):
        return f"{distinct[0]}-{distinct[-1]}"
    return ",".join(map(str, distinct)) or "none"


def show(found: dict[str, list[Found]]) -> None:
    """Print the tables."""
    rounds = len(next(iter(found.values())))
    print(f"{paired.machine('prefect')}; {', '.join(INSTALLS.values())}; {rounds} rounds")
    heading("", *COLUMNS, "lost", "damaged")
    for name, each in found.items():
        cells = []
        for column in COLUMNS:
            cells.append(f"{spread(seconds(each, column), '.1f')} s {words(each, column)}")
        row(name, *cells, words(each, "lost"), words(each, "damaged"))
    ours = found.pop("lyceum", None)
    if ours and found:
        heading("time, peer / Lyceum", *COLUMNS)
        for name, each in found.items():
            pairs = ((seconds(each, column), seconds(ours, column)) for column in COLUMNS)
            row(name, *(spread(ratios(*both), ".2f") for both in pairs))


def seconds(each: Sequence[Found], column: str) -> list[float]:
    return [one[column][0] for one in each]


def words(each: Sequence[Found], column: str) -> str:
    """What happened; everything that did, where rounds differ."""
    return " or ".join(dict.fromkeys(one[column][1] for one in each))


if __name__ == "__main__":
    main()

"""A cloud of one's own: watch a whole run on TPUs without an account, for nothing.

    python -m tests.fakes.fake_cloud lyceum run quickstart --target v5e-8 --store gs://demo/lyceum
    python -m tests.fakes.fake_cloud

Without a command it prints variables to paste into another terminal, and serves until Ctrl-C.

It starts the fakes of Cloud Storage (`tests/fakes/gcs_emulator.py`, with the bucket `demo`) and of
Cloud TPU (`tests/fakes/tpu_fake.py`), lets the command find them, and says every state of every TPU
as it comes. The VMs are processes of this machine that run the real startup script, and JAX
computes on the CPU. At the end it says what was made, for how long it would have been billed, and
what is left; then all is gone. The exit code is the command's, or 1 when the command left something
behind.
"""

import argparse
import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from tests.fakes.gcs_emulator import Emulator
from tests.fakes.tpu_fake import FakeTpu, Resource

BUCKET = "demo"
STATE_SECONDS = {
    "CREATING": 0.5,
    "WAITING_FOR_RESOURCES": 1.5,
    "PROVISIONING": 1.5,
    "DELETING": 1.0,
    "SUSPENDING": 1.0,
}
"""Long enough to be seen, short enough not to bore."""
SETTINGS = {
    "LYCEUM_TPU_POLL_SECONDS": "0.3",
    "LYCEUM_HEARTBEAT_SECONDS": "1",
    "LYCEUM_PLAN": "false",
}
_WATCH_SECONDS = 0.2
_USUAL = ("CREATING", "READY", "DELETING", "GONE")
"""States of a node that tell nothing that its request has not told."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = "what to run in this cloud; nothing: print the variables and wait"
    parser.add_argument("command", nargs=argparse.REMAINDER, help=what)
    command: list[str] = parser.parse_args(arguments).command
    say = Console(stderr=True, highlight=False)
    with Emulator(BUCKET) as gcs, FakeTpu(vm_environment=gcs.environment) as tpu:
        tpu.set_seconds(**STATE_SECONDS)
        environment = {**gcs.environment, **tpu.environment, **SETTINGS}
        say.print(
            f"[bold]A cloud of your own[/bold]: bucket gs://{BUCKET}, TPUs of any type in any zone."
            " Nothing of it is real."
        )
        watch = Watch(tpu, say)
        code = _run(command, environment) if command else _wait(environment)
        watch.stop()
        made, left = tpu.resources(), tpu.leaked()
        _report(say, made, left)
    return code or (1 if command and left else 0)


class Watch:
    """Says what becomes of every TPU, in a thread, until `stop`. The first is called TPU 1."""

    def __init__(self, tpu: FakeTpu, say: Console) -> None:
        self._tpu, self._say = tpu, say
        self._said: list[int] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        ended = False
        while not ended:
            ended = self._stopped.wait(_WATCH_SECONDS)
            for index, resource in enumerate(self._tpu.resources()):
                if index == len(self._said):
                    self._said.append(0)
                    what = f"{resource.accelerator} ({resource.tier}) in {resource.zone}"
                    self._line(resource.history[0][0], index, f"asked for: {what}")
                for moment, what, state, why in resource.history[self._said[index] :]:
                    if what == "request" or state not in _USUAL:
                        self._line(moment, index, f"[bold]{state}[/bold] {why}")
                self._said[index] = len(resource.history)

    def _line(self, moment: float, index: int, text: str) -> None:
        clock = time.strftime("%H:%M:%S", time.localtime(moment))
        self._say.print(f"[cyan]{clock}  TPU {index + 1}[/cyan]  {text}", soft_wrap=True)


def _run(command: Sequence[str], environment: dict[str, str]) -> int:
    """The command's exit code; 127 when there is no such command."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    try:
        process = subprocess.Popen(command, env={**os.environ, "PATH": path, **environment})
    except FileNotFoundError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return 127
    signal.signal(signal.SIGTERM, lambda number, frame: process.terminate())
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:  # the command got it too, and cleans up
            continue


def _wait(environment: dict[str, str]) -> int:
    lines = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    lines.append(f"# e.g. lyceum run quickstart --target v5e-8 --store gs://{BUCKET}/lyceum\n")
    with contextlib.suppress(KeyboardInterrupt):  # which may come as soon as the last line is read
        sys.stdout.write("\n".join(lines))
        sys.stdout.flush()
        threading.Event().wait()
    return 0


def _report(say: Console, made: Sequence[Resource], left: Sequence[str]) -> None:
    """What was made and what is left."""
    for number, one in enumerate(made, 1):
        what = f"{one.id}, {one.accelerator} {one.tier} in {one.zone}: {one.starts} boots"
        say.print(f"TPU {number}  {what}, billed {one.billed_seconds:.1f} s, now {one.state}")
    chip_hours = sum(one.billed_seconds * one.chips for one in made) / 3600
    together = f"Together {chip_hours:.4f} chip-hours, which a real cloud would have billed."
    say.print(together if made else "No TPU was asked for.")
    behind = "[bold red]Left behind[/bold red], and in a real cloud billed on, or holding quota:"
    say.print(behind if left else "[bold green]Nothing is left.[/bold green]")
    for name in left:
        say.print(f"  {name}", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())

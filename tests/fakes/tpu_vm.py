"""The VMs of a fake TPU slice: for each host a directory, a metadata server, and its startup script
as a subprocess.

A VM's processes are known by a variable in their environment,
`LYCEUM_FAKE_VM=<fake>/<slice>/<host>`: workers make sessions of their own. `python -m
tests.fakes.tpu_vm FAKE ROOT` is the warden: when its standard input ends, because the fake ended in
whatever way, it kills all processes of the fake and removes its directory.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from tests.fakes.tpu_metadata import MetadataServer
from tests.processes import exists

MARKER = "LYCEUM_FAKE_VM"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_KILL_SECONDS = 10.0
_UNSURE_SECONDS = 0.2
_PR_SET_CHILD_SUBREAPER = 36


def processes(marker: str) -> list[psutil.Process]:
    """Living processes whose marker is this one or below it, and their descendants, whatever those
    did to their environment."""
    end = time.monotonic() + _UNSURE_SECONDS
    while True:
        found, unsure = _scan(marker)
        if found or not unsure or time.monotonic() > end:
            return found
        time.sleep(0.005)


def _scan(marker: str) -> tuple[list[psutil.Process], bool]:
    """`processes`, and whether one was seen that may be of them: while a process executes a program
    its environment reads as empty."""
    found: dict[int, psutil.Process] = {}
    unsure = False
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            environment = process.environ()
            value = environment.get(MARKER, "")
            if value == marker or value.startswith(f"{marker}/"):
                found |= {one.pid: one for one in [process, *process.children(recursive=True)]}
            unsure |= not environment
    return [process for process in found.values() if exists(process.pid)], unsure


def kill(marker: str) -> None:
    """SIGKILL all of a marker's processes, until there are none: they may be starting others.
    Raises RuntimeError when some stay."""
    started = time.monotonic()
    while True:
        alive, unsure = _scan(marker)
        seconds = time.monotonic() - started
        if not alive and (not unsure or seconds > _UNSURE_SECONDS):
            return
        if seconds > _KILL_SECONDS:
            raise RuntimeError(f"processes of {marker} do not die: {alive}")
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.005)
        reap()


def adopt_orphans() -> None:
    """From now on processes whose parent has ended are children of this one, so that `reap` can see
    to it that they leave no zombies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap() -> None:
    """Forget children that have ended; `Popen.wait` knows that somebody may have done so."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


class Host:
    """One VM.

    Args:
        marker: `<fake>/<slice>/<host>`.
        directory: the VM's disk, made here.
        serial: file that takes the output of the startup script.
        script: the startup script.
        values: what the metadata server knows.
        environment: more variables for the script.
    """

    def __init__(
        self,
        marker: str,
        directory: Path,
        serial: Path,
        script: str,
        values: Mapping[str, str],
        environment: Mapping[str, str],
    ) -> None:
        self.marker = marker
        self.metadata = MetadataServer(values)
        self._serial = serial
        home = directory / "home"
        home.mkdir(parents=True)
        self._script = directory / "startup-script"
        self._script.write_text(script, encoding="utf-8")
        self._environment = {
            "PATH": PATH,
            "HOME": str(home),
            "GCE_METADATA_HOST": self.metadata.address,
            "GCE_METADATA_IP": self.metadata.address,
            "LYCEUM_VM_PYTHON": sys.executable,
            "LYCEUM_VM_ROOT": str(directory / "lyceum"),
            "LYCEUM_CACHE": str(directory / "cache"),
            "JAX_PLATFORMS": "cpu",
            "TMPDIR": str(directory / "tmp"),
            **environment,
            MARKER: marker,
        }
        (directory / "tmp").mkdir()

    def boot(self) -> None:
        """Run the startup script."""
        with self._serial.open("ab") as out:
            where = {"cwd": self._environment["HOME"], "env": self._environment}
            said = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": subprocess.STDOUT}
            command = ["/bin/bash", str(self._script)]
            subprocess.Popen(command, start_new_session=True, **where, **said)

    def shut_down(self) -> None:
        """SIGTERM to all processes, as an operating system that is told to shut down sends it."""
        for process in processes(self.marker):
            with suppress(psutil.NoSuchProcess):
                process.terminate()


class Warden:
    """See the module."""

    def __init__(self, fake: str, root: Path) -> None:
        command = [sys.executable, "-m", "tests.fakes.tpu_vm", fake, str(root)]
        where = {"cwd": Path(__file__).resolve().parents[2], "start_new_session": True}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, **where)

    def dismiss(self) -> None:
        """The fake has come to its end: wait until all of its VMs are gone."""
        self._process.stdin.close()
        self._process.wait()


def main() -> None:
    fake, root = sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    while os.read(sys.stdin.fileno(), 1 << 10):
        pass
    kill(fake)
    shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()

"""Questions answered in processes with limits: they end with their asker, are replaced when they
die, and a limit costs its own question alone."""

import os
import resource
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from schemas.base import StageFailed
from tasks.verification.process_pool import ProcessPool, Unanswered, serve
from tests.fakes.process import python, until
from tests.processes import descendants, state_of


def pool() -> ProcessPool:
    return ProcessPool("tasks.checks.math", cpu_s=1, memory_bytes=2 * 2**30)


def answering() -> set[int]:
    """The processes of all pools in this process."""
    lines = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid, _ in descendants(os.getpid())}
    return {pid for pid, line in lines.items() if b"tasks.checks.math\0" in line}


def test_a_question_that_meets_the_limit_is_asked_once_more_of_a_fresh_process() -> None:
    quick = pool()
    assert quick.ask(["$1$", "$1$"])["ok"]
    with pytest.raises(Unanswered, match="met a limit: 1 CPU seconds, 2048 MiB"):
        quick.ask(["$2$", "$9^{9^{9^{9}}}$"])
    assert quick.ask(["$1$", "$1$"])["ok"]


def test_any_thread_may_ask_and_a_process_that_was_killed_is_replaced() -> None:
    """math-verify's own time limit is a signal, which only a main thread can have."""
    others, asked, found = answering(), pool(), []
    thread = threading.Thread(target=lambda: found.append(asked.ask(["$x + 1$", "$1 + x$"])["ok"]))
    thread.start()
    thread.join()
    (first,) = answering() - others
    os.kill(first, signal.SIGKILL)
    found.append(asked.ask(["$x + 2$", "$2 + x$"])["ok"])
    assert found == [True, True]
    assert answering() - others - {first}


def test_a_process_that_cannot_start_is_an_error_and_no_verdict() -> None:
    nowhere = ProcessPool("tasks.checks.nowhere", cpu_s=1, memory_bytes=2**30)
    with pytest.raises(StageFailed, match=r"does not start here: .*No module named tasks.checks"):
        nowhere.ask(["$1$", "$1$"])


def test_processes_that_somebody_kills_are_an_error_and_no_verdict() -> None:
    suicidal = ProcessPool(__name__, cpu_s=1, memory_bytes=2 * 2**30)
    with pytest.raises(StageFailed, match="were killed, and not by us: is the machine out of"):
        suicidal.ask(["$1$", "$1$"])


def test_neither_a_file_of_a_librarys_name_nor_many_open_files_matter(tmp_path, monkeypatch):
    (tmp_path / "sympy.py").write_text("raise RuntimeError('no library')")
    monkeypatch.chdir(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(2048, hard), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        assert pool().ask(["$x + 1$", "$1 + x$"])["ok"]
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_ends_with_its_asker() -> None:
    script = (
        "from tasks.verification.process_pool import ProcessPool\n"
        "asked = ProcessPool('tasks.checks.math', cpu_s=1, memory_bytes=2 * 2**30)\n"
        "print(asked.ask(['$1$', '$1$'])['ok'], flush=True)\ninput()"
    )
    with python("-c", script, stdin=subprocess.PIPE) as asker:
        assert asker.stdout.readline() == "True\n"
        ((process, _),) = descendants(asker.pid)
        asker.kill()
    until(lambda: state_of(process) not in "SRD")


if __name__ == "__main__":
    serve(lambda _: os.kill(os.getpid(), signal.SIGKILL))

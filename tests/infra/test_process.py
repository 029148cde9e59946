"""The environment of a worker's process."""

import platform
from pathlib import Path

import pytest

from infra.process import worker_environment
from tests.fakes.process import printed

THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")

LARGE_BUFFER = """
import re
kept = bytearray(64 << 20)
print(re.search(r"AnonHugePages: +([0-9]+)", open("/proc/self/smaps_rollup").read())[1])
"""


@pytest.mark.skipif(
    platform.libc_ver() < ("glibc", "2.35") or not THP.exists() or "[never]" in THP.read_text(),
    reason="no transparent huge pages here",
)
def test_a_large_buffer_lies_in_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    assert int(printed(LARGE_BUFFER, **worker_environment(""))) > 32 << 10  # kB; without, it is 0


def test_who_chose_something_of_glibc_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=1")
    assert worker_environment("")["GLIBC_TUNABLES"] == "glibc.malloc.check=1"

"""The environment of a worker's process."""

import platform
from pathlib import Path

import pytest

from infra.process import ROOT, worker_environment
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


def test_who_chose_something_else_than_a_default_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = {"GLIBC_TUNABLES": "glibc.malloc.check=1", "JAX_PLATFORMS": "tpu"}
    for name, value in chosen.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    assert chosen.items() <= worker_environment("").items()
    assert "JAX_COMPILATION_CACHE_DIR" not in worker_environment("")


def test_an_empty_variable_chooses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With JAX_PLATFORMS= a job whose flow had found no accelerator looked for one itself."""
    for name in ("JAX_PLATFORMS", "PYTHONHASHSEED"):
        monkeypatch.setenv(name, "")
    found = worker_environment("")
    assert (found["JAX_PLATFORMS"], found["PYTHONHASHSEED"]) == ("cpu", "0")


def test_paths_mean_the_same_to_a_worker_which_has_another_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {
        "GOOGLE_APPLICATION_CREDENTIALS": ("key.json", f"{tmp_path}/key.json"),
        "REQUESTS_CA_BUNDLE": ("/etc/ca.pem", "/etc/ca.pem"),
        "HF_HOME": ("~/hf", "~/hf"),
        "HF_TOKEN_PATH": ("", ""),
        "PYTHONPATH": (f"mine:{ROOT}", f"{tmp_path}/mine:{ROOT}"),
        "OTHER": ("key.json", "key.json"),
    }
    for name, (value, _) in given.items():
        monkeypatch.setenv(name, value)
    found = worker_environment("")
    assert {name: found[name] for name in given} == {
        name: whole for name, (_, whole) in given.items()
    }

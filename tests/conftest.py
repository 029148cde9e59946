"""Fixtures that several test files share."""

import contextlib
import gc
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from absl import logging as absl_logging

# with libtpu installed JAX would look for a TPU, and warn; before anything imports JAX
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# no test looks for the hub, which shipped recipes name; a fake of it says so itself
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# threads of torch that wait for work would spin, and take the cores of other processes
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# What tests cost is mostly compiling: the processes of one run share what they compiled, and so
# does the next run.
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "jax")
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# XLA at its quickest, a quarter of the usual time; a program that is not cut in 32 parts costs a
# fifth less. With XLA_FLAGS set to nothing it compiles as it does for users.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1",
)

from tasks.rehearsal.environment import GLIBC_TUNABLES

# for the processes of this one, xdist's among them
os.environ.setdefault("GLIBC_TUNABLES", GLIBC_TUNABLES)

from infra.store.store import Store, open_store
from tests.fakes.gcs_fixtures import (
    gcs,  # noqa: F401
    gcs_bucket,  # noqa: F401
    gcs_client,  # noqa: F401
)
from tests.fakes.recipe import TINY
from tests.fakes.tpu_fixtures import tpu, tpu_cloud, tpu_process  # noqa: F401
from tests.infra.tpu.workshop import shop  # noqa: F401

# A deadline would measure how busy the machine is, and draws of chance would fail for the next
# reader alone; `--hypothesis-profile anew` draws others each time.
hypothesis.settings.register_profile("anew", deadline=None)
hypothesis.settings.register_profile("same", deadline=None, derandomize=True)
hypothesis.settings.load_profile("same")

QUICK_COMPILE = os.environ["XLA_FLAGS"]
"""For tests that start processes with more flags."""


def pytest_xdist_auto_num_workers() -> int:
    """Two processes more than cores, since many tests wait for something."""
    return min(8, (os.cpu_count() or 1) + 2)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs a Prefect API comes first, so that of the processes of a run one starts it; and of
    that what takes minutes, so that no process is left with it in the end."""

    def rank(item: pytest.Item) -> int:
        needs_api = "prefect_api" in getattr(item, "fixturenames", ())
        return 0 if needs_api and item.path.name == "test_rehearse.py" else 1 if needs_api else 2

    items.sort(key=rank)


PROCESSOR_SECONDS = "processor seconds"
"""A property that a test records of what it ran; the end of the run lists them."""


def pytest_terminal_summary(terminalreporter: Any) -> None:
    found = [
        (dict(report.user_properties)[PROCESSOR_SECONDS], report.nodeid)
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, [])
        if PROCESSOR_SECONDS in dict(report.user_properties)
    ]
    if found:
        terminalreporter.section(f"{PROCESSOR_SECONDS}: {sum(seconds for seconds, _ in found):.0f}")
    for seconds, name in sorted(found, reverse=True):
        terminalreporter.line(f"{seconds:7.1f} {name}")


def pytest_collection_finish() -> None:
    """What was imported stays: the collector, which tracing keeps busy, need not walk it again and
    again (a tenth of the processor's time)."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)


@pytest.fixture(scope="session")
def prefect_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prefect API of its own for the whole session (10-15 s to start); yields its URL. Processes
    find it through PREFECT_API_URL."""
    # Prefect's logging set-up closes all handlers, and absl's (which Tunix brings) closes its
    # stream: pytest's captured stderr.
    absl_logging.get_absl_handler().python_handler.stream = sys.__stderr__
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DO_NOT_TRACK", "1")
        patch.setenv("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
        patch.setenv("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
        patch.setenv("PREFECT_HOME", str(tmp_path_factory.mktemp("prefect")))
        from prefect.settings import get_current_settings
        from prefect.testing.utilities import prefect_test_harness

        with prefect_test_harness(server_startup_timeout=300):
            url = get_current_settings().api.url
            assert url is not None
            patch.setenv("PREFECT_API_URL", url)
            yield url


@pytest.fixture(scope="session")
def finished(
    prefect_api: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    """The store of one finished run of `TINY`, to read or to copy, and what the run printed."""
    from flows.cli.main import main

    root = tmp_path_factory.mktemp("finished")
    (root / "tiny.toml").write_text(TINY, encoding="utf-8")
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(["run", str(root / "tiny.toml"), "--store", str(root / "store"), "--json"]) == 0
    return root / "store", json.loads(out.getvalue())


@pytest.fixture(scope="module")
def one_layer() -> Iterator[None]:
    """`gemma3-tiny` with one layer, which compiles quickly, whose heads share keys, as in published
    Gemmas; its stages are those of bench.py."""
    from tasks.models import decoder

    small = {"num_layers": 1, "num_kv_heads": 1, "hidden_dim": 128}
    with pytest.MonkeyPatch.context() as patch:
        tiny = decoder.SIZES["gemma3-tiny"]
        patch.setitem(decoder.SIZES, "gemma3-tiny", replace(tiny, **small))
        yield


@pytest.fixture
def lyceum(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Runs a command line, and returns what it said (`tests.flows.lab.say`)."""
    from tests.flows.lab import say

    return partial(say, capsys)


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lets something happen right before, or right after, each call of a function, whose arguments
    it is given."""

    def happens(
        owner: Any,
        name: str,
        before: Callable[..., object] = lambda *_: None,
        after: Callable[..., object] = lambda *_: None,
    ) -> None:
        real = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            before(*arguments)
            found = real(*arguments, **named)
            after(*arguments)
            return found

        monkeypatch.setattr(owner, name, call)

    return happens


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store in a directory of the test's own."""
    return open_store(tmp_path / "store")


@pytest.fixture
def lab(tmp_path: Path, tiny_recipe: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """A `tests.flows.lab.Lab` with an empty store."""
    from tests.flows.lab import Lab

    return Lab(tmp_path, tiny_recipe, capsys)


@pytest.fixture
def again(lab: Any, finished: tuple[Path, dict[str, Any]]) -> Any:
    """A lab whose store has had a run."""
    shutil.copytree(finished[0], lab.store_path)
    return lab


@pytest.fixture
def tiny_recipe(tmp_path: Path) -> Path:
    """A recipe of two real stages that need no JAX and take a second: distill, rebalance."""
    path = tmp_path / "tiny.toml"
    path.write_text(TINY, encoding="utf-8")
    return path

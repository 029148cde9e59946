"""Fixtures that several test files share."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from absl import logging as absl_logging

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # with libtpu installed JAX would look for a TPU, and warn; before anything imports JAX
# What tests cost is mostly compiling: the processes of one run share what they compiled, and so does the next run.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "jax"))

from tests.gcs_fixtures import gcs, gcs_bucket, gcs_client, gcs_fs  # noqa: F401  fixtures of every test
from tests.tpu_fixtures import tpu, tpu_client, tpu_cloud, tpu_process  # noqa: F401
from tests.tpu_workshop import shop  # noqa: F401


@pytest.fixture(scope="session")
def prefect_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prefect API of its own for the whole session (10-15 s to start); yields its URL. Processes find it through PREFECT_API_URL."""
    # Prefect's logging set-up closes all handlers, and absl's (which Tunix brings) closes its stream: pytest's captured stderr.
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


@pytest.fixture
def tiny_recipe(tmp_path: Path) -> Path:
    """A recipe of two real stages that need no JAX and take a second: distill, rebalance."""
    path = tmp_path / "tiny.toml"
    path.write_text(TINY, encoding="utf-8")
    return path


TINY = """
name = "tiny"
model = "gemma3-tiny"

[stages.distill]
kind = "distill"
[[stages.distill.config.teachers]]
name = "procedural"
rows = { summarization = 60 }
grounded = {}

[stages.rebalance]
kind = "rebalance"
inputs = { examples = "distill" }
[stages.rebalance.config.quotas]
summarization = { train = 20, validation = 1, heldout = 2 }
"""

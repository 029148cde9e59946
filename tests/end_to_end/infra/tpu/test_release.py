"""A flow that takes a stage from the cache leaves no machine behind."""

import json
from pathlib import Path

import pytest

from flows.cli.main import main
from tests.infra.tpu.workshop import Workshop


def test_a_run_that_takes_everything_from_the_cache_deletes_it(
    shop: Workshop,
    tiny_recipe: Path,
    prefect_api: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The flow, as a user starts it: exit 0, one line, and no machine."""
    monkeypatch.setenv("LYCEUM_PLAN", "false")
    monkeypatch.setenv("LYCEUM_LEASE_SECONDS", "1")
    monkeypatch.setenv("LYCEUM_TPU_POLL_SECONDS", "0.2")
    run = ["run", str(tiny_recipe), "--store", shop.store.uri, "--json"]
    assert main(run) == 0
    key = json.loads(capsys.readouterr().out)["stages"][0]["key"]
    shop.orphan(key, "9")
    assert main([*run, "--target", "v5e-8"]) == 0
    printed = capsys.readouterr()
    assert {stage["status"] for stage in json.loads(printed.out)["stages"]} == {"cached"}
    assert printed.err.count("its deletion is asked for") == 1
    assert shop.tpu.leaked() == []

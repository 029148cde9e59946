"""`lyceum ask`: a run's model answers, word by word as it decodes, and stops when it is told to."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

from infra.store.store import Store, open_store
from schemas.artifact import Manifest
from schemas.base import digest
from schemas.recipe import Recipe, StageSpec
from schemas.reports import RunRecord, StageRecord
from tasks.devices.hosts import make_mesh
from tasks.models.gemma import SIZES
from tasks.models.loading import LoadedModel, save_model
from tasks.models.tiny import tiny_tokenizer
from tasks.models.weights import initialise

QUESTION = "Which day comes after Monday?"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, RunRecord, LoadedModel]:
    """A run with two trained stages: the store, its record, and the model of the second."""
    root = tmp_path_factory.mktemp("ask")
    store = open_store(root / "store")
    config = replace(SIZES["gemma3-tiny"], num_layers=1)
    records = []
    for seed, name in enumerate(("first", "second")):
        model = initialise(config, seed)
        model.final_norm.set_value(3 * jax.random.normal(jax.random.key(seed), (config.embed_dim,)))
        loaded = LoadedModel("gemma3-tiny", config, model, tiny_tokenizer(), make_mesh())
        (root / name).mkdir()
        save_model(loaded, root / name)
        draft = Manifest(kind="sft", key=digest(name), version=1, config={}, inputs={}, attempt="0", files=())
        ref = store.commit(draft, root / name).ref()
        records.append(StageRecord(name=name, kind="sft", key=ref.key, status="ran", artifact=ref))
    specs = tuple(StageSpec(name=record.name, kind="sft") for record in records)
    record = RunRecord(
        run_id="demo-1",
        recipe=Recipe(name="demo", model="gemma3-tiny", seed=0, stages=specs),
        target="local",
        store=store.uri,
        status="succeeded",
        started=1.0,
        finished=2.0,
        stages=tuple(records),
    )
    store.write_json("runs/demo-1/run.json", record)
    return store, record, loaded


def test_ctrl_c_ends_the_process_cleanly(run: tuple[Store, RunRecord, Any]) -> None:
    """SIGINT after the first words: exit code 130, a line end, no traceback."""
    command = [sys.executable, "-m", "flows.cli.main", "ask", "demo-1", QUESTION, "--store", run[0].uri]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=Path(__file__).parents[4],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    assert process.stdout is not None
    first = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=120)
    assert (process.returncode, errors.decode()) == (130, "")
    assert (first + rest).endswith(b"\n")

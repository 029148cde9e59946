"""`lyceum ask`: a run's model answers, word by word as it decodes, and stops when it is told to."""

import json
from dataclasses import replace
from typing import Any

import jax
import pytest

from flows.cli.ask import answer
from flows.cli.main import main
from infra.store.store import Store, open_store
from infra.visible import plain
from schemas.artifact import Manifest
from schemas.base import digest
from schemas.recipe import Recipe, StageSpec
from schemas.reports import RunRecord, StageRecord
from tasks.devices.hosts import make_mesh
from tasks.models.gemma import SIZES
from tasks.models.loading import LoadedModel, save_model
from tasks.models.tiny import tiny_tokenizer
from tasks.models.weights import initialise
from tasks.sampling.sampler import Sampler

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
        draft = Manifest(
            kind="sft", key=digest(name), version=1, config={}, inputs={}, attempt="0", files=()
        )
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


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("flows.cli.ask.RESPONSE_LENGTH", 40)
    return 40


def test_the_answer_is_the_samplers_and_comes_in_pieces(
    run: tuple[Store, RunRecord, LoadedModel], short: int
) -> None:
    store, record, loaded = run
    told: list[str] = []
    value = answer(store, record, QUESTION, None, told.append)
    expected = Sampler(loaded, batch_size=1, prompt_length=64, response_length=short).generate(
        [QUESTION]
    )[0]
    assert (value["stage"], value["completion"], value["terminated"], value["stopped"]) == (
        "second",
        expected.text,
        False,
        False,
    )
    assert "".join(told) == expected.text
    assert len(told) > short // 4
    assert answer(store, record, QUESTION, "first")["completion"] != expected.text


@pytest.mark.usefixtures("short")
def test_what_is_printed(
    run: tuple[Store, RunRecord, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """The same answer as text, and as one JSON object."""
    arguments = ["ask", "demo-1", QUESTION, "--store", run[0].uri]
    assert main([*arguments, "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    completion = json.loads(lines[0])["completion"]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert shown.endswith("\n")
    assert shown[:-1] == plain(completion)


@pytest.mark.usefixtures("short")
def test_whoever_stops_it_keeps_what_was_said(
    run: tuple[Store, RunRecord, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    store, record, _ = run
    whole: list[str] = []
    answer(store, record, QUESTION, None, whole.append)
    told: list[str] = []

    def tell(piece: str) -> None:
        told.append(piece)
        if len(told) == 4:
            raise KeyboardInterrupt

    value = answer(store, record, QUESTION, None, tell)
    assert told == whole[:4]
    assert value["stopped"]
    assert value["completion"].startswith("".join(told))
    assert not value["terminated"]

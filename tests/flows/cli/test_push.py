"""`lyceum push`: what is on the hub afterwards, that nothing goes twice, what each refusal says.
The client is huggingface_hub's own, over HTTP."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard, constants, snapshot_download

from flows.cli.unsent import alone
from infra.store.store import Store
from schemas.recipe import StageSpec
from tasks.devices.hosts import make_mesh
from tasks.models.decoder import SIZES
from tasks.models.loading import LoadedModel, load_model, save_model
from tasks.models.tiny import tiny_tokenizer
from tasks.models.weights import initialise
from tests.fakes.fake_hub import FakeHub
from tests.flows.runs import synthetic_run

WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A run whose trained stages hold a small random model, and adapters of its last one."""
    root = tmp_path_factory.mktemp("push")
    layers = {"num_layers": 1, "embed_dim": 64, "hidden_dim": 64, "num_kv_heads": 1}
    config = replace(SIZES["gemma3-tiny"], **layers)
    model = LoadedModel("gemma3-tiny", config, initialise(config, 1), tiny_tokenizer(), make_mesh())

    def trained(stage: StageSpec, out: Path) -> None:
        save_model(model, out)
        (out / "adapters").mkdir(exist_ok=True)
        base = {"base_model_name_or_path": "google/gemma-3-1b-it" if stage.name == "sft" else None}
        (out / "adapters" / "adapter_config.json").write_text(json.dumps(base))

    return synthetic_run.write_run(root / "store", trained=trained)[0]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub that takes large files by git-LFS, without `hf_xet`'s own storage beside."""
    monkeypatch.setenv("LYCEUM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", "hf_writes")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    with FakeHub() as fake:
        monkeypatch.setenv("HF_ENDPOINT", fake.url)
        yield fake


@pytest.fixture
def push(store: Store, lyceum: Any) -> Any:
    def run(*options: str, code: int = 0) -> Any:
        """The JSON of the command, or what it says where it fails."""
        command = ["push", "demo-1", "--store", store.uri, "--to", "us/demo", *options, "--json"]
        said = lyceum(*command, code=code)
        return said.err if code else said.json

    return run


@pytest.fixture(autouse=True)
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.exporting.round_trip.absent", lambda: ["torch"])


def test_a_model_is_there_with_its_card_and_only_once(hub, push, store, tmp_path):
    """It is private and loads as the model it is; the card's metadata has its rates; the same again
    is no commit and sends nothing."""
    told = push()
    assert (told["stage"], told["repository"], told["private"]) == ("grpo", "us/demo", True)
    assert told["changed"]
    assert hub.private == {"us/demo"}
    assert hub.commits == [("us/demo", "demo-1: model of stage grpo")]
    there = hub.repositories["us/demo"]
    assert (
        {path.name for path in there.iterdir()}
        == set(told["files"])
        >= {WEIGHTS, "README.md", "config.json", "tokenizer.model", "chat_template.jinja"}
    )
    again = Path(snapshot_download("us/demo", endpoint=hub.url, cache_dir=tmp_path / "hf"))
    assert (again / WEIGHTS).read_bytes() == (there / WEIGHTS).read_bytes()
    assert load_model(again).config.num_layers == 1
    results = ModelCard.load(there / "README.md").data.eval_results
    assert results is not None
    *_, exact = (one for one in results if one.metric_type == "exact_answer")
    assert exact.metric_value == pytest.approx(100 * synthetic_run.SKILL["grpo"], abs=0.5)
    assert "95% interval [" in str(exact.metric_name)
    assert "was not compared" in (there / "README.md").read_text()
    assert not any((tmp_path / "cache" / "push").glob("*/*"))

    sent, requests = hub.received, len(hub.requests)
    second = push()
    assert (second["changed"], second["commit"]) == (False, told["commit"])
    assert hub.received == sent
    assert not any(path.endswith("/commit/main") for _, path in hub.requests[requests:])


def test_an_upload_that_was_interrupted_goes_on(hub, push, monkeypatch, tmp_path):
    """The large files are there when the commit fails: they are not sent again, and neither is the
    export made again."""
    hub.refusals["/commit/"] = (503, "the hub is being mended")
    said = push(code=2)
    assert "503" in said
    assert "not sent twice" in said
    assert not hub.commits
    (kept,) = (tmp_path / "cache" / "push").glob("*/*")
    hub.refusals.clear()
    sent = hub.received
    assert sent > (kept / WEIGHTS).stat().st_size
    monkeypatch.setattr("flows.cli.push.export", None)
    assert push()["changed"]
    assert hub.received == sent
    assert not kept.exists()


def test_gc_finds_what_was_interrupted_and_takes_nothing_from_a_push_at_work(
    hub, push, store, lyceum, tmp_path
):
    def gc(*options: str) -> list[dict[str, Any]]:
        items = lyceum("gc", "--store", store.uri, "--json", *options).json["items"]
        return [one for one in items if one["kind"] == "export"]

    hub.refusals["/commit/"] = (503, "the hub is being mended")
    push(code=2)
    (kept,) = (tmp_path / "cache" / "push").glob("*/*")
    [found] = gc()
    files = [path for path in kept.rglob("*") if path.is_file()]
    assert (found["name"], found["objects"]) == (str(kept), len(files))
    assert found["bytes"] == sum(path.stat().st_size for path in files)
    with alone(store) as first:
        assert first
        assert gc("--delete") == []
        assert "another `lyceum push`" in push(code=2)
    assert kept.exists()
    assert [one["deleted"] for one in gc("--delete")] == [True]
    assert not kept.exists()
    assert gc() == []


def test_a_cache_that_cannot_be_made_is_named(push, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("LYCEUM_CACHE", str(tmp_path / "file"))
    assert "set LYCEUM_CACHE to a directory that can be written" in push(code=2)


def test_another_stage_replaces_the_weights_and_takes_away_what_would_be_loaded_with_them(
    hub: FakeHub, push: Any
) -> None:
    there = hub.add("us/demo", private=True)
    (there / "logos").mkdir()
    old = ["model-00001-of-00002.safetensors", "model.safetensors.index.json", "verification.json"]
    theirs = ("notes.txt", "banner.png", "logos/ours.png")
    for name in (*old, "adapter_config.json", "other_eval.png", *theirs):
        (there / name).write_text("{}")
    told = push("--stage", "sft")
    assert told["stage"] == "sft"
    assert {path.name for path in there.iterdir()} == {*told["files"], *theirs[:2], "logos"}
    assert (there / "logos" / "ours.png").exists()


def test_a_data_set_is_there_with_its_card(hub: FakeHub, push: Any, store: Store) -> None:
    told = push("--dataset")
    assert told["url"] == f"{hub.url}/datasets/us/demo"
    there = hub.repositories["datasets/us/demo"]
    files = (path for path in there.rglob("*") if path.is_file())
    names = {path.relative_to(there).as_posix() for path in files}
    assert names == set(told["files"]) >= {"README.md", "dropped.jsonl"}
    assert (there / "README.md").read_text().startswith("---\npretty_name")
    assert push("--dataset")["changed"] is False
    said = push("--dataset", "--stage", "sft", code=2)
    assert "no data set. Stages with one: distill, rebalance" in said


def test_adapters_are_there_where_what_they_belong_to_is(hub: FakeHub, push: Any) -> None:
    told = push("--adapters", "--stage", "sft")
    assert set(told["files"]) >= {"README.md", "adapter_config.json"}
    card = ModelCard.load(hub.repositories["us/demo"] / "README.md")
    assert card.data.library_name == "peft"
    assert 'from_pretrained("google/gemma-3-1b-it"' in card.text
    assert "without --adapters" in push("--adapters", "--stage", "grpo", code=2)
    assert "push one of them" in push("--adapters", "--dataset", code=2)


def test_what_is_private_stays_private(hub: FakeHub, push: Any) -> None:
    """A public repository gets nothing without --public, nor a private one with it."""
    there = hub.add("us/demo", private=False)
    assert "us/demo is public: push with --public" in push(code=2)
    assert not any(there.iterdir())
    assert push("--public")["private"] is False
    hub.private.add("us/demo")
    assert "us/demo is private: push without --public" in push("--public", code=2)


@pytest.mark.parametrize(
    ("token", "to", "words"),
    [
        ("", "us/demo", ["no token", "HF_TOKEN"]),
        ("hf_reads", "us/demo", ["may only read", "settings/tokens"]),
        ("hf_wrong", "us/demo", ["401", "not valid"]),
        ("hf_writes", "others/demo", ["403", "ask the organisation"]),
        ("hf_writes", "nobody/demo", ["404", "no organisation or account 'nobody'"]),
        ("hf_writes", "demo", ["ORGANISATION/NAME"]),
        ("hf_writes", "us/de mo", ["us/de mo", "Repo id"]),
    ],
)
def test_who_may_not_is_told_what_to_do(hub, push, monkeypatch, token, to, words):
    monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/nowhere/token")
    monkeypatch.setattr("flows.cli.push.export", None)  # nothing is made before
    said = push("--to", to, code=2)
    assert all(word in said for word in words), said
    assert said.count("\n") == 1
    assert "hf_w" not in said
    assert not hub.received


def test_a_file_that_is_too_large_a_bad_card_and_a_limit_are_told(hub: FakeHub, push: Any) -> None:
    hub.largest = 10_000
    said = push(code=2)
    assert "the file is too large" in said
    hub.largest = 1 << 30
    hub.refusals["PUT "] = (413, "a part is too large")
    said = push(code=2)
    assert "larger than the hub takes" in said
    assert "Error while uploading '" in said
    hub.refusals.clear()
    hub.refusals["/validate-yaml"] = (400, "tags must be a list")
    said = push(code=2)
    assert "400: tags must be a list; Invalid metadata in README.md" in said
    hub.refusals.clear()
    hub.refusals["/commit/"] = (429, "too many requests")
    assert "wait some minutes" in push(code=2)


def test_a_licence_that_was_not_accepted_and_a_hub_that_is_away(hub, push, monkeypatch, tmp_path):
    hub.repositories["google/gemma-3-1b-it"] = tmp_path
    hub.gated.add("google/gemma-3-1b-it")
    monkeypatch.setattr("flows.cli.push.published_as", lambda _: "google/gemma-3-1b-it")
    said = push(code=2)
    assert f"accept it at {hub.url}/google/gemma-3-1b-it" in said
    assert "us/demo" not in hub.repositories
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in push(code=2)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert "cannot be reached" in push(code=2)

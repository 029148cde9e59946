"""Where a recipe's model comes from: names, checks before anything runs, identity, and downloads
from each kind of place."""

import json
import shutil
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from infra.settings import Settings
from infra.store.store import open_store
from schemas.base import InputError, StageFailed
from tasks.models import decoder
from tasks.models.loading import LoadedModel, base_model, load_model, model_config, save_model
from tasks.models.model_source import (
    AT_HAND,
    TINY,
    TINY_VERSION,
    Source,
    check_model,
    model_dependencies,
    needed,
    source_of,
)
from tasks.models.shipping import receive_model, ship_model
from tests.fakes.fake_hub import FakeHub
from tests.tasks.devices.fake_devices import printed
from tests.tasks.models.small_model import SMALL_MODEL as CONFIG
from tests.tasks.models.small_model import weights_of

UNWANTED = {
    "pytorch_model.bin": b"pickle",
    "model.gguf": b"gguf",
    "README.md": b"# Card",
    "original/model.safetensors": b"twice",
}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of a tiny Gemma 3, with files that nobody reads."""
    directory = tmp_path_factory.mktemp("published")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(decoder.SIZES, TINY, CONFIG)
        save_model(base_model(TINY, seed=3), directory)
    (directory / "tokenizer.json").write_text("{}")
    for name, data in UNWANTED.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_bytes(data)
    return directory


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LYCEUM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def hub(cache: Path, published: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """Both hubs, of which this process has no credentials."""
    with FakeHub() as fake:
        monkeypatch.setenv("HF_ENDPOINT", fake.url)
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        monkeypatch.setenv("KAGGLE_API_ENVIRONMENT", "LOCALHOST")
        monkeypatch.setattr("kagglesdk.kaggle_http_client.get_endpoint", lambda env: fake.url)
        for name in ("HF_TOKEN", "KAGGLE_API_TOKEN", "KAGGLE_USERNAME", "KAGGLE_KEY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HF_TOKEN_PATH", str(cache / "none"))
        monkeypatch.setenv("KAGGLE_CONFIG_DIR", str(cache / "none"))
        monkeypatch.setenv("KAGGLEHUB_CACHE", str(cache / "kaggle"))
        fake.repositories["google/small"] = published
        yield fake


def assert_same(loaded: LoadedModel, directory: Path) -> None:
    both = weights_of(loaded), weights_of(load_model(directory))
    jax.tree.map(np.testing.assert_array_equal, *both)


def test_forms_of_a_model() -> None:
    assert source_of("hf://org/name.v2@refs/pr/1") == Source("hf", "org/name.v2", "refs/pr/1")
    kaggle = "google/gemma-3/flax/gemma3-1b-it"
    assert source_of(f"kaggle://{kaggle}") == Source("kaggle", kaggle)
    assert source_of(f"kaggle://{kaggle}/12") == Source("kaggle", kaggle, "12")
    assert source_of("gs://bucket/a/b/") == Source("gs", "bucket/a/b")
    assert source_of("/a/b") == Source("local", "/a/b")
    assert source_of("~/b") == Source("local", str(Path.home() / "b"))


def test_what_cannot_be_a_model_is_refused() -> None:
    for model, words in (
        ("gemma3-1b", r"model 'gemma3-1b'. Did you mean 'gemma3-1b-.t'\? Valid: gemma2-2.*hf://"),
        ("hf://gemma-3-1b-it", "not of the form hf://ORGANISATION/NAME"),
        ("hf://a/b/c", "not of the form"),
        ("kaggle://google/gemma-3", "not of the form kaggle://OWNER/MODEL/FRAMEWORK/VARIATION"),
        ("gs://bucket", "not of the form gs://BUCKET/DIRECTORY"),
        ("s3://bucket/x", "the scheme 's3' is not supported. Valid: hf://, kaggle://, gs://"),
        ("google/gemma-3-1b-it", 'absolute.*google/gemma-3-1b-it" or "hf://google/gemma-3-1b-it"'),
        ("./here", "a path must be absolute"),
        ("/nowhere/at/all", "there is no such directory"),
        ("", "unknown model ''"),
    ):
        with pytest.raises(InputError, match=words):
            check_model(model)


def test_checks_need_no_jax_and_no_network(published: Path, tmp_path: Path) -> None:
    code = """
import json, socket, sys
socket.socket = None
from tasks.models.model_source import check_model, model_dependencies
names = "gemma3-tiny gemma3-1b-it hf://a/b gs://bucket/x kaggle://a/b/flax/c".split()
for model in (*names, sys.argv[1]):
    check_model(model)
heavy = {"jax", "numpy", "huggingface_hub", "kagglehub", "google.cloud.storage"}
known = model_dependencies("hf://a/b@main"), len(model_dependencies(sys.argv[1])["model"])
print(json.dumps([*known, sorted(heavy & set(sys.modules))]))
"""
    assert printed(code, str(published), LYCEUM_CACHE=str(tmp_path)) == [{}, 64, []]


def test_a_directory_is_identified_by_what_is_read_of_it(published, tmp_path, cache, monkeypatch):
    copy = tmp_path / "copy"
    shutil.copytree(published, copy)
    before = model_dependencies(str(published))
    with monkeypatch.context() as again:
        again.setattr("hashlib.file_digest", None)  # weights are not hashed again
        assert model_dependencies(str(published)) == before
    assert model_dependencies(str(copy)) == before
    (copy / "README.md").write_text("another card")
    (copy / "original" / "model.safetensors").unlink()
    assert model_dependencies(str(copy)) == before
    weights = bytearray((copy / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (copy / "model.safetensors").write_bytes(weights)
    assert model_dependencies(str(copy)) != before
    shutil.copy(published / "model.safetensors", copy)
    assert model_dependencies(str(copy)) == before
    (copy / "config.json").write_text((copy / "config.json").read_text() + " ")
    assert model_dependencies(str(copy)) != before


def test_hubs_are_identified_by_their_names_and_the_tiny_model_by_its_version() -> None:
    for model in ("gemma3-1b-it", "hf://org/name@abc", "kaggle://google/gemma-3/flax/x/1"):
        assert model_dependencies(model) == {}
    assert model_dependencies(TINY) == {"model": TINY_VERSION}


def test_which_files_are_read() -> None:
    read = ["config.json", "model-00001-of-00002.safetensors", "model.safetensors"]
    assert needed([*read, ".lock", "x/model.safetensors", "a.bin"]) == read
    orbax = ["ckpt/_METADATA", "ckpt/d/0", "tokenizer.model"]
    assert needed([*orbax, ".have.json"]) == orbax


def test_a_repository_is_read_once_and_only_what_is_needed(hub: FakeHub, published: Path) -> None:
    assert model_config("hf://google/small") == CONFIG
    assert "model.safetensors" not in hub.downloads()
    loaded = base_model("hf://google/small", seed=0)
    assert_same(loaded, published)
    assert loaded.name == "hf://google/small"
    wanted = "config.json generation_config.json model.safetensors tokenizer.json tokenizer.model"
    assert sorted(hub.downloads()) == wanted.split()
    hub.requests.clear()
    base_model("hf://google/small", seed=0)
    assert hub.downloads() == []
    assert base_model(f"hf://google/small@{hub.commit('google/small')}", seed=0).config == CONFIG


def test_a_repository_that_was_read_needs_no_network(hub, published, monkeypatch):
    pinned = f"hf://google/small@{hub.commit('google/small')}"
    model_config(pinned)
    with monkeypatch.context() as offline:
        offline.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
        with pytest.raises(InputError, match="hf://google/small is not whole in the cache"):
            base_model("hf://google/small", seed=0)
    base_model("hf://google/small", seed=0)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert_same(base_model("hf://google/small", seed=0), published)
    assert_same(base_model(pinned, seed=0), published)
    with pytest.raises(InputError, match=r"other .* the hub cannot be reached \(.*\). Connect, or"):
        base_model("hf://google/other", seed=0)


def test_a_hubs_model_with_other_turns_is_refused_before_it_is_trained(hub, published, tmp_path):
    """And before its weights are read: no directory of this machine, so nobody looked earlier."""
    other = tmp_path / "other"
    shutil.copytree(published, other)
    (other / "chat_template.jinja").write_text("<|im_start|>{{ messages[0].content }}<|im_end|>")
    hub.repositories["me/other"] = other
    for read in (model_config, lambda model: base_model(model, seed=0)):
        with pytest.raises(InputError, match="jinja has a chat template without <start_of_turn>"):
            read("hf://me/other")


def test_a_gated_model_says_what_to_do(hub, published, monkeypatch):
    hub.gated.add("google/small")
    with pytest.raises(InputError, match=rf"{hub.url}/google/small, then set HF_TOKEN"):
        base_model("hf://google/small", seed=0)
    monkeypatch.setenv("HF_TOKEN", "hf_bad")
    with pytest.raises(InputError, match="the account of HF_TOKEN has no access"):
        base_model("hf://google/small", seed=0)
    monkeypatch.setenv("HF_TOKEN", hub.token)
    assert_same(base_model("hf://google/small", seed=0), published)


def test_a_token_that_has_expired_is_told_as_such(hub: FakeHub, monkeypatch) -> None:
    """With one the hub answers nothing, not even of a model that is open to all."""
    monkeypatch.setenv("HF_TOKEN", "hf_expired")
    hub.refusals["GET /api/models/"] = (401, "Invalid credentials in Authorization header")
    with pytest.raises(InputError, match=r"does not know the token of HF_TOKEN .* or unset it"):
        base_model("hf://google/small", seed=0)


def test_unknown_repositories_and_revisions(hub: FakeHub) -> None:
    with pytest.raises(InputError, match="hf://google/none: there is no such repository, or it is"):
        base_model("hf://google/none", seed=0)
    with pytest.raises(InputError, match="has no revision 'v9'"):
        base_model("hf://google/small@v9", seed=0)


def test_a_shipped_name_must_be_what_it_says(hub, published, monkeypatch):
    hub.repositories["google/gemma-3-1b-it"] = published
    differ = "num_layers is 2 instead of 26, vocab_size is 1536 instead of 262144"
    with pytest.raises(InputError, match=f"is no gemma3-1b-it: {differ}"):
        base_model("gemma3-1b-it", seed=0)
    monkeypatch.setitem(decoder.SIZES, "gemma3-1b-it", replace(CONFIG, dtype="bfloat16"))
    loaded = base_model("gemma3-1b-it", seed=0)
    assert loaded.name == "gemma3-1b-it"
    assert loaded.config.dtype == loaded.model.embedding.get_value().dtype == "bfloat16"
    assert model_config("gemma3-1b-it") == loaded.config


Usage = namedtuple("Usage", "total used free")


@pytest.mark.parametrize("place", ["hf", "gs", "kaggle"])
def test_a_full_disk_is_told_before_the_download(hub, published, gcs, gcs_client, place):
    upload(gcs_client, published)
    hub.repositories["google/small/flax/x"] = published
    model = {
        "hf": "hf://google/small",
        "gs": f"gs://{gcs_client.name}/models/small",
        "kaggle": "kaggle://google/small/flax/x",
    }[place]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda path: Usage(10, 5, 1000))
        with pytest.raises(InputError, match=r"takes 0.0 GB, .* has 0.0 GB free. .* LYCEUM_CACHE"):
            base_model(model, seed=0)
    assert hub.downloads() == []
    assert gcs.requests().get("GET download", 0) == 0


def upload(bucket: Any, directory: Path) -> None:
    for path in directory.rglob("*"):
        if path.is_file():
            blob = bucket.blob(f"models/small/{path.relative_to(directory).as_posix()}")
            blob.upload_from_filename(str(path))


@pytest.mark.usefixtures("cache")
def test_a_bucket_is_read_once_verified_and_again_when_it_changed(
    gcs, gcs_client, published, monkeypatch
):
    monkeypatch.setattr("infra.gcs.download.SLICE", 10_000)  # the weights come in many slices
    upload(gcs_client, published)
    model = f"gs://{gcs_client.name}/models/small"
    gcs.forget_requests()
    before = model_dependencies(model)
    assert gcs.requests() == {"GET list": 1}
    gcs.faults.add("flip", kind="download", times=1)
    gcs.faults.add("truncate", kind="download", times=1)
    assert model_config(model) == CONFIG
    loaded = base_model(model, seed=0)
    assert_same(loaded, published)
    assert loaded.name == model
    read = {path.name for path in loaded.companions.iterdir()} if loaded.companions else set()
    assert not read & {name.partition("/")[0] for name in UNWANTED}
    gcs.forget_requests()
    base_model(model, seed=0)
    assert "GET download" not in gcs.requests()
    weights = bytearray((published / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    gcs_client.blob("models/small/model.safetensors").upload_from_string(bytes(weights))
    assert model_dependencies(model) != before
    changed = base_model(model, seed=0)
    assert changed.companions is not None
    assert (changed.companions / "model.safetensors").read_bytes() == bytes(weights)


def test_no_object_is_written_outside_the_cache(gcs, gcs_client, tmp_path, cache):
    for name in ("../evil", "a/../../evil", f"{tmp_path}/evil", "_METADATA"):
        gcs_client.blob(f"models/odd/{name}").upload_from_string(b"x")
    assert len(gcs.objects(gcs_client.name)) == 4
    with pytest.raises(InputError, match=r"has no tokenizer.model"):
        base_model(f"gs://{gcs_client.name}/models/odd", seed=0)
    written = [path.name for path in tmp_path.rglob("[!.]*") if path.is_file()]
    assert written == ["_METADATA"]


def test_an_empty_place_in_a_bucket(gcs_bucket: str, cache: Path) -> None:
    with pytest.raises(InputError, match="there is nothing below it in the bucket"):
        base_model(f"gs://{gcs_bucket}/models/none", seed=0)
    with pytest.raises(InputError, match="there is no bucket no-such-bucket-here"):
        model_dependencies("gs://no-such-bucket-here/x")


def test_bytes_that_are_never_right_are_not_used(gcs, gcs_client, published, cache):
    upload(gcs_client, published)
    gcs.corrupt(gcs_client.name, "models/small/model.safetensors")
    with pytest.raises(ConnectionError, match=r"model.safetensors: .* the service's checksum"):
        base_model(f"gs://{gcs_client.name}/models/small", seed=0)


@pytest.mark.parametrize("kind", ["hub", "directory"])
def test_a_model_reaches_a_machine_without_tokens_through_the_store(
    hub, published, gcs_bucket, tmp_path, monkeypatch, kind
):
    hub.gated.add("google/small")
    model = "hf://google/small" if kind == "hub" else str(published)
    dependencies, here = model_dependencies(model), Settings.from_environment()
    store = open_store(f"gs://{gcs_bucket}/store")
    with monkeypatch.context() as mine:
        mine.setenv("HF_TOKEN", hub.token)
        ship_model(store, model, dependencies, here, lambda message: None)
        sent = len(hub.requests)
        ship_model(store, model, dependencies, here, lambda message: None)
        assert len(hub.requests) == sent
    monkeypatch.setenv("LYCEUM_CACHE", str(tmp_path / "machine"))
    monkeypatch.setitem(AT_HAND, source_of(model), Path())  # forgotten when the test ends
    there, asked = open_store(store.uri), len(hub.requests)
    receive_model(there, model, dependencies)
    loaded = base_model(model, seed=0)
    assert_same(loaded, published)
    assert len(hub.requests) == asked
    assert loaded.companions.is_relative_to(tmp_path / "machine")
    assert (published / "model.safetensors").exists()
    with pytest.raises(StageFailed, match="missing or damaged in store"):
        receive_model(there, model, {"model": "another"})


def test_what_needs_no_sending_is_not_sent(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for model in (TINY, "gs://bucket/models/x"):
        ship_model(store, model, {}, Settings(), lambda message: None)
        receive_model(store, model, {})
    assert not (tmp_path / "models").exists()


def test_a_model_of_a_chain_keeps_its_name_and_the_tokenizers_files(hub, tmp_path):
    save_model(base_model("hf://google/small", seed=0), tmp_path)
    assert (tmp_path / "tokenizer.json").read_text() == "{}"
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["_name_or_path"] == "hf://google/small"
    assert load_model(tmp_path).name == "hf://google/small"
    # no path of a machine in what is written
    assert base_model(str(tmp_path), seed=0).name == tmp_path.name
    assert Settings.from_environment().cache not in (tmp_path / "config.json").read_text()

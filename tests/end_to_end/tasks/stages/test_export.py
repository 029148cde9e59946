"""Export: a directory that transformers loads as the very model that was trained, or nothing at
all."""

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest
import yaml
from safetensors.numpy import load_file, save_file

from schemas.base import InputError, StageFailed
from schemas.examples import Domain, Example, Trace, prompt_id
from tasks.contract.job import write_jsonl
from tasks.data.tokens import Tokenizer
from tasks.devices.hosts import make_mesh
from tasks.exporting import round_trip
from tasks.exporting.exported import export_model
from tasks.exporting.model_card import Card
from tasks.models.decoder import SIZES, GemmaConfig
from tasks.models.hf_tokenizer import write_tokenizer
from tasks.models.loading import LoadedModel, save_model
from tasks.models.tiny import tiny_tokenizer
from tasks.models.weights import initialise
from tasks.stages import reasoning_eval
from tests.flows.runs.synthetic_run import write_run
from tests.tasks.jobs import job_at

transformers = pytest.importorskip("transformers")
pytest.importorskip("torch", reason="the proof needs torch (CPU): uv sync --extra export")

GEMMA3 = replace(
    SIZES["gemma3-tiny"], num_layers=2, global_every=2, num_kv_heads=2, window=24, embed_dim=64,
    hidden_dim=64, global_rope_scale=8.0,
)  # fmt: skip
GEMMA2 = replace(
    GEMMA3, family="gemma2", global_rope=10_000.0, global_rope_scale=1.0, attention_softcap=5.0,
    final_softcap=3.0,
)  # fmt: skip


def artifact(directory: Path, config: GemmaConfig, name: str = "gemma3-tiny") -> Path:
    """What a trained stage leaves, with random weights, and a file that is none of the format's."""
    model = initialise(config, 1)
    norm = 3 * jax.random.normal(jax.random.key(0), (config.embed_dim,))
    model.final_norm.set_value(norm.astype(config.dtype))
    directory.mkdir(parents=True)
    save_model(LoadedModel(name, config, model, tiny_tokenizer(), make_mesh()), directory)
    (directory / "curves.jsonl").write_text("{}\n", encoding="utf-8")
    return directory


@pytest.fixture(scope="module")
def gemma3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return artifact(tmp_path_factory.mktemp("gemma3") / "artifact", GEMMA3)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proof of few tokens."""
    monkeypatch.setattr(round_trip, "PROMPTS", round_trip.PROMPTS[:1])
    monkeypatch.setattr(round_trip, "NEW_TOKENS", 4)


def export(source: Path, out: Path, dtype: Any = "float32", base="gemma3-tiny") -> round_trip.Proof:
    out.mkdir()
    card = Card("a title", base)
    proof = export_model(source, out, card, ["One more?"], dtype, lambda said: None)
    return proof


def test_gemma3_comes_back_from_transformers(gemma3: Path, tmp_path: Path) -> None:
    proof = export(gemma3, tmp_path / "out")
    assert proof.max_logit_difference < 1e-5
    # one that was given, one that is longer than the window
    assert proof.prompts == len(round_trip.PROMPTS) + 2
    assert proof.greedy_tokens > 5 * round_trip.NEW_TOKENS
    names = "README.md chat_template.jinja config.json generation_config.json model.safetensors"
    names += " tokenizer.json tokenizer.model tokenizer_config.json verification.json"
    assert {path.name for path in (tmp_path / "out").iterdir()} == set(names.split())
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "no weights of Gemma are in this directory" in card
    tokenizer = tiny_tokenizer()
    settings = transformers.GenerationConfig.from_pretrained(tmp_path / "out")
    assert settings.eos_token_id == [1, tokenizer.end_of_turn_id]


@pytest.mark.usefixtures("quick")
def test_transformers_warns_of_nothing_when_it_loads_an_export(
    gemma3, tmp_path, monkeypatch, caplog
):
    """Without its version in config.json it said "this will lead to incorrect tokenization"."""
    export(gemma3, tmp_path / "out")
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert caplog.text == ""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gemma2_comes_back_in_several_files_and_in_bfloat16_too(tmp_path, dtype, monkeypatch):
    monkeypatch.setattr("tasks.models.hf_weights.SHARD_BYTES", 100_000)
    source = artifact(tmp_path / "artifact", replace(GEMMA2, dtype="bfloat16"), "gemma2-2b-it")
    proof = export(source, tmp_path / "out", dtype, "gemma2-2b-it")
    assert proof.dtype == dtype
    assert len(list((tmp_path / "out").glob("model-0*.safetensors"))) > 1
    assert "Gemma Terms of Use" in (tmp_path / "out" / "NOTICE").read_text(encoding="utf-8")
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    described = yaml.safe_load(card.split("---")[1])
    assert (described["license"], described["base_model"]) == ("gemma", "google/gemma-2-2b-it")
    assert proof.max_logit_difference < (1e-5 if dtype == "float32" else 0.1)


def edit(file: str, change: Callable[[str], str]) -> Callable[[Path], None]:
    def spoil(directory: Path) -> None:
        before = (directory / file).read_text(encoding="utf-8")
        assert change(before) != before
        (directory / file).write_text(change(before), encoding="utf-8")

    return spoil


def edit_json(file: str, change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def changed(text: str) -> str:
        value = json.loads(text)
        change(value)
        return json.dumps(value)

    return edit(file, changed)


def edit_template(old: str, new: str) -> Callable[[Path], None]:
    return edit("chat_template.jinja", lambda text: text.replace(old, new))


def swap_weights(directory: Path) -> None:
    tensors = load_file(directory / "model.safetensors")
    one, other = (f"model.layers.{layer}.self_attn.q_proj.weight" for layer in (0, 1))
    tensors[one], tensors[other] = tensors[other], tensors[one]
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})


def drop_weight(directory: Path) -> None:
    tensors = load_file(directory / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})


def fewer_merges(value: dict[str, Any]) -> None:
    value["model"].update(merges=value["model"]["merges"][50:])


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "the base's eos": (
        edit_json("generation_config.json", lambda value: value.update(eos_token_id=1)),
        "generation config has",
    ),
    "swapped weights": (swap_weights, "logits differ"),
    "a lost weight": (drop_weight, "weights do not fit"),
    "another window": (
        edit_json("config.json", lambda value: value.update(sliding_window=16)),
        "logits differ",
    ),
    "another rope": (
        edit_json("config.json", lambda value: value.pop("rope_scaling")),
        "logits differ",
    ),
    "no terminator": (edit_template("<end_of_turn>\\n", "\\n"), "template renders .* to other ids"),
    "no trimming": (
        edit_template("message['content'] | trim", "message['content'] + ' '"),
        "chat template renders .* to other ids",
    ),
    "an answer's role": (
        edit_template('"model"', '"assistant"'),
        "renders an answer to .* to other ids",
    ),
    "a template that is no template": (edit_template("{%- endfor -%}", ""), "chat template fails"),
    "lost merges": (edit_json("tokenizer.json", fewer_merges), "to other ids"),
}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_not_the_trained_model_is_no_export(gemma3, tmp_path, monkeypatch, damage) -> None:
    """Each is a way in which exports go wrong elsewhere; the damage is done after the files were
    written, before the proof."""
    spoil, expected = DAMAGE[damage]

    def write_and_spoil(directory: Path, tokenizer: Tokenizer) -> None:
        write_tokenizer(directory, tokenizer)
        spoil(directory)

    monkeypatch.setattr("tasks.models.hf_tokenizer.write_tokenizer", write_and_spoil)
    with pytest.raises(StageFailed, match=expected):
        export(gemma3, tmp_path / "out")
    assert not (tmp_path / "out" / "README.md").exists()


@pytest.mark.usefixtures("quick")
def test_a_model_that_stops_nowhere_else_but_at_its_stop_tokens(gemma3, tmp_path, monkeypatch):
    """The settings are right and generate() goes on all the same, as with a stopping criterion that
    was lost."""
    from transformers.generation.stopping_criteria import EosTokenCriteria

    def never(self: Any, input_ids: Any, scores: Any, **_: Any) -> Any:
        return input_ids[:, -1] < 0

    monkeypatch.setattr(EosTokenCriteria, "__call__", never)
    with pytest.raises(StageFailed, match=r"generate\(\) does not stop at token 1"):
        export(gemma3, tmp_path / "out")


def test_without_torch_the_message_says_what_to_install(gemma3, tmp_path, monkeypatch):
    real = round_trip.importlib.util.find_spec
    without = lambda name: None if name == "torch" else real(name)  # noqa: E731
    monkeypatch.setattr(round_trip.importlib.util, "find_spec", without)
    with pytest.raises(InputError, match="needs torch: `uv sync --extra export`"):
        export(gemma3, tmp_path / "out")


# The command


def run_with_a_model(root: Path) -> str:
    """A finished run whose trained stages hold a real model. Returns the store."""
    weights = initialise(GEMMA3, 1)
    loaded = LoadedModel("gemma3-tiny", GEMMA3, weights, tiny_tokenizer(), make_mesh())
    store, _ = write_run(root / "store", trained=lambda stage, out: save_model(loaded, out))
    return store.uri


@pytest.mark.usefixtures("quick")
def test_the_command_exports_a_stage_with_its_lineage(tmp_path, lyceum) -> None:
    out = tmp_path / "exports" / "model"
    where = ["--to", out, "--store", run_with_a_model(tmp_path)]
    value = lyceum("export", "demo-1", "--stage", "simpo", *where, "--json").json
    assert (value["stage"], value["directory"]) == ("simpo", str(out))
    assert set(value["files"]) == {path.name for path in out.iterdir()}
    assert {"README.md", "reasoning_eval.png"} <= set(value["files"])
    assert value["verification"]["max_logit_difference"] < 1e-5
    card = (out / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert "| gemma3-tiny (base) | 120 | 0.0 [0.0, " in card
    assert "| simpo | 120 | 40.0 [" in card
    assert "| grpo |" not in card  # it was trained later
    assert value["artifact"]["key"] in card
    assert value["artifact"]["digest"] in card
    assert 'name = "demo"' in card
    assert [path.name for path in out.parent.iterdir()] == ["model"]
    # a directory that holds something is refused, and stays as it is
    said = lyceum("export", "demo-1", *where, code=2).err
    assert "is not empty; give the name of a new directory" in said
    assert set(value["files"]) == {path.name for path in out.iterdir()}


def test_an_export_that_fails_leaves_nothing(tmp_path, monkeypatch, lyceum):
    where = ["--to", tmp_path / "out", "--store", run_with_a_model(tmp_path)]
    monkeypatch.setattr("tasks.models.hf_tokenizer.CHAT_TEMPLATE", "{{ bos_token }}")
    said = lyceum("export", "demo-1", *where, code=1).err
    assert "the export is not the model that was trained" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]


def test_bad_command_lines(tmp_path, lyceum):
    out = tmp_path / "out"
    store, _ = write_run(tmp_path / "store")
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    for arguments, expected in [
        (["demo-1"], "required: --to"),
        (["demo-2", "--to", out], "Valid: demo-1."),
        (["demo-1", "--to", tmp_path / "file"], "is a file; give the name of a new directory"),
        (["demo-1", "--to", out, "--stage", "distill"], "Stages with one: sft, simpo, grpo."),
        (["demo-1", "--to", out, "--dtype", "int8"], "invalid choice: 'int8'"),
        (["demo-1", "--to", tmp_path / "file" / "out"], "cannot be written"),
    ]:
        assert expected in lyceum("export", *arguments, "--store", store.uri, code=2).err
    assert not out.exists()


@pytest.mark.usefixtures("quick")
def test_the_stage_exports_its_policy_with_its_evaluation(gemma3: Path, tmp_path: Path) -> None:
    from tasks.stages import export as stage

    about = {"domain": Domain.MATH, "answer": "4", "check": "numeric", "family": "sums"}
    about["reasoning"] = "2 and 2"
    said = {"What is 2 + 2?": "4", " Ends in a line break:\n": "5", "Spells <end_of_turn> out": "4"}
    items = [
        reasoning_eval.judge(
            Example(id=prompt_id(prompt), prompt=prompt, **about),
            Trace(reasoning="2 and 2", answer=answer).render(),
        )
        for prompt, answer in said.items()
    ]
    (tmp_path / "evaluation").mkdir()
    write_jsonl(tmp_path / "evaluation" / "items.jsonl", items)
    inputs = {"policy": gemma3, "reasoning": tmp_path / "evaluation"}
    job = job_at(tmp_path, stage.Config(), inputs)
    metrics = stage.run(job)
    # of its own, of the evaluation but for one that transformers reads otherwise, the long one
    assert metrics["prompts"] == 1 + 2 + 1
    card = (job.out / "README.md").read_text(encoding="utf-8")
    assert "| this model | 3 | 66.7 [" in card
    assert metrics == json.loads((job.out / "verification.json").read_text(encoding="utf-8"))

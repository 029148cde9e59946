"""PEFT loads the adapters of a stage beside its base, and has the model that the stage left; a
stage begins with adapters that PEFT wrote, and has PEFT's model."""

import json
from pathlib import Path

import numpy as np
import pytest

from schemas.trainer_config import LoraConfig
from tasks.models.adapters import check_adapters
from tasks.models.loading import base_model, save_model
from tasks.models.lora import add_lora
from tasks.models.peft import load_adapters
from tasks.stages import sft
from tests.tasks.stages.bench import LORA, SFT_LORA, Bench, content
from tests.tasks.stages.test_laws import bench, inputs  # noqa: F401

torch = pytest.importorskip("torch", reason="needs torch and PEFT: uv pip install peft")
peft = pytest.importorskip("peft", reason="needs PEFT: uv pip install peft")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("one_layer")


def test_peft_has_the_model_that_was_trained(bench: Bench, tmp_path: Path) -> None:
    """Kept adapters change nothing else of the artifact."""
    plain = bench.attempt(sft, SFT_LORA, "plain", inputs={"policy": ""})
    kept = {**SFT_LORA, "lora": {**LORA, "keep": True}}
    out = bench.attempt(sft, kept, "kept", inputs={"policy": ""})
    adapters = out / "adapters"
    assert json.loads((adapters / "adapter_config.json").read_text())["r"] == LORA["rank"]
    files = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    assert files == content(plain)

    (tmp_path / "base").mkdir()
    save_model(base_model("gemma3-tiny", 0), tmp_path / "base")
    load = transformers.AutoModelForCausalLM.from_pretrained
    base = load(tmp_path / "base", dtype=torch.float32)
    ids = torch.tensor([[2, 105, 700, 801, 333, 106]])
    with torch.no_grad():
        before = base(ids).logits.numpy()
        ours = load(out, dtype=torch.float32)(ids).logits.numpy()
        adapted = peft.PeftModel.from_pretrained(base, adapters)
        theirs = adapted(ids).logits.numpy()
    np.testing.assert_allclose(theirs, ours, atol=2e-2 * np.abs(ours).max())
    assert np.abs(theirs - before).max() > 5 * np.abs(theirs - ours).max()


def test_a_stage_begins_with_the_model_that_peft_wrote(tmp_path: Path) -> None:
    """Whatever PEFT writes beside what is read: the config is its own, with random adapters."""
    base = base_model("gemma3-tiny", 0)
    (tmp_path / "base").mkdir()
    save_model(base, tmp_path / "base")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "base", dtype=torch.float32
    )
    targets = ["q_proj", "v_proj", "down_proj"]
    config = {"r": 4, "lora_alpha": 8, "target_modules": targets, "task_type": "CAUSAL_LM"}
    torch.manual_seed(0)
    adapted = peft.get_peft_model(theirs, peft.LoraConfig(init_lora_weights=False, **config))
    adapted.save_pretrained(tmp_path / "adapters")
    ids = np.array([[2, 105, 700, 801, 333, 106]])
    with torch.no_grad():
        wanted = adapted(torch.tensor(ids)).logits.numpy()

    place = str(tmp_path / "adapters")
    lora = LoraConfig(rank=4, alpha=8.0, targets=tuple(targets), adapters=place)  # type: ignore[arg-type]
    check_adapters(lora, str(tmp_path / "base"))

    def logits() -> np.ndarray:
        hidden, _ = base.model(ids, np.arange(6)[None], np.ones((1, 6), np.int32))
        return np.asarray(base.model.unembed(hidden))

    plain = logits()
    add_lora(base.model, lora, seed=0)
    load_adapters(base.model, lora, "gemma3-tiny")
    np.testing.assert_allclose(logits(), wanted, atol=1e-4 * np.abs(wanted).max())
    assert np.abs(logits() - plain).max() > 0.1

"""PEFT loads the adapters of a stage beside its base, and has the model that the stage left."""

import json
from pathlib import Path

import numpy as np
import pytest

from tasks.models.loading import base_model, save_model
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

"""`lyceum export --adapters`: what a stage kept, as PEFT reads it."""

from pathlib import Path
from typing import Any

from tests.flows.runs import synthetic_run


def test_adapters_are_handed_out_where_a_stage_kept_them(tmp_path, monkeypatch, lyceum):
    store, _ = synthetic_run.write_run(tmp_path / "store")
    command = ["export", "demo-1", "--adapters", "--to", tmp_path / "to", "--stage", "sft"]
    said = lyceum(*command, "--store", store.uri, code=2).err
    assert "stages.sft.config.lora.keep=true" in said
    assert not (tmp_path / "to").exists()

    real = synthetic_run.write_training

    def with_adapters(stage: Any, out: Path, text: str) -> dict[str, Any]:
        (out / "adapters").mkdir(exist_ok=True)
        (out / "adapters" / "adapter_config.json").write_text('{"r": 2}\n', encoding="utf-8")
        return real(stage, out, text)

    monkeypatch.setattr(synthetic_run, "write_training", with_adapters)
    store, _ = synthetic_run.write_run(tmp_path / "other")
    told = lyceum(*command, "--store", store.uri, "--json").json
    assert (told["stage"], told["files"]) == ("sft", {"adapter_config.json": 9})
    assert (tmp_path / "to" / "adapter_config.json").read_text() == '{"r": 2}\n'

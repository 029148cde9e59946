"""Weights in parts: over "fsdp" and "tp" axes of four devices a model trains, adapts and speaks as
on one device."""

from dataclasses import replace

import pytest
from jax.sharding import AbstractMesh, PartitionSpec

from tasks.models.decoder import SIZES
from tasks.models.sharding import weight_specs


def test_small_weights_lie_whole_and_large_ones_in_parts() -> None:
    mesh = AbstractMesh((8, 1), ("fsdp", "tp"))
    whole, spread = PartitionSpec(), PartitionSpec(None, "fsdp")
    one_b, nine_b = SIZES["gemma3-1b-it"], SIZES["gemma2-9b-it"]
    assert weight_specs(one_b, mesh, trained=False)["layers.q_proj"] == whole  # 2 GB
    # 16 GB with its optimizer
    assert weight_specs(one_b, mesh, trained=True)["layers.q_proj"] == spread
    assert weight_specs(nine_b, mesh, trained=False)["layers.q_proj"] == spread  # 18 GB
    assert weight_specs(nine_b, mesh, trained=False)["layers.input_layernorm"] == whole


def test_what_does_not_divide_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LYCEUM_WHOLE_WEIGHTS_GIB", "0")
    mesh = AbstractMesh((2, 4), ("fsdp", "tp"))
    specs = weight_specs(replace(SIZES["gemma3-1b-it"], vocab_size=262145), mesh, trained=True)
    assert specs["layers.k_proj"] == PartitionSpec(None, "fsdp")  # one head for all
    assert specs["layers.q_proj"] == PartitionSpec(None, "fsdp", "tp")
    assert specs["embedding"] == PartitionSpec(None, "fsdp")
    assert specs["layers.q_proj_lora_a"] == PartitionSpec(None, "fsdp")
    assert specs["layers.q_proj_lora_b"] == PartitionSpec(None, None, "tp")

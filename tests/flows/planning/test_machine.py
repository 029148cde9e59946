"""`lyceum plan` and `lyceum run` for an accelerator of this machine, which it has not: what JAX
would find is said by the test, and the compiler is that of `conftest.py`."""

from collections.abc import Callable
from pathlib import Path

import pytest

from flows.planning import compile_cache, machine
from infra.accelerator import Accelerator, Found
from infra.tpu.types import GIB

pytestmark = pytest.mark.usefixtures("fake")


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Give this machine 2 devices of a kind."""

    def found(kind: str, platform: str, gib: float) -> None:
        one = Accelerator(
            platform=platform, kind=kind, devices=2, memory_bytes=int(gib * GIB), driver="a test's"
        )
        for module in (compile_cache, machine):
            monkeypatch.setattr(module, "find", lambda: Found(one))

    return found


LOCAL = ["plan", "tiny.toml", "--store", "store"]


def test_a_gpu_of_this_machine_is_planned_for_by_its_own_compiler_as_to_memory(accelerator, lyceum):
    """What it takes nobody has measured: FLOPs and bytes of its programs are not read."""
    accelerator("NVIDIA L4", "cuda", 20.0)
    stages = {stage["name"]: stage for stage in lyceum(*LOCAL, "--json").json["stages"]}
    step = stages["sft"]["programs"][0]
    assert (step["hbm_bytes"], step["hbm_limit_bytes"]) == (10 * GIB, 20 * GIB)
    assert (step["fits"], step["roofline_seconds"], step["bound"]) == (True, None, None)
    assert (stages["sft"]["seconds"], stages["sft"]["cost_usd"]) == (None, 0.0)
    assert stages["distill"]["programs"] == []
    printed = lyceum(*LOCAL).out
    assert "on one device of this machine" in printed
    assert "It fits this machine." in printed


def test_what_does_not_fit_the_gpu_of_this_machine_is_not_begun(accelerator, lyceum):
    accelerator("NVIDIA L4", "cuda", 8.0)
    message = lyceum("run", "tiny.toml", "--store", "store", code=3).err.splitlines()[-1]
    wrong = "Stage sft: train_step needs 10.00 of 8.00 GiB a device"
    assert f"does not fit this machine's NVIDIA L4; nothing was submitted. {wrong}" in message
    assert message.endswith("--set stages.sft.config.micro_batch_size=32")
    assert not list(Path("store").glob("runs/*"))


def test_a_tpu_of_this_machine_is_planned_with_its_times_and_costs_nothing(accelerator, lyceum):
    """10 steps and their validation at 1 s of roofline each, at 40 % of it; nothing boots."""
    accelerator("TPU v5 lite", "tpu", 15.75)
    value = lyceum(*LOCAL, "--json", "--hours", "9").json
    stage = {stage["name"]: stage for stage in value["stages"]}["sft"]
    assert stage["programs"][0]["roofline_seconds"] == pytest.approx(1.0)
    calls = sum(one["calls"] * one["roofline_seconds"] for one in stage["programs"])
    assert (stage["seconds"], stage["cost_usd"]) == (pytest.approx(calls / 0.4), 0.0)
    assert stage["basis"] == "40% of the roofline"
    assert value["sessions"]["count"] == 1


def test_a_container_has_the_memory_that_it_is_given(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text("max\n", encoding="ascii")
    monkeypatch.setattr(machine, "LIMITS", [tmp_path / "memory.max", tmp_path / "none"])
    whole = machine.memory_bytes()
    (tmp_path / "memory.max").write_text(f"{whole // 2}\n", encoding="ascii")
    assert (machine.memory_bytes(), machine.free_bytes() <= whole // 2) == (whole // 2, True)

"""`tasks.planning.compiler` with the real TPU compiler, on functions small enough to compile in a
second; and what needs no compiler."""

import pytest

from infra.tpu.chips import CHIPS, chip_of
from infra.tpu.types import GIB, TPU_TYPES
from tasks.planning.compiler import bytes_per_device, needed_bytes
from tests.fakes.process import run_python

SAID = {
    "Ran out of memory in space hbm. Used 18.11G of 15.75G hbm. Exceeded by 2.36G": 18.11,
    "memory required for HLO temporaries (510.00G) exceeds available HBM (15.75G).": 510,
    "Used 900.5M of 15.75G hbm": 900.5 / 1024,
    "Ran out of memory, and nobody says how much": 0,
}


def test_the_size_of_a_refused_program_is_read_from_what_the_compiler_says():
    for message, size in SAID.items():
        assert needed_bytes(message) == int(size * GIB)


def test_bytes_per_device_are_those_of_one_shard() -> None:
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
    sharded = NamedSharding(mesh, PartitionSpec("fsdp"))
    placed = jax.ShapeDtypeStruct((8, 4), np.float32, sharding=sharded)
    tree = {"a": placed, "b": [jax.ShapeDtypeStruct((3,), np.int32)], "c": None}
    assert bytes_per_device(tree) == 8 * 4 * 4 + 12


def test_every_target_has_a_chip_whose_memory_is_less_than_what_is_built_in() -> None:
    """GiB of a chip by Google's pages; of a v5p they say 95, the compiler uses 95.74."""
    built_in = {"v2": 16, "v3": 32, "v4": 32, "v5e": 16, "v5p": 96, "v6e": 32}
    for kind in TPU_TYPES.values():
        gib = built_in[kind.name.partition("-")[0]] / (kind.devices // kind.chips)
        assert 0.9 < chip_of(kind).hbm_bytes / (gib * 2**30) < 1


def test_the_roofline_is_the_slower_of_products_and_memory_and_collectives_on_top() -> None:
    chip = CHIPS["v5e"]
    assert chip.roofline_seconds(197e12, 819e8, 0) == pytest.approx(1.0)
    assert chip.roofline_seconds(197e11, 819e9, 50e9) == pytest.approx(1.5)
    bounds = [chip.bound(*one) for one in ((197e12, 0, 0), (0, 819e9, 0), (0, 819e9, 200e9))]
    assert bounds == ["compute", "memory", "links"]


def test_the_process_ends_with_its_input() -> None:
    done = run_python("-m", "tasks.planning.compiler", "v5e-8", input="", timeout=300)
    assert (done.returncode, done.stdout) == (0, "")

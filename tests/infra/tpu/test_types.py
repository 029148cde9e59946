"""The table of TPU types against facts that are stated elsewhere: names, chips, hosts, memory,
zones."""

import math

import pytest

from infra.gcs.region import region_of
from infra.targets import TARGETS, check_target
from infra.tpu.types import TPU_TYPES
from schemas.base import InputError


@pytest.mark.parametrize(
    ("name", "accelerator", "chips", "hosts", "devices"),
    [
        ("v5e-8", "v5litepod-8", 8, 1, 8),
        ("v5e-16", "v5litepod-16", 16, 4, 16),
        ("v6e-8", "v6e-8", 8, 1, 8),
        ("v5p-8", "v5p-8", 4, 1, 4),
        ("v4-32", "v4-32", 16, 4, 16),
        ("v3-8", "v3-8", 4, 1, 8),
        ("v2-8", "v2-8", 4, 1, 8),
    ],
)
def test_names_mean_what_the_cloud_means_by_them(name, accelerator, chips, hosts, devices):
    kind = TPU_TYPES[name]
    assert (kind.accelerator, kind.chips) == (accelerator, chips)
    assert (kind.hosts, kind.devices) == (hosts, devices)


def test_the_topology_the_number_and_the_devices_of_every_type_agree() -> None:
    for name, kind in TPU_TYPES.items():
        family, _, number = name.partition("-")
        assert name == kind.name
        assert math.prod(int(side) for side in kind.topology.split("x")) == kind.chips
        assert int(number) == kind.chips * (2 if family in ("v2", "v3", "v4", "v5p") else 1)
        assert kind.devices == kind.chips * (2 if family in ("v2", "v3") else 1)
        assert kind.chips % kind.hosts == 0
        assert kind.chips // kind.hosts in (1, 4, 8)
        assert kind.zones
        assert len({region_of(zone) for zone in kind.zones}) >= 1
        prices = kind.usd_per_chip_hour
        assert 0 < prices["spot"] < prices["on-demand"] == prices["guaranteed"] < 10


def test_runtimes_fit_their_generation() -> None:
    assert TPU_TYPES["v5e-8"].runtime == "v2-alpha-tpuv5-lite"
    assert TPU_TYPES["v5p-8"].runtime == "v2-alpha-tpuv5"
    assert TPU_TYPES["v6e-8"].runtime == "v2-alpha-tpuv6e"
    assert {TPU_TYPES[name].runtime for name in ("v2-8", "v3-8", "v4-8")} == {"tpu-ubuntu2204-base"}


def test_every_type_is_a_target_and_an_unknown_one_is_explained() -> None:
    assert ["local", *TPU_TYPES] == list(TARGETS)
    for target in TARGETS:
        check_target(target)
    with pytest.raises(InputError, match=r"unknown target 'v5e-9'\. Did you mean 'v5e-"):
        check_target("v5e-9")
    for meant in ("v5litepod-8", "V5E-8"):  # Google's name; it was taken for the dearer v5p-8
        with pytest.raises(InputError, match=r"Did you mean 'v5e-8'"):
            check_target(meant)

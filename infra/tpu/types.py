"""TPU types for jobs: their names in the Cloud TPU API, sizes, zones and prices.

A target is named as people name slices: `v5e-8` and `v6e-8` have 8 chips, but `v2-8`, `v3-8`,
`v4-8` and `v5p-8` have 8 cores, that is 4 chips.

Sizes, hosts and zones are those of cloud.google.com/tpu/docs (v5e, v5p, v6e, v4, "TPU regions and
zones"; a copy of 2025, of 2026 for v5p); zones that are open to a single tenant only are left out.
An account may be allowed in others: LYCEUM_ZONES takes any zone, and the API has the last word.

Prices are US dollars per chip and hour in US regions, **from memory (on-demand) and third hand
(spot), as of mid 2025, not confirmed** against cloud.google.com/tpu/pricing; spot prices change
every month. They suffice for a spending cap and for comparing plans, not for accounting;
LYCEUM_TPU_USD_PER_CHIP_HOUR overrides them. A reservation counts at the on-demand price.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

GIB = 1024**3


@dataclass(frozen=True)
class TpuType:
    """One size of one generation.

    Attributes:
        name: the target, e.g. `v5e-8`.
        accelerator: the API's accelerator type, e.g. `v5litepod-8`.
        chips: chips of the slice.
        hosts: virtual machines, each of which runs one worker.
        devices: devices as JAX counts them: two per chip before v4, one from v4 on.
        topology: how the chips are connected, e.g. `2x4`.
        runtime: the software version that a VM of this generation boots.
        zones: that offer it, the preferred one first.
        usd_per_chip_hour: list price of one chip for an hour, by tier (`spot`, `on-demand`,
            `guaranteed`).
    """

    name: str
    accelerator: str
    chips: int
    hosts: int
    devices: int
    topology: str
    runtime: str
    zones: tuple[str, ...]
    usd_per_chip_hour: Mapping[str, float]


@dataclass(frozen=True)
class _Generation:
    """The facts that all sizes of a generation share. `number_is_cores`: the number in a name
    counts cores, of which a chip has two."""

    accelerator: str
    number_is_cores: bool
    devices_per_chip: int
    runtime: str
    spot: float
    on_demand: float
    zones: tuple[str, ...]


_GENERATIONS = {
    "v2": _Generation("v2", True, 2, "tpu-ubuntu2204-base", 0.34, 1.13,
                      ("us-central1-b", "us-central1-c", "europe-west4-a")),
    "v3": _Generation("v3", True, 2, "tpu-ubuntu2204-base", 0.66, 2.20,
                      ("us-central1-a", "us-central1-b", "europe-west4-a")),
    "v4": _Generation("v4", True, 1, "tpu-ubuntu2204-base", 0.97, 3.22, ("us-central2-b",)),
    "v5e": _Generation(
        "v5litepod", False, 1, "v2-alpha-tpuv5-lite", 0.60, 1.20,
        ("us-central1-a", "us-west4-a", "us-south1-a", "us-west1-c", "europe-west4-b"),
    ),
    "v5p": _Generation("v5p", True, 1, "v2-alpha-tpuv5", 2.10, 4.20,
                       ("us-east5-a", "us-central1-a")),
    "v6e": _Generation(
        "v6e", False, 1, "v2-alpha-tpuv6e", 1.35, 2.70,
        ("us-east5-b", "us-east5-a", "us-central1-b", "us-east1-d", "europe-west4-a",
         "asia-northeast1-b"),
    ),
}  # fmt: skip

_CORES = "8 2x2, 32 4x4, 128 8x8, 256 8x16, 512 16x16"
_CHIPS = "1 1x1, 4 2x2, 8 2x4, 16 4x4, 32 4x8, 64 8x8, 128 8x16, 256 16x16"
_SIZES = {
    "v2": _CORES,
    "v3": f"{_CORES}, 64 4x8",
    "v4": "8 2x2x1, 16 2x2x2, 32 2x2x4, 64 2x4x4, 128 4x4x4",
    "v5e": _CHIPS,
    "v5p": "8 2x2x1, 16 2x2x2, 64 2x4x4, 128 4x4x4, 256 4x4x8",
    "v6e": _CHIPS,
}
_TOPOLOGIES = {
    f"{generation}-{size.split()[0]}": size.split()[1]
    for generation, sizes in _SIZES.items()
    for size in sorted(sizes.split(", "), key=lambda size: int(size.split()[0]))
}

_ZONES_OF_PODS = {"v2": ("us-central1-a", "europe-west4-a"), "v3": ("europe-west4-a",)}
"""Slices of v2 and v3 with more than one host are offered elsewhere than the single machines."""


def _tpu_type(name: str, topology: str) -> TpuType:
    family, _, number = name.partition("-")
    generation, chips = _GENERATIONS[family], math.prod(int(side) for side in topology.split("x"))
    # 4 chips on each host; a single machine of v5e and v6e holds 8.
    hosts = 1 if chips <= (4 if generation.number_is_cores else 8) else chips // 4
    return TpuType(
        name=name,
        accelerator=f"{generation.accelerator}-{number}",
        chips=chips,
        hosts=hosts,
        devices=chips * generation.devices_per_chip,
        topology=topology,
        runtime=generation.runtime,
        zones=_ZONES_OF_PODS.get(family, generation.zones) if hosts > 1 else generation.zones,
        usd_per_chip_hour=MappingProxyType(
            {
                "spot": generation.spot,
                "on-demand": generation.on_demand,
                "guaranteed": generation.on_demand,
            }
        ),
    )


TPU_TYPES: Mapping[str, TpuType] = MappingProxyType(
    {name: _tpu_type(name, topology) for name, topology in _TOPOLOGIES.items()}
)
"""Target name -> type."""

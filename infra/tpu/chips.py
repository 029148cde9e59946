"""Speed and usable memory of the chips, against which `lyceum plan` measures programs.

All numbers are of one device as JAX counts them: half a chip before v4, a chip from v4 on.

- Peak FLOP/s (bfloat16) and HBM bandwidth: cloud.google.com/tpu/docs, pages "TPU v5e", "TPU v5p"
  and "TPU v6e" (read in November 2026 in a stored copy: 197 TFLOP/s and 819 GB/s; 459 TFLOP/s and
  2765 GB/s; 918 TFLOP/s and 1600 GB/s), "TPU v4" (275, 1200), "TPU v3" (123, 900) and "TPU v2"
  (46, 700); **v2, v3 and v4 from memory**.
- Usable HBM: libtpu 0.0.42.1's own limit when it compiles for that chip (asked in November 2026);
  it keeps the rest.
- Links: collectives are modelled as a ring in both directions along one axis of the torus, which
  uses two of a chip's ports. The pages give 1600 Gbit/s over 4 ports (v5e), 4800 over 6 (v5p), 3200
  over 4 (v6e), 2400 over 6 (v4, **from memory**); v2 and v3 have 4 links of 62 and 70 GB/s (Jouppi
  et al. 2023, 2304.01433, **from memory**).
"""

from dataclasses import dataclass

from infra.tpu.types import GIB, TpuType


@dataclass(frozen=True)
class Chip:
    """The figures of one device.

    Attributes:
        flops: peak of bfloat16 matrix products, FLOP/s.
        hbm_bandwidth: bytes/s.
        hbm_bytes: memory that programs can use.
        link_bandwidth: bytes/s that a device sends in a collective.
    """

    flops: float
    hbm_bandwidth: float
    hbm_bytes: int
    link_bandwidth: float

    def roofline_seconds(self, flops: float, hbm_bytes: float, link_bytes: float) -> float:
        """A lower bound of a program's time: products and memory at the same time, collectives
        after them."""
        return (
            max(flops / self.flops, hbm_bytes / self.hbm_bandwidth)
            + link_bytes / self.link_bandwidth
        )

    def bound(self, flops: float, hbm_bytes: float, link_bytes: float) -> str:
        """The largest part of that time: `compute`, `memory` or `links`."""
        times = {
            "compute": flops / self.flops,
            "memory": hbm_bytes / self.hbm_bandwidth,
            "links": link_bytes / self.link_bandwidth,
        }
        return max(times, key=times.__getitem__)


CHIPS = {
    "v2": Chip(46e12 / 2, 700e9 / 2, int(7.48 * GIB), 62e9),
    "v3": Chip(123e12 / 2, 900e9 / 2, int(15.48 * GIB), 70e9),
    "v4": Chip(275e12, 1200e9, int(30.75 * GIB), 100e9),
    "v5e": Chip(197e12, 819e9, int(15.75 * GIB), 100e9),
    "v5p": Chip(459e12, 2765e9, int(95.74 * GIB), 200e9),
    "v6e": Chip(918e12, 1600e9, int(31.25 * GIB), 200e9),
}


DEVICE_KINDS = {
    "TPU v2": "v2",
    "TPU v3": "v3",
    "TPU v4": "v4",
    "TPU v5 lite": "v5e",
    "TPU v5": "v5p",
    "TPU v5p": "v5p",
    "TPU v6 lite": "v6e",
}
"""JAX's name of a device -> its generation."""


def chip_of(kind: TpuType) -> Chip:
    return CHIPS[kind.name.partition("-")[0]]

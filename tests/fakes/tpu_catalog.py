"""What the fake of the Cloud TPU service offers: accelerator types by zone, runtime versions, and
the names of quotas.

Zones and names are those of the real service as far as they are known (autumn 2026), a superset of
what any one project sees. The sizes count TensorCores up to v4 and for v5p, chips for v5e and v6e.
"""

from dataclasses import dataclass

ZONES: dict[str, tuple[str, ...]] = {
    "asia-east1-c": ("v2", "v5litepod", "v6e"),
    "asia-northeast1-b": ("v6e",),
    "europe-west4-a": ("v2", "v3", "v6e"),
    "europe-west4-b": ("v5litepod",),
    "us-central1-a": ("v2", "v3", "v5litepod", "v5p"),
    "us-central1-b": ("v2", "v3", "v6e"),
    "us-central1-c": ("v2",),
    "us-central1-f": ("v2", "v3"),
    "us-central2-b": ("v4",),
    "us-east1-c": ("v5litepod",),
    "us-east1-d": ("v3", "v6e"),
    "us-east5-a": ("v5p", "v6e"),
    "us-east5-b": ("v5litepod", "v6e"),
    "us-south1-a": ("v5litepod", "v6e"),
    "us-west1-c": ("v5litepod",),
    "us-west4-a": ("v5litepod",),
    "us-west4-b": ("v5litepod",),
}
"""Zone -> the generations there."""

RUNTIMES = (
    "tpu-ubuntu2204-base",
    "tpu-vm-base",
    "tpu-vm-tf-2.19.0-pjrt",
    "v2-alpha-tpuv5",
    "v2-alpha-tpuv5-lite",
    "v2-alpha-tpuv6e",
)

_SIZES: dict[str, tuple[int, ...]] = {
    "v2": (8, 32, 128, 256, 512),
    "v3": (8, 32, 64, 128, 256, 512),
    "v4": (8, 16, 32, 64, 128),
    "v5litepod": (1, 4, 8, 16, 32, 64, 128, 256),
    "v5p": (8, 16, 64, 128, 256),
    "v6e": (1, 4, 8, 16, 32, 64, 128, 256),
}
_CHIPS_PER_HOST = 4
_QUOTAS = {
    "v2": "V2s",
    "v3": "V3s",
    "v4": "V4s",
    "v5litepod": "V5sLitepod",
    "v5p": "V5P",
    "v6e": "V6E",
}


@dataclass(frozen=True)
class Accelerator:
    """One accelerator type.

    Attributes:
        name: e.g. `v5litepod-16`.
        generation: e.g. `v5litepod`.
        chips: chips of the whole slice.
        hosts: VMs of the slice: up to 8 chips of v5e and v6e share one, otherwise 4.
    """

    name: str
    generation: str
    chips: int
    hosts: int

    def quota(self, tier: str) -> str:
        """The quota that a request of this type and tier draws on. Spot v5e:
        TPUV5sPreemptibleLitepodPerProjectPerZoneForTPUAPI."""
        name = _QUOTAS[self.generation]
        if tier == "spot":
            name = (
                name.replace("Litepod", "PreemptibleLitepod")
                if "Litepod" in name
                else f"{name}Preemptible"
            )
        pod = "Pod" if self.hosts > 1 and self.generation in ("v2", "v3", "v4") else ""
        return f"TPU{name}{pod}PerProjectPerZoneForTPUAPI"


def _accelerator(generation: str, size: int) -> Accelerator:
    chips = size // (2 if generation in ("v2", "v3", "v4", "v5p") else 1)
    one_host = generation in ("v5litepod", "v6e") and chips <= 2 * _CHIPS_PER_HOST
    return Accelerator(
        f"{generation}-{size}", generation, chips, 1 if one_host else -(-chips // _CHIPS_PER_HOST)
    )


def accelerators(zone: str) -> dict[str, Accelerator]:
    """The types offered in a zone, by name."""
    return {
        one.name: one
        for generation in ZONES[zone]
        for size in _SIZES[generation]
        for one in [_accelerator(generation, size)]
    }

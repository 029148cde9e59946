"""FLOPs and bytes of kernels (Pallas, Mosaic), whose inside the HLO text does not show."""

import math
import re

from tasks.planning.hlo import Computation, Instruction

_ESTIMATE = re.compile(r"\"cost_estimate\":\{([^}]*)\}")
_SPLASH = re.compile(r"splash_m[hq]a_(fwd|dq|dkv)")
_PRODUCTS = {"fwd": 2, "dq": 3, "dkv": 4}


def kernel_cost(one: Instruction, here: Computation) -> tuple[float, float | None] | None:
    """(FLOPs, bytes or None for those of operands and results) of a kernel; None for one that
    nothing is known of.

    A kernel's author may state both (`pallas_call(cost_estimate=...)`). JAX's splash attention
    states neither: see `_splash_flops`.
    """
    estimate = _ESTIMATE.search(one.attributes)
    if estimate:
        said = {
            key: float(value) for key, value in re.findall(r"\"(\w+)\":\"?([\d.e+]+)", estimate[1])
        }
        return said.get("flops", 0.0), said.get("bytes_accessed")
    splash = _SPLASH.match(one.name)
    return (_splash_flops(one, here, splash[1]), None) if splash else None


def _splash_flops(one: Instruction, here: Computation, part: str) -> float:
    """Of jax.experimental.pallas.ops.tpu.splash_attention (jax 0.10.2), for causal masks and
    windows.

    Its first operand says, by its shape (.., query blocks, blocks of keys that any of them meets),
    which blocks it computes: of a causal mask block i meets i + 1 blocks of keys at most. The first
    operands with heads are queries (.., T, H) and keys (.., S, H). Forward it multiplies twice
    (scores, output); backward 3 times for queries and 4 times for keys and values, or 5 times for
    all in one kernel, which then returns gradients of the queries by block, in one dimension more.
    """
    arrays = [here.instructions[name].arrays[0] for name in one.operands]
    queries, keys = [array for array in arrays if array.dtype[0] in "bf" and len(array.dims) >= 3][
        :2
    ]
    blocks, width = max(arrays[0].dims[-2:]), min(arrays[0].dims[-2:])
    met = sum(min(block + 1, width) for block in range(blocks)) / blocks**2
    products = _PRODUCTS[part]
    if part == "dkv" and any(len(array.dims) > len(queries.dims) for array in one.arrays):
        products = 5
    return 2.0 * products * math.prod(queries.dims) * keys.dims[-2] * met

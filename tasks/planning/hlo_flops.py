"""FLOPs of one instruction of a compiled program: of a matrix product, and of a kernel (Pallas,
Mosaic), whose inside the HLO text does not show.

A TPU has only convolutions: batch dimensions and contracted ones come as windows (semantics:
openxla.org/xla, "ConvGeneralDilated").
"""

import math
import re

import numpy as np

from tasks.planning.hlo import Computation, Instruction, attribute

_ESTIMATE = re.compile(r"\"cost_estimate\":\{([^}]*)\}")
_SPLASH = re.compile(r"splash_m[hq]a_(fwd|dq|dkv)")
_PRODUCTS = {"fwd": 2, "dq": 3, "dkv": 4}


def product_flops(one: Instruction, here: Computation) -> float:
    """FLOPs of a `dot` or a `convolution`; 0 for any other instruction."""
    if one.opcode == "dot":
        left = here.instructions[one.operands[0]].arrays[0]
        axes = re.findall(r"\d+", attribute(one.attributes, "lhs_contracting_dims"))
        contracted = math.prod(left.dims[int(axis)] for axis in axes)
        return 2.0 * math.prod(one.arrays[0].dims) * contracted
    return _convolution_flops(one, here) if one.opcode == "convolution" else 0.0


def _convolution_flops(one: Instruction, here: Computation) -> float:
    """Two FLOPs for each product with neither padding nor a hole of dilation."""
    left, right = (here.instructions[name].arrays[0].dims for name in one.operands[:2])
    labels = re.split("_|->", attribute(one.attributes, "dim_labels"))
    window = {
        key: [tuple(int(number) for number in part.split("_")) for part in value.split("x")]
        for key, value in re.findall(r"(\w+)=([\d_x\-]+)", attribute(one.attributes, "window"))
    }
    groups = int(attribute(one.attributes, "batch_group_count") or 1)
    products = 1.0
    for axis in (label for label in labels[0] if label.isdigit()):
        index = int(axis)

        def of(key: str, default: tuple[int, ...], index: int = index) -> tuple[int, ...]:
            return window[key][index] if key in window else default

        products *= _meetings(
            given=left[labels[0].index(axis)],
            size=of("size", (1,))[0],
            out=one.arrays[0].dims[labels[2].index(axis)],
            stride=of("stride", (1,))[0],
            padding=of("pad", (0, 0))[0],
            left_dilation=of("lhs_dilate", (1,))[0],
            right_dilation=of("rhs_dilate", (1,))[0],
        )
    batch = left[labels[0].index("b")] / groups
    taken, given = (right[labels[1].index(axis)] for axis in "io")  # by one group
    return 2.0 * products * batch * taken * given


def _meetings(
    given: int,
    size: int,
    out: int,
    stride: int,
    padding: int,
    left_dilation: int,
    right_dilation: int,
) -> int:
    """How many pairs of a place in the output and one in the window meet an element of the input,
    along one axis."""
    total = 0
    places = np.arange(out, dtype=np.int64) * stride - padding
    for offset in range(size):
        met = places + offset * right_dilation
        inside = (met >= 0) & (met < (given - 1) * left_dilation + 1)
        total += int((inside & (met % left_dilation == 0)).sum())
    return total


def kernel_cost(one: Instruction, here: Computation) -> tuple[float, float | None] | None:
    """(FLOPs, bytes or None for those of operands and results) of a kernel; None for an unknown
    one.

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
    """FLOPs of jax.experimental.pallas.ops.tpu.splash_attention (jax 0.10.2), for causal masks and
    windows.

    The shape of its first operand (.., query blocks, blocks of keys that any of them meets) tells
    which blocks it computes: in a causal mask, block i meets at most i + 1 blocks of keys. The
    first operands with heads are queries (.., T, H) and keys (.., S, H). The forward pass
    multiplies twice (scores, output), the backward pass 3 times for queries and 4 times for keys
    and values, or 5 times for all in one kernel, which then returns the queries' gradients by
    block, with one more dimension.
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

"""FLOPs of matrix products in a compiled program. A TPU has only convolutions: batch dimensions and
contracted ones come as windows. Semantics of windows: openxla.org/xla, "ConvGeneralDilated".
"""

import math
import re

import numpy as np

from tasks.planning.hlo import Computation, Instruction, attribute


def product_flops(one: Instruction, here: Computation) -> float:
    """FLOPs of a `dot` or a `convolution`; 0 of anything else."""
    if one.opcode == "dot":
        left = here.instructions[one.operands[0]].arrays[0]
        axes = re.findall(r"\d+", attribute(one.attributes, "lhs_contracting_dims"))
        contracted = math.prod(left.dims[int(axis)] for axis in axes)
        return 2.0 * math.prod(one.arrays[0].dims) * contracted
    return _convolution_flops(one, here) if one.opcode == "convolution" else 0.0


def _convolution_flops(one: Instruction, here: Computation) -> float:
    """Two for each product that meets no padding and no hole."""
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

"""What a compiled program computes and moves, read from XLA's optimized HLO text, loops included.

`cost_analysis()` of a compiled program counts the body of every loop once; here it counts as often
as it runs.

- FLOPs are those of matrix products (`dot`, `convolution`; a TPU has only the latter), inside
  fusions too: what a chip's peak is about.
- Bytes are what passes between HBM and the core: operands and outputs of every instruction that
  runs, at the boundaries of fusions. Of an array that is only sliced, gathered or updated in place,
  only the part counts. Arrays in VMEM (memory space 1) and other spaces count nothing; the copies
  that bring them there do.
- Link bytes are what one device sends to others in collectives, as rings do: 2 (n - 1) / n of an
  array for an all-reduce, half of that for an all-gather or a reduce-scatter among n devices.

All counts are of one device: programs are SPMD. Semantics of windows: openxla.org/xla,
"ConvGeneralDilated".
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tasks.planning.hlo import Computation, Instruction, attribute, read_module
from tasks.planning.hlo_kernels import kernel_cost

_FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "partition-id", "replica-id",
    "after-all", "iota", "opt-barrier",
    "add-dependency", "domain",
}  # fmt: skip
"""Instructions that move nothing, or no more than a register."""

_COLLECTIVES = {
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute",
    "collective-broadcast", "ragged-all-to-all",
}  # fmt: skip
_KERNEL = "tpu_custom_call"
_IN_PLACE = {"dynamic-update-slice": 1, "scatter": 2}
"""They change a part of their first operand; how often that part passes: what is added to is read,
too."""

_Scalar = tuple[int | None, int] | None
"""(element of the loop's state or None, what is added to it); None where a scalar is anything
else."""


_TARGET = re.compile(r"custom_call_target=\"([^\"]*)\"")


@dataclass(frozen=True)
class Cost:
    """What one device does in one run of a program.

    Attributes:
        flops: of matrix products.
        bytes: to and from HBM.
        link_bytes: sent to other devices in collectives.
        uncounted: what the text does not say: loops whose number of iterations depends on data and
            is not known (they count once), and kernels without a cost.
    """

    flops: float = 0.0
    bytes: float = 0.0
    link_bytes: float = 0.0
    uncounted: tuple[str, ...] = ()

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.flops + other.flops,
            self.bytes + other.bytes,
            self.link_bytes + other.link_bytes,
            tuple(dict.fromkeys([*self.uncounted, *other.uncounted])),
        )

    def times(self, number: float) -> "Cost":
        return replace(
            self,
            flops=number * self.flops,
            bytes=number * self.bytes,
            link_bytes=number * self.link_bytes,
        )


def cost_of(text: str, trips: Mapping[str, float] | None = None) -> Cost:
    """The cost of one run of a compiled program.

    Args:
        text: `compiled.as_text()`.
        trips: how often loops whose number of iterations depends on data are expected to run, by
            the `jax.named_scope` they are in.

    Raises:
        ValueError: the text is no HLO module with an entry.
    """
    return _Program(text, trips or {}).cost()


class _Program:
    """A module, and the cost of its computations."""

    def __init__(self, text: str, trips: Mapping[str, float]) -> None:
        self.trips = trips
        module = read_module(text)
        self.computations, self.entry, self.partitions = (
            module.computations,
            module.entry,
            module.partitions,
        )
        self._scalars: dict[tuple[str, str], _Scalar] = {}
        self._memo: dict[tuple[str, tuple[tuple[int, int], ...]], Cost] = {}

    def cost(self) -> Cost:
        return self._computation(self.entry, {})

    def _computation(self, here: Computation, known: Mapping[int, int]) -> Cost:
        """The cost of running a computation once. `known`: elements of its parameter, a loop's
        state, that never change."""
        key = (here.name, tuple(sorted(known.items())))
        if key not in self._memo:
            seen: set[str] = set()
            self._memo[key] = sum(
                (self._instruction(one, here, known, seen) for one in here.instructions.values()),
                Cost(),
            )
        return self._memo[key]

    def _instruction(
        self, one: Instruction, here: Computation, known: Mapping[int, int], seen: set[str]
    ) -> Cost:
        opcode = one.opcode.removesuffix("-start")
        if one.opcode in _FREE or one.opcode.endswith(("-done", "-update")):
            return Cost()
        if opcode == "while":
            return self._loop(one, here, known)
        if opcode == "conditional":
            return max(
                (self._computation(self.computations[name], {}) for name in one.branches),
                key=lambda cost: (cost.flops, cost.bytes),
            )
        if opcode in ("call", "async") and one.called:
            return self._computation(self.computations[one.called], {})
        if opcode == "fusion":
            return self._fusion(one, here, seen)
        if opcode == "custom-call":
            return self._custom_call(one, here)
        if opcode in _COLLECTIVES:
            return Cost(bytes=self._moved(one, here), link_bytes=self._sent(one, here))
        return Cost(flops=_flops(one, here), bytes=self._moved(one, here))

    # Bytes

    def _moved(self, one: Instruction, here: Computation) -> float:
        """Bytes to and from HBM of an instruction that is no fusion."""
        opcode = one.opcode.removesuffix("-start")
        operands = [here.instructions[name] for name in one.operands]
        if one.opcode in ("slice-start", "dynamic-slice-start"):  # ((source, ...), part, flag)
            part = one.arrays[len(operands)]
            return part.hbm_bytes + (part.bytes if operands[0].hbm_bytes else 0.0)
        if one.opcode == "copy-start":  # (destination, source, flag)
            return one.arrays[0].hbm_bytes + one.arrays[1].hbm_bytes
        if opcode in ("slice", "dynamic-slice", "gather"):
            part_bytes = sum(array.bytes for array in one.arrays)
            return (
                one.hbm_bytes
                + (part_bytes if operands[0].hbm_bytes else 0.0)
                + (operands[1].hbm_bytes if opcode == "gather" else 0.0)
            )
        if opcode == "dynamic-update-slice":
            return operands[1].hbm_bytes + (operands[1].bytes if one.hbm_bytes else 0.0)
        if opcode == "scatter":  # target, indices, updates: what is updated is read and written
            return (
                operands[1].hbm_bytes
                + operands[-1].hbm_bytes
                + (2 * operands[-1].bytes if one.hbm_bytes else 0.0)
            )
        if opcode == "broadcast" or (
            opcode in _COLLECTIVES and one.opcode != opcode and one.type.startswith("(")
        ):
            return sum(
                array.hbm_bytes for array in one.arrays
            )  # of a collective that starts the type holds operands and results
        return one.hbm_bytes + sum(operand.hbm_bytes for operand in operands)

    def _fusion(self, one: Instruction, here: Computation, seen: set[str]) -> Cost:
        inner = self.computations[one.called or ""]
        read = 0.0
        for index, name in enumerate(one.operands):
            operand = here.instructions[name]
            if operand.hbm_bytes:
                read += min(operand.hbm_bytes, self._read(inner, inner.parameters[index]))
        return self._inside(inner, seen) + Cost(bytes=read + self._written(one, inner))

    def _read(self, inner: Computation, value: Instruction) -> float:
        """Bytes of a fusion's operand that the fusion reads."""
        total = value.bytes if value.is_root else 0.0
        for user in inner.users[value.name]:
            first = user.operands[0] == value.name and value.name not in user.operands[1:]
            if user.opcode == "bitcast":
                total += self._read(inner, user)
            elif user.opcode in ("slice", "dynamic-slice", "gather") and first:
                total += user.bytes
            elif user.opcode == "fusion":
                called = self.computations[user.called or ""]
                places = [index for index, name in enumerate(user.operands) if name == value.name]
                total += sum(self._read(called, called.parameters[index]) for index in places)
            elif not (user.opcode in _IN_PLACE and first) and not _passes(user):
                return value.bytes
        return min(total, value.bytes)

    def _written(self, one: Instruction, inner: Computation) -> float:
        """Bytes that a fusion writes to HBM: of an array updated in place, the update."""
        root = inner.root
        results = (
            [inner.instructions[name] for name in root.operands]
            if root.opcode == "tuple"
            else [root]
        )
        if len(results) != len(one.arrays):
            return 0.0 if _passes(root) else one.hbm_bytes
        return sum(
            self._update(inner, result) if array.hbm_bytes else 0.0
            for result, array in zip(results, one.arrays, strict=True)
        )

    def _update(self, inner: Computation, result: Instruction) -> float:
        passed = result.opcode == "parameter" or _passes(result)
        while result.opcode == "bitcast":
            result = inner.instructions[result.operands[0]]
        if result.opcode in _IN_PLACE:
            return (
                _IN_PLACE[result.opcode]
                * inner.instructions[
                    result.operands[1 if result.opcode == "dynamic-update-slice" else -1]
                ].bytes
            )
        return 0.0 if passed else result.bytes

    # What happens inside fusions and kernels

    def _inside(self, inner: Computation, seen: set[str]) -> Cost:
        """FLOPs and collectives of a fused computation. `seen`: channels met so far; the compiler
        spreads a collective over fusions."""
        total = Cost()
        for one in inner.instructions.values():
            if one.opcode == "fusion":
                total += self._inside(self.computations[one.called or ""], seen)
            elif one.opcode in _COLLECTIVES:
                channel = attribute(one.attributes, "channel_id")
                if channel not in seen:
                    seen.add(channel)
                    scattered = (
                        one.opcode == "all-reduce" and "all-reduce-scatter" in inner.name
                    )  # each device keeps its part
                    total += Cost(
                        bytes=self._moved(one, inner),
                        link_bytes=self._sent(one, inner) / (2 if scattered else 1),
                    )
            elif one.opcode == "custom-call":
                total += replace(self._custom_call(one, inner), bytes=0.0)
            else:
                total += Cost(flops=_flops(one, inner))
        return total

    def _custom_call(self, one: Instruction, here: Computation) -> Cost:
        if _passes(one):
            return Cost()
        moved, known = self._moved(one, here), kernel_cost(one, here)
        if known is None:
            return Cost(
                bytes=moved, uncounted=(f"kernel {one.scope or one.name}: its FLOPs are not known",)
            )
        return Cost(flops=known[0], bytes=moved if known[1] is None else known[1])

    def _sent(self, one: Instruction, here: Computation) -> float:
        """Bytes that a device sends in a collective on a ring."""
        opcode = one.opcode.removesuffix("-start")
        given = sum(here.instructions[name].bytes for name in one.operands)
        if opcode == "collective-permute":
            return given
        number = self._group(one)
        share = (number - 1) / number
        if opcode == "all-gather":
            return given * (number - 1)
        return given * share * (2 if opcode == "all-reduce" else 1)

    def _group(self, one: Instruction) -> int:
        """How many devices take part: replica_groups={{0,1},{2,3}}, [4,2]<=[8], or
        mesh['a'=4,'b'=2] {'b'}."""
        mesh = re.search(r"replica_groups=mesh\[([^\]]*)\] ?\{([^}]*)\}", one.attributes)
        if mesh:
            sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", mesh[1])}
            return math.prod(sizes[name] for name in re.findall(r"'([^']+)'", mesh[2]))
        listed = re.search(r"replica_groups=(?:\{\{([\d,]*)\}|\[\d+,(\d+)\])", one.attributes)
        if listed is None:
            return self.partitions
        return len(listed[1].split(",")) if listed[1] else int(listed[2])

    # Loops

    def _loop(self, one: Instruction, here: Computation, known: Mapping[int, int]) -> Cost:
        body = self.computations[attribute(one.attributes, "body").lstrip("%")]
        condition = self.computations[attribute(one.attributes, "condition").lstrip("%")]
        start = here.instructions[one.operands[0]]
        initial: dict[int, int] = {}
        if start.opcode == "tuple":
            for index, name in enumerate(start.operands):
                value = _constant(self._linear(here, name), known)
                if value is not None:
                    initial[index] = value
        steps = (
            {index: self._linear(body, name) for index, name in enumerate(body.root.operands)}
            if body.root.opcode == "tuple"
            else {}
        )
        unchanged = {
            index: value for index, value in initial.items() if steps.get(index) == (index, 0)
        }
        number = self._trips(condition, initial, unchanged, steps)
        inside = self._computation(body, unchanged) + self._computation(condition, unchanged)
        if number is not None:
            return inside.times(number)
        for name in reversed(re.findall(r"[\w.\-]+", one.scope)):
            if name in self.trips:
                return inside.times(self.trips[name])
        return inside + Cost(
            uncounted=(f"loop {one.scope or one.name} counts once: how often it runs is not known",)
        )

    def _trips(
        self,
        condition: Computation,
        initial: Mapping[int, int],
        unchanged: Mapping[int, int],
        steps: Mapping[int, _Scalar],
    ) -> int | None:
        """Iterations of a loop that counts from a constant to a constant; None for any other."""
        compared = self._comparison(condition)
        if compared is None:
            return None
        direction, left, right = compared
        if left[0] is None or left[0] in unchanged:
            flipped = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}
            direction, left, right = flipped.get(direction, direction), right, left
        counter, limit = left[0], _constant(right, unchanged)
        step = None if counter is None else steps.get(counter)
        if (
            counter is None
            or limit is None
            or counter not in initial
            or step is None
            or step[0] != counter
            or step[1] == 0
        ):
            return None
        distance, stride = limit - (initial[counter] + left[1]), step[1]
        if direction in ("GT", "GE"):
            distance, stride = -distance, -stride
        if stride < 0:
            return None
        return max(0, -(-(distance + (direction in ("LE", "GE"))) // stride))

    def _comparison(
        self, condition: Computation
    ) -> tuple[str, tuple[int | None, int], tuple[int | None, int]] | None:
        root, here, arguments = condition.root, condition, None
        if root.opcode == "fusion":
            inner = self.computations[root.called or ""]
            arguments = [self._linear(condition, name) for name in root.operands]
            root, here = inner.root, inner
        if root.opcode != "compare":
            return None
        left, right = (self._linear(here, name, arguments) for name in root.operands)
        return (attribute(root.attributes, "direction"), left, right) if left and right else None

    def _linear(
        self, here: Computation, name: str, arguments: Sequence[_Scalar] | None = None
    ) -> _Scalar:
        """What is known of a scalar. `arguments`: of a fused computation, what is known of its
        operands."""
        if arguments is not None:
            return self._scalar(here, name, arguments)
        if (here.name, name) not in self._scalars:
            self._scalars[here.name, name] = self._scalar(here, name, None)
        return self._scalars[here.name, name]

    def _scalar(self, here: Computation, name: str, arguments: Sequence[_Scalar] | None) -> _Scalar:
        one = here.instructions[name]
        if one.arrays and one.arrays[0].dims:
            return None
        if one.opcode == "constant":
            return (None, int(one.argument)) if re.fullmatch(r"-?\d+", one.argument) else None
        if one.opcode == "parameter" and arguments is not None:
            return arguments[int(one.argument)]
        if one.opcode in ("copy", "bitcast", "convert", "copy-start", "copy-done"):
            return self._linear(here, one.operands[0], arguments)
        if one.opcode == "get-tuple-element":
            source = here.instructions[one.operands[0]]
            if source.opcode == "parameter" and arguments is None:
                return one.index, 0
            return (
                self._result(here, source, one.index, arguments)
                if source.opcode == "fusion"
                else None
            )
        if one.opcode == "fusion":
            return self._result(here, one, None, arguments)
        if one.opcode in ("add", "subtract"):
            left, right = (self._linear(here, operand, arguments) for operand in one.operands)
            if (
                left is None
                or right is None
                or (right[0] is not None and (one.opcode == "subtract" or left[0] is not None))
            ):
                return None
            return left[0] if left[0] is not None else right[0], left[1] + (
                right[1] if one.opcode == "add" else -right[1]
            )
        return None

    def _result(
        self,
        here: Computation,
        fusion: Instruction,
        index: int | None,
        arguments: Sequence[_Scalar] | None,
    ) -> _Scalar:
        inner = self.computations[fusion.called or ""]
        given = [self._linear(here, name, arguments) for name in fusion.operands]
        if index is None:
            return self._linear(inner, inner.root.name, given)
        return (
            self._linear(inner, inner.root.operands[index], given)
            if inner.root.opcode == "tuple"
            else None
        )


def _constant(value: _Scalar, known: Mapping[int, int]) -> int | None:
    if value is None or (value[0] is not None and value[0] not in known):
        return None
    return value[1] + (0 if value[0] is None else known[value[0]])


def _passes(one: Instruction) -> bool:
    """Whether an instruction hands arrays on untouched: tuples, the compiler's marks (the ends of a
    collective), and collectives, which count apart."""
    target = _TARGET.search(one.attributes) if one.opcode == "custom-call" else None
    return (
        one.opcode in _COLLECTIVES
        or one.opcode in ("tuple", "get-tuple-element")
        or (target is not None and target[1] != _KERNEL)
    )


# FLOPs


def _flops(one: Instruction, here: Computation) -> float:
    if one.opcode == "dot":
        left = here.instructions[one.operands[0]].arrays[0]
        contracted = [
            int(number)
            for number in re.findall(r"\d+", attribute(one.attributes, "lhs_contracting_dims"))
        ]
        return (
            2.0
            * math.prod(one.arrays[0].dims)
            * math.prod(left.dims[index] for index in contracted)
        )
    return _convolution_flops(one, here) if one.opcode == "convolution" else 0.0


def _convolution_flops(one: Instruction, here: Computation) -> float:
    """Two for each product that meets no padding and no hole. Batch dimensions and contracted ones
    come as windows, hence the care."""
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
    return (
        2.0 * products * batch * right[labels[1].index("i")] * right[labels[1].index("o")]
    )  # "i" is what one group takes in


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
        total += int(
            (
                (met >= 0) & (met < (given - 1) * left_dilation + 1) & (met % left_dilation == 0)
            ).sum()
        )
    return total

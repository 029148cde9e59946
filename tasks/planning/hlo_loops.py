"""Iterations of a compiled program's loops, as far as they count from a constant to a constant,
with counter and limit in the state, in constants, or in fusions of those."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tasks.planning.hlo import Computation, Instruction, attribute

_Scalar = tuple[int | None, int] | None
"""A scalar as (element of the loop's state or None, number added to it); None for any other
scalar."""


@dataclass(frozen=True)
class Loop:
    """A loop.

    Attributes:
        unchanged: elements of its state that never change.
        trips: iterations; None where they depend on data.
    """

    body: Computation
    condition: Computation
    unchanged: Mapping[int, int]
    trips: int | None


class Loops:
    """The loops of a module, and its known scalars."""

    def __init__(self, computations: Mapping[str, Computation]) -> None:
        self.computations = computations
        self._scalars: dict[tuple[str, str], _Scalar] = {}

    def read(self, one: Instruction, here: Computation, known: Mapping[int, int]) -> Loop:
        """A `while`. `known`: elements of the state of the loop around it that never change."""
        body = self.computations[attribute(one.attributes, "body").lstrip("%")]
        condition = self.computations[attribute(one.attributes, "condition").lstrip("%")]
        start = here.instructions[one.operands[0]]
        initial: dict[int, int] = {}
        for index, name in enumerate(start.operands if start.opcode == "tuple" else ()):
            value = _constant(self._linear(here, name), known)
            if value is not None:
                initial[index] = value
        results = body.root.operands if body.root.opcode == "tuple" else ()
        steps = {index: self._linear(body, name) for index, name in enumerate(results)}
        unchanged = {
            index: value for index, value in initial.items() if steps.get(index) == (index, 0)
        }
        return Loop(body, condition, unchanged, self._trips(condition, initial, unchanged, steps))

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
        if counter is None or limit is None or counter not in initial:
            return None
        if step is None or step[0] != counter or step[1] == 0:
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
        """The value of a scalar as far as it is known. `arguments`: the same for the operands of a
        fused computation."""
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
            fused = source.opcode == "fusion"
            return self._result(here, source, one.index, arguments) if fused else None
        if one.opcode == "fusion":
            return self._result(here, one, None, arguments)
        if one.opcode in ("add", "subtract"):
            left, right = (self._linear(here, operand, arguments) for operand in one.operands)
            if left is None or right is None:
                return None
            if right[0] is not None and (one.opcode == "subtract" or left[0] is not None):
                return None
            added = right[1] if one.opcode == "add" else -right[1]
            return left[0] if left[0] is not None else right[0], left[1] + added
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
        tuples = inner.root.opcode == "tuple"
        return self._linear(inner, inner.root.operands[index], given) if tuples else None


def _constant(value: _Scalar, known: Mapping[int, int]) -> int | None:
    if value is None or (value[0] is not None and value[0] not in known):
        return None
    return value[1] + (0 if value[0] is None else known[value[0]])

"""XLA's optimized HLO text as objects: computations, their instructions, types and attributes. Form
of the text: openxla.org/xla."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

_BITS = {"pred": 8, "token": 0, "opaque": 0, "tuple": 0, "c64": 64, "c128": 128}
_ARRAY = re.compile(r"([a-z]+\d*[a-z0-9]*)\[([\d,<=\s]*)\](?:\{([^}]*)\})?")
_SPACE = re.compile(r"S\((\d+)\)")
_NAME = re.compile(r"%([\w.\-]+)")
_COMPUTATION = re.compile(r"^(ENTRY )?%([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%([\w.\-]+) = (.*)$")
_SCOPE = re.compile(r"\bop_name=\"([^\"]*)\"")
_CALLED = re.compile(r"\b(?:calls|to_apply)=%([\w.\-]+)")
_BRANCHES = re.compile(
    r"\b(?:branch_computations=\{([^}]*)\}|true_computation=(%[\w.\-]+),"
    r" false_computation=(%[\w.\-]+))"
)

_HBM = 0


@dataclass(frozen=True)
class Array:
    """An array of an instruction's type: element type, dimensions, memory space (0 HBM, 1 VMEM, 5
    host; others are small)."""

    dtype: str
    dims: tuple[int, ...]
    space: int

    @property
    def bytes(self) -> float:
        digits = re.search(r"\d+", self.dtype)
        bits = _BITS[self.dtype] if self.dtype in _BITS else int(digits[0]) if digits else 32
        return math.prod(self.dims) * bits / 8

    @property
    def hbm_bytes(self) -> float:
        return self.bytes if self.space == _HBM and self.dims else 0.0  # scalars live in registers


@dataclass(frozen=True)
class Instruction:
    """One line of a computation. `attributes` is what follows the operands."""

    name: str
    opcode: str
    type: str
    operands: tuple[str, ...]
    argument: str
    attributes: str
    is_root: bool

    @cached_property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays of the result; those of a tuple in order."""
        return tuple(_arrays(self.type))

    @property
    def hbm_bytes(self) -> float:
        return sum(array.hbm_bytes for array in self.arrays)

    @property
    def called(self) -> str | None:
        found = _CALLED.search(self.attributes)
        return found[1] if found else None

    @property
    def bytes(self) -> float:
        """Bytes of the result, in any memory."""
        return sum(array.bytes for array in self.arrays)

    @property
    def scope(self) -> str:
        """The functions, scopes and loops around it in the source:
        `jit(step)/decode/while/body/dot_general`."""
        found = _SCOPE.search(self.attributes)
        return found[1] if found else ""

    @property
    def branches(self) -> list[str]:
        """The computations of a conditional, by its number; false is 0."""
        found = _BRANCHES.search(self.attributes)
        names = _NAME.findall(found[0]) if found else []
        return names[::-1] if found and found[2] else names

    @property
    def index(self) -> int:
        """The element's index of a get-tuple-element."""
        return int(attribute(self.attributes, "index"))


@dataclass
class Computation:
    """A function of the module: its instructions by name, in order."""

    name: str
    instructions: dict[str, Instruction] = field(default_factory=dict)

    @cached_property
    def root(self) -> Instruction:
        return next(one for one in self.instructions.values() if one.is_root)

    @cached_property
    def parameters(self) -> dict[int, Instruction]:
        return {
            int(one.argument): one
            for one in self.instructions.values()
            if one.opcode == "parameter"
        }

    @cached_property
    def users(self) -> dict[str, list[Instruction]]:
        found: dict[str, list[Instruction]] = {name: [] for name in self.instructions}
        for one in self.instructions.values():
            for operand in dict.fromkeys(one.operands):
                found[operand].append(one)
        return found


@dataclass
class Module:
    """A compiled program. `partitions`: the number of its devices."""

    computations: dict[str, Computation]
    entry: Computation
    partitions: int


def read_module(text: str) -> Module:
    """Read `compiled.as_text()`. Raises ValueError when it is no HLO module with an entry."""
    computations: dict[str, Computation] = {}
    entry = current = None
    for line in text.splitlines():
        head = _COMPUTATION.match(line)
        if head:
            current = computations[head[2]] = Computation(head[2])
            entry = current if head[1] else entry
        elif current is not None and (one := _instruction(line)):
            current.instructions[one.name] = one
    if entry is None:
        raise ValueError("this is no HLO module: it has no ENTRY")
    partitions = re.search(r"\bnum_partitions=(\d+)", text[: text.find("\n")])
    return Module(computations, entry, int(partitions[1]) if partitions else 1)


def _arrays(text: str) -> Iterator[Array]:
    for dtype, dims, layout in _ARRAY.findall(text):
        space = _SPACE.search(layout)
        yield Array(
            dtype,
            tuple(int(side.lstrip("<= ")) for side in dims.split(",") if side.strip()),
            int(space[1]) if space else _HBM,
        )


def _balanced(text: str, start: int) -> int:
    """The position after the bracket that closes the one at `start`."""
    depth = 0
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place + 1
    raise ValueError(f"no closing bracket in HLO: {text[:200]!r}")


def attribute(text: str, name: str) -> str:
    """The value of `name=...` in an instruction's attributes, or nothing."""
    found = re.search(rf"\b{name}=(\{{[^}}]*\}}|[^,\s]+)", text)
    return found[1] if found else ""


def _instruction(line: str) -> Instruction | None:
    found = _INSTRUCTION.match(line)
    if not found:
        return None
    rest = found[3]
    end = _balanced(rest, 0) if rest.startswith("(") else rest.index(" ")
    opening = rest.index("(", end)
    closing = _balanced(rest, opening)
    argument = rest[opening + 1 : closing - 1]
    return Instruction(
        name=found[2],
        opcode=rest[end:opening].strip(),
        type=rest[:end],
        operands=tuple(_NAME.findall(argument)),
        argument=argument,
        attributes=rest[closing:],
        is_root=bool(found[1]),
    )

"""FLOPs and bytes of a compiled program, read from XLA's optimized HLO text, loops included.

`cost_analysis()` of a compiled program counts the body of every loop once; this module counts it as
often as it runs.

- FLOPs are those of matrix products (`dot`, `convolution`; a TPU has only the latter), inside
  fusions too, since a chip's peak counts those.
- Bytes pass between HBM and the core: operands and outputs of every instruction that runs, at the
  boundaries of fusions. Of an array that is sliced, gathered or updated in place, only the part
  counts. Arrays in VMEM (memory space 1) and other spaces do not count; copies to them do.
- Link bytes are those that one device sends to others in collectives on a ring: 2 (n - 1) / n of an
  array for an all-reduce, half of that for an all-gather or a reduce-scatter among n devices.

All counts are of one device: programs are SPMD.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tasks.planning.hlo import Computation, Instruction, attribute, read_module
from tasks.planning.hlo_flops import kernel_cost, product_flops
from tasks.planning.hlo_loops import Loops

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
"""Instructions that change a part of their first operand -> how often that part passes: a scatter
that adds reads it, too."""

_CYCLES = re.compile(r"\"estimated_cycles\":\"(\d+)\"")
_TARGET = re.compile(r"custom_call_target=\"([^\"]*)\"")


@dataclass(frozen=True)
class Cost:
    """The work of one device in one run of a program.

    Attributes:
        flops: of matrix products.
        bytes: to and from HBM.
        link_bytes: sent to other devices in collectives.
        uncounted: names of what the text does not tell: loops whose iterations depend on data and
            are unknown (they count once), and kernels without a cost.
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
        flops, moved, sent = (number * one for one in (self.flops, self.bytes, self.link_bytes))
        return Cost(flops, moved, sent, self.uncounted)


def cost_of(text: str, trips: Mapping[str, float] | None = None) -> Cost:
    """The cost of one run of a compiled program.

    Args:
        text: `compiled.as_text()`.
        trips: expected iterations of loops whose number depends on data, by their
            `jax.named_scope`; and of conditionals right within a scope, how often of once they take
            their second branch.

    Raises:
        ValueError: the text is no HLO module with an entry.
    """
    program = _Program(text, trips or {})
    return program.cost(program.entry)


@dataclass(frozen=True)
class Part:
    """An instruction that runs by itself, such as a fusion.

    Attributes:
        runs: how often it runs in one run of the program.
        cost: of all its runs.
        cycles: of all its runs, of the device's clock, as the compiler for TPUs estimates them; 0
            where it does not, as for kernels and copies that run beside other work.
    """

    instruction: Instruction
    runs: float
    cost: Cost
    cycles: float


def parts_of(text: str, trips: Mapping[str, float] | None = None) -> list[Part]:
    """The parts of one run of a compiled program, whose costs sum up to its own. Arguments and
    errors as of `cost_of`."""
    program = _Program(text, trips or {})
    return list(program.parts(program.entry))


class _Program:
    """A module, and the cost of its computations."""

    def __init__(self, text: str, trips: Mapping[str, float]) -> None:
        self.trips = trips
        module = read_module(text)
        self.computations, self.entry = module.computations, module.entry
        self.partitions = module.partitions
        self.loops = Loops(module.computations)

    def cost(self, here: Computation) -> Cost:
        """The cost of running a computation once."""
        return sum((part.cost for part in self.parts(here)), Cost())

    def parts(
        self, here: Computation, known: Mapping[int, int] | None = None, runs: float = 1.0
    ) -> Iterator[Part]:
        """The parts of so many runs of a computation. `known`: elements of its parameter, a loop's
        state, that never change."""
        seen: set[str] = set()
        for one in here.instructions.values():
            opcode = one.opcode.removesuffix("-start")
            if opcode == "while":
                yield from self._loop(one, here, known or {}, runs)
            elif opcode == "conditional":
                for body, part in self._branches(one):
                    yield from self.parts(body, runs=runs * part)
            elif opcode in ("call", "async") and one.called:
                yield from self.parts(self.computations[one.called], runs=runs)
            else:
                cost = self._instruction(one, here, seen).times(runs)
                found = _CYCLES.search(one.attributes)
                cycles = runs * int(found[1]) if found else 0.0
                if cycles or cost != Cost():
                    yield Part(one, runs, cost, cycles)

    def _loop(
        self, one: Instruction, here: Computation, known: Mapping[int, int], runs: float
    ) -> Iterator[Part]:
        loop = self.loops.read(one, here, known)
        trips = self._expected(one) if loop.trips is None else loop.trips
        for inside in (loop.body, loop.condition):
            yield from self.parts(inside, loop.unchanged, runs * (1.0 if trips is None else trips))
        if trips is None:
            unknown = f"loop {one.scope or one.name} counts once: how often it runs is not known"
            yield Part(one, runs, Cost(uncounted=(unknown,)), 0.0)

    def _instruction(self, one: Instruction, here: Computation, seen: set[str]) -> Cost:
        """The cost of an instruction that runs by itself."""
        opcode = one.opcode.removesuffix("-start")
        if one.opcode in _FREE or one.opcode.endswith(("-done", "-update")):
            return Cost()
        if opcode == "fusion":
            return self._fusion(one, here, seen)
        if opcode == "custom-call":
            return self._custom_call(one, here)
        if opcode in _COLLECTIVES:
            return Cost(bytes=self._moved(one, here), link_bytes=self._sent(one, here))
        return Cost(flops=product_flops(one, here), bytes=self._moved(one, here))

    def _branches(self, one: Instruction) -> list[tuple[Computation, float]]:
        """The branches of a conditional that count, and the part of its runs that takes each: both
        as far as the caller said, else only the one with the most FLOPs, then bytes."""
        branches = [self.computations[name] for name in one.branches]
        second = self.trips.get(one.scope.split("/")[-2:][0])
        if second is not None and len(branches) == 2:
            return list(zip(branches, (1 - second, second), strict=True))

        def work(branch: Computation) -> tuple[float, float]:
            cost = self.cost(branch)
            return cost.flops, cost.bytes

        return [(max(branches, key=work), 1.0)]

    def _expected(self, one: Instruction) -> float | None:
        """The iterations of a loop whose number depends on data, as far as the caller said."""
        names = reversed(re.findall(r"[\w.\-]+", one.scope))
        return next((self.trips[name] for name in names if name in self.trips), None)

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
            read = part_bytes if operands[0].hbm_bytes else 0.0
            return one.hbm_bytes + read + (operands[1].hbm_bytes if opcode == "gather" else 0.0)
        if opcode == "dynamic-update-slice":
            return operands[1].hbm_bytes + (operands[1].bytes if one.hbm_bytes else 0.0)
        if opcode == "scatter":  # target, indices, updates: what is updated is read and written
            updated = 2 * operands[-1].bytes if one.hbm_bytes else 0.0
            return operands[1].hbm_bytes + operands[-1].hbm_bytes + updated
        # the type of a collective's start holds operands and results
        starts = opcode in _COLLECTIVES and one.opcode != opcode and one.type.startswith("(")
        if opcode == "broadcast" or starts:
            return sum(array.hbm_bytes for array in one.arrays)
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
        root, results = inner.root, [inner.root]
        if root.opcode == "tuple":
            results = [inner.instructions[name] for name in root.operands]
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
            update = result.operands[1 if result.opcode == "dynamic-update-slice" else -1]
            return _IN_PLACE[result.opcode] * inner.instructions[update].bytes
        return 0.0 if passed else result.bytes

    # What happens inside fusions and kernels

    def _inside(self, inner: Computation, seen: set[str]) -> Cost:
        """FLOPs and collectives of a fused computation. `seen`: channels counted so far, since the
        compiler spreads a collective over fusions."""
        total = Cost()
        for one in inner.instructions.values():
            if one.opcode == "fusion":
                total += self._inside(self.computations[one.called or ""], seen)
            elif one.opcode in _COLLECTIVES:
                channel = attribute(one.attributes, "channel_id")
                if channel not in seen:
                    seen.add(channel)
                    # each device keeps its part of an all-reduce-scatter
                    scattered = one.opcode == "all-reduce" and "all-reduce-scatter" in inner.name
                    sent = self._sent(one, inner) / (2 if scattered else 1)
                    total += Cost(bytes=self._moved(one, inner), link_bytes=sent)
            elif one.opcode == "custom-call":
                total += replace(self._custom_call(one, inner), bytes=0.0)
            else:
                total += Cost(flops=product_flops(one, inner))
        return total

    def _custom_call(self, one: Instruction, here: Computation) -> Cost:
        if _passes(one):
            return Cost()
        moved, known = self._moved(one, here), kernel_cost(one, here)
        if known is None:
            unknown = f"kernel {one.scope or one.name}: its FLOPs are not known"
            return Cost(bytes=moved, uncounted=(unknown,))
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
        """The number of devices that take part: replica_groups={{0,1},{2,3}}, [4,2]<=[8], or
        mesh['a'=4,'b'=2] {'b'}."""
        mesh = re.search(r"replica_groups=mesh\[([^\]]*)\] ?\{([^}]*)\}", one.attributes)
        if mesh:
            sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", mesh[1])}
            return math.prod(sizes[name] for name in re.findall(r"'([^']+)'", mesh[2]))
        listed = re.search(r"replica_groups=(?:\{\{([\d,]*)\}|\[\d+,(\d+)\])", one.attributes)
        if listed is None:
            return self.partitions
        return len(listed[1].split(",")) if listed[1] else int(listed[2])


def _passes(one: Instruction) -> bool:
    """Whether an instruction passes arrays on untouched: tuples, the compiler's marks (the ends of
    a collective), and collectives, which count as link bytes."""
    target = _TARGET.search(one.attributes) if one.opcode == "custom-call" else None
    return (
        one.opcode in _COLLECTIVES
        or one.opcode in ("tuple", "get-tuple-element")
        or (target is not None and target[1] != _KERNEL)
    )

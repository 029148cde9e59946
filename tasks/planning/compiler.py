"""`python -m tasks.planning.compiler TARGET`: compiles programs of stages for a TPU, or for the
devices of this machine (`local`), on this machine, from shapes alone. A process of its own.

It reads one question a line from standard input and writes one answer a line to standard output,
both JSON, until its input ends:

| question | answer |
|---|---|
| `{"stage": {...}}` | `{"programs": [{"name", "digest", "calls", "resident_bytes", "beside"}]}` |
| `{"stage": {...}, "program": 0}` | `{"report": {...}}`: the `ProgramReport` of that program |

`stage` is a `StageQuestion`. An error is `{"error": text, "kind": "input" | "failed"}`. The caller
keeps the answers (`flows.planning.compile_cache`). For a TPU the compiler is libtpu's, as on the
TPU, and needs none. For this machine it is the compiler of the devices that JAX finds, which the
process occupies meanwhile; it reports only the memory of a GPU's programs, since
`tasks.planning.hlo_cost` cannot read GPU kernels. A program that needs more HBM than there is gets
a report, too: `refusal` quotes the compiler. Verified with jax 0.10.2 and libtpu 0.0.42.1, never on
a GPU; `lower` and `report` work without the process.
"""

import json
import os
import queue
import re
import sys
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from infra.distribution import install
from infra.tpu.types import TPU_TYPES, TpuType
from schemas.base import InputError, StrictModel, digest
from tasks.contract.kinds import stage_kind
from tasks.devices.hosts import BATCH, TENSOR

if TYPE_CHECKING:
    import jax
    from jax.sharding import Mesh

    from tasks.planning.programs import Program

ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",  # else libtpu looks for the machine it is on, for minutes
    # else two processes, or a lock file that a killed one left, abort each other
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
"""Environment for libtpu to compile without a TPU; set it before importing JAX."""

_MOST_KEPT = 4
"""The most stages whose lowered programs stay in memory for the next question."""

_SIZE = re.compile(r"([\d.]+)([KMGT]?)")
_OUT_OF_MEMORY = ("Ran out of memory", "Out of memory")
"""Messages of the compilers of TPUs and of GPUs."""


class StageQuestion(StrictModel):
    """A stage as its programs see it.

    Attributes:
        model: the model with which its chain of policies begins.
        upstream: input -> kind and config of the stage that feeds it.
        models: input -> the model with which its chain begins, for trained models beside the
            policy.
    """

    kind: str
    config: dict[str, Any]
    model: str
    upstream: dict[str, tuple[str, dict[str, Any]]]
    models: dict[str, str]


@dataclass(frozen=True)
class ProgramReport:
    """The compiler's report on one program; every figure is of one device.

    Attributes:
        argument_bytes, temporary_bytes, output_bytes, alias_bytes, code_bytes: of HBM, from
        `memory_analysis()`.
        hbm_bytes: the most in use at one time, including arguments and the code; the compiler
            compares it with the chip's limit. Temporaries may be more, since those of a loop are
            counted as if none shared memory. For a refused program, what the compiler said it would
            need.
        flops, bytes_accessed, link_bytes, uncounted: of one call, loops included: see
        `tasks.planning.hlo_cost.Cost`. 0 for a refused program.
        compile_seconds: on this machine.
        refusal: the compiler's message when the program did not fit, else None.
    """

    argument_bytes: int = 0
    temporary_bytes: int = 0
    output_bytes: int = 0
    alias_bytes: int = 0
    code_bytes: int = 0
    hbm_bytes: int = 0
    flops: float = 0.0
    bytes_accessed: float = 0.0
    link_bytes: float = 0.0
    uncounted: tuple[str, ...] = ()
    compile_seconds: float = 0.0
    refusal: str | None = None


def mesh_of(target: str) -> "Mesh":
    """All devices of a target, of this machine or of a TPU that is not here, with the axes of
    `tasks.devices.hosts.make_mesh`.

    Raises:
        InputError: libtpu is not installed or does not know the topology.
    """
    import jax
    from jax.experimental import topologies

    devices = jax.devices() if target == "local" else []
    if target != "local":
        kind = TPU_TYPES[target]
        try:
            devices = topologies.get_topology_desc(platform="tpu", **_topology(kind)).devices
        except (RuntimeError, ValueError, NotImplementedError) as error:
            raise InputError(
                f"the TPU compiler does not give the topology of {target}: {error}. Plans for TPUs"
                f" need it: {install('tpu')} (200 MB; no TPU needed)."
            ) from error
        assert len(devices) == kind.devices, (target, len(devices))
    return jax.sharding.Mesh(np.array(devices).reshape(-1, 1), (BATCH, TENSOR))


def _topology(kind: TpuType) -> dict[str, Any]:
    """The topology in libtpu's own terms: it states that a v4 chip is one device, and that all
    chips of a machine with one host belong to that host."""
    found: dict[str, Any] = {"topology_name": f"{kind.name.partition('-')[0]}:{kind.topology}"}
    if kind.name.startswith("v4"):
        found["chip_config_name"] = "megacore"
    if kind.hosts == 1:
        sides = tuple(int(side) for side in kind.topology.split("x"))
        found["chips_per_host_bounds"] = (*sides, 1, 1)[:3]
    return found


def lower(function: Any, args: tuple[Any, ...], mesh: "Mesh") -> "jax.stages.Lowered":
    """The program of a function, before it is compiled for the devices of a mesh.

    Args:
        function: what `jax.jit` returned.
        args: pytrees of jax.ShapeDtypeStruct placed on `mesh`.
    """
    import jax

    with jax.set_mesh(mesh):
        lowered: jax.stages.Lowered = function.lower(*args)
    return lowered


def report(
    lowered: "jax.stages.Lowered", trips: Mapping[str, float] | None = None, counted: bool = True
) -> ProgramReport:
    """Compile a lowered program and report on it.

    Args:
        trips: see `tasks.planning.hlo_cost.cost_of`.
        counted: report on FLOPs and bytes, too.

    Raises:
        jax.errors.JaxRuntimeError: it does not compile for another reason than too little memory.
    """
    import jax

    from tasks.planning.hlo_cost import Cost, cost_of

    started = time.monotonic()
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        lines = str(error).splitlines()
        said = next((one for one in lines if any(words in one for words in _OUT_OF_MEMORY)), None)
        if said is None:
            raise
        return ProgramReport(
            hbm_bytes=needed_bytes(str(error)),
            compile_seconds=time.monotonic() - started,
            refusal=said,
        )
    seconds = time.monotonic() - started
    memory: Any = compiled.memory_analysis()
    cost = cost_of(compiled.as_text() or "", trips) if counted else Cost()
    sizes = {
        "argument_bytes": memory.argument_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "output_bytes": memory.output_size_in_bytes,
        "alias_bytes": memory.alias_size_in_bytes,
        "code_bytes": memory.generated_code_size_in_bytes,
    }
    used = sum(sizes[f"{part}_bytes"] for part in ("argument", "temporary", "output"))
    peak = memory.peak_memory_in_bytes or used - sizes["alias_bytes"]  # not every compiler tells it
    return ProgramReport(
        **sizes,
        hbm_bytes=peak + sizes["code_bytes"],
        flops=cost.flops,
        bytes_accessed=cost.bytes,
        link_bytes=cost.link_bytes,
        uncounted=cost.uncounted,
        compile_seconds=seconds,
    )


def needed_bytes(message: str) -> int:
    """The bytes that a program would need, from the compiler's message: `Used 18.11G of 15.75G
    hbm`, or `... temporaries (510.00G) exceeds ...`."""
    found = re.search(r"Used ([\d.]+[KMGT]?) of", message) or re.search(
        r"\(([\d.]+[KMGT]?)\) exceeds", message
    )
    number = _SIZE.match(found[1]) if found else None
    return int(float(number[1]) * 1024 ** " KMGT".index(number[2] or " ")) if number else 0


def bytes_per_device(tree: Any) -> int:
    """The bytes that the fullest device holds of a pytree of placed shapes."""
    import jax

    total = 0
    for leaf in jax.tree.leaves(tree):
        shape = leaf.shape if leaf.sharding is None else leaf.sharding.shard_shape(leaf.shape)
        total += int(np.prod(shape)) * leaf.dtype.itemsize
    return total


class Planner:
    """Answers questions about the stages of recipes on one target."""

    def __init__(self, target: str) -> None:
        import jax
        import jaxlib

        self.target = target
        self.mesh = mesh_of(target)
        own = [Path(__file__), *sorted(Path(__file__).parent.glob("hlo*.py"))]
        self.counted = self.mesh.devices.flat[0].platform != "gpu"
        self.versions = [
            jax.__version__,
            jaxlib.__version__,
            self.mesh.devices.flat[0].client.platform_version,
            self.mesh.devices.flat[0].device_kind,
            digest([file.read_text(encoding="utf-8") for file in own]),
        ]
        self._lowered: OrderedDict[str, list[tuple[Program, jax.stages.Lowered]]] = OrderedDict()

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """See the head of this file. Raises InputError for what a stage does not accept on this
        target."""
        programs = self.lowered(StageQuestion.parse(question["stage"]))
        if "program" in question:
            program, lowered = programs[question["program"]]
            return {"report": asdict(report(lowered, program.trips, self.counted))}
        return {
            "programs": [
                {
                    "name": program.name,
                    "digest": self._digest(program, lowered),
                    "calls": program.calls,
                    "resident_bytes": bytes_per_device(program.resident),
                    "beside": program.beside,
                }
                for program, lowered in programs
            ]
        }

    def lowered(self, stage: StageQuestion) -> "list[tuple[Program, jax.stages.Lowered]]":
        """The programs of a stage, lowered for the target and not compiled. Raises InputError."""
        key = digest(stage)
        if key not in self._lowered:
            self._lowered[key] = [
                (program, lower(program.function, program.args, _mesh_of(program)))
                for program in self._programs(stage)
            ]
            if len(self._lowered) > _MOST_KEPT:
                self._lowered.popitem(last=False)
        self._lowered.move_to_end(key)
        return self._lowered[key]

    def _programs(self, stage: StageQuestion) -> "list[Program]":
        from tasks.models.loading import model_config
        from tasks.planning.programs import abstract_model

        kind = stage_kind(stage.kind)
        if kind.programs is None:
            return []
        upstream: dict[str, Any] = {
            name: stage_kind(source).config.parse(config)
            for name, (source, config) in stage.upstream.items()
        }
        upstream |= {
            name: abstract_model(model, model_config(model), self.mesh)
            for name, model in stage.models.items()
        }
        model = abstract_model(stage.model, model_config(stage.model), self.mesh)
        return kind.programs(kind.config.parse(stage.config), model, upstream)

    def _digest(self, program: "Program", lowered: "jax.stages.Lowered") -> str:
        """Digest of what the report depends on: the program, its loops' iterations, the compiler,
        the machine, and our way of reading the compiler's text."""
        return digest([self.target, self.versions, dict(program.trips), lowered.as_text()])


def _mesh_of(program: "Program") -> Any:
    """The devices of a program's arguments; for a small batch not all of the target's."""
    import jax

    shardings = (leaf.sharding for leaf in jax.tree.leaves(program.args))
    return next(
        sharding.mesh for sharding in shardings if isinstance(sharding, jax.sharding.NamedSharding)
    )


def main(target: str) -> None:
    """Answer until the input ends. The caller is gone then, so a program under way is abandoned."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries write to standard output as they like
    questions: queue.SimpleQueue[str] = queue.SimpleQueue()

    def listen() -> None:
        for line in sys.stdin:
            questions.put(line)
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    planner: Planner | None = None
    while True:
        question = json.loads(questions.get())
        try:
            planner = planner or Planner(target)
            answer = planner.answer(question)
        except InputError as error:
            answer = {"error": str(error), "kind": "input"}
        except Exception as error:  # noqa: BLE001  the one who asked says which stage and program it was
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}", "kind": "failed"}
        answers.write(json.dumps(answer, allow_nan=False) + "\n")
        answers.flush()


if __name__ == "__main__":
    if sys.argv[1] != "local":  # there the devices are wanted, and the environment names them
        os.environ.update(ENVIRONMENT)
    main(sys.argv[1])

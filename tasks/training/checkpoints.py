"""Checkpoints: the state from which a training stage resumes bit for bit.

A checkpoint is the tree `checkpoints/<step>-<attempt>` of the stage's workspace, sealed with the
sha256 of every file:

    arrays.safetensors   arrays by name, in the order of names
    values.json          everything else

Arrays are streamed: one at a time is fetched and written, or read. Compared with Orbax
(docs/measurements.md): saving 1 GiB, Orbax uses 0.45 to 0.9 GiB more memory, this none; restoring,
Orbax uses 1 GiB more, this twice the largest array. Orbax is slower (the quickstart's model: 0.16
s, here 0.03 s with checksums and fsync), its memory limit has to exceed the largest array, and it
neither compares checksums nor refuses other dtypes. Only Orbax lets each host write its part of a
sharded model: here host 0 gathers and writes one array after the other.
"""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from infra.store.workspace import Workspace
from tasks.devices.hosts import agree, barrier, fetch, gathered

FOLDER = "checkpoints"
KEEP = 2
"""How many checkpoints are kept, so that a damaged one costs one interval's work."""

SHARE = 1 / 20
"""The largest share of its time that a stage spends on checkpoints that the clock makes due."""

_ARRAYS, _VALUES = "arrays.safetensors", "values.json"
_CODES = {
    "bfloat16": "BF16",
    "bool": "BOOL",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
}
"""dtype -> its name in a safetensors header."""

_DTYPES = {code: jnp.dtype(name) for name, code in _CODES.items()}

Array = jax.Array | np.ndarray
Form = tuple[tuple[int, ...], np.dtype]
"""An array's shape and dtype."""


class Checkpoint:
    """A checkpoint opened for reading; a context manager closes it. It stays readable if it is
    removed meanwhile.

    Attributes:
        name: `<step>-<attempt>`.
        step: how many steps were finished.
        age: seconds since it was written.
        values: what `Checkpoints.save` was given.
        forms: name of each array -> its shape and dtype.
    """

    def __init__(self, name: str, directory: Path, about: dict[str, Any]) -> None:
        self.name, self.step = name, int(about["step"])
        self.age = max(0.0, time.time() - about["written"])
        self.values: dict[str, Any] = json.loads((directory / _VALUES).read_bytes())
        self._file = (directory / _ARRAYS).open("rb")
        length = int.from_bytes(self._file.read(8), "little")
        header = json.loads(self._file.read(length))
        self._starts = {key: 8 + length + entry["data_offsets"][0] for key, entry in header.items()}
        self.forms: dict[str, Form] = {
            key: (tuple(entry["shape"]), _DTYPES[entry["dtype"]]) for key, entry in header.items()
        }

    def read(self, key: str) -> np.ndarray:
        """Read one array into new memory."""
        value = np.empty(*self.forms[key])
        self._file.seek(self._starts[key])
        self._file.readinto(_raw(value))
        return value

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()


class Checkpoints:
    """The checkpoints of one stage key, as one attempt sees them: when one is due, which are kept,
    and which are usable.

    A former holder of the key may still be writing: names carry the attempt, and no attempt removes
    checkpoints of its own step or later ones.
    """

    def __init__(
        self,
        work: Workspace,
        *,
        seconds: float,
        every: int | None = None,
        wanted: Callable[[], bool] = lambda: False,
        log: logging.Logger,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        seconds: a checkpoint is due this long after the last one, or later where saving would
            take more than `SHARE` of the time.
        every: one is also due after every so many steps, whatever it costs.
        wanted: one is due while this returns True.
        clock: seconds, from any start.
        """
        self._work, self._log, self._clock = work, log, clock
        self._seconds, self._every, self._wanted = seconds, every, wanted
        self._next = clock() + seconds
        self._good: list[str] = []

    def due(self, step: int) -> bool:
        """Whether to save a checkpoint now that `step` steps are finished. Host 0 decides."""
        return agree(
            self._clock() >= self._next
            or (self._every is not None and step % self._every == 0)
            or self._wanted()
        )

    def save(self, step: int, arrays: Mapping[str, Array], values: dict[str, Any]) -> None:
        """Save a checkpoint, then remove superseded ones. Host 0 writes it; when this returns
        there, it is complete.

        Args:
            step: how many steps are finished.
            arrays: name -> array; those on devices are fetched one at a time.
            values: JSON; floats survive exactly, NaN and infinities included.
        """
        began = self._clock()
        name = save_arrays(self._work, FOLDER, step, arrays, values)
        if not self._work.writes:
            return
        self._good = [*self._good, name][-KEEP:]
        for other in self._work.children(FOLDER):
            if other not in self._good and _step(other) < step:
                self._work.remove(f"{FOLDER}/{other}")
        took = self._clock() - began
        self._next = self._clock() + max(self._seconds, took * (1 / SHARE - 1))
        self._log.info("checkpoint at step %d saved in %.2f s", step, took)

    def newest(self) -> Checkpoint | None:
        """Open the newest checkpoint that verifies; None if there is none. Others are logged and
        skipped.

        Host 0 chooses it, and every host waits until all have opened it. Raises OSError where
        another host cannot.
        """
        if self._work.writes:
            found, known = None, set[str]()
            while found is None and (names := set(self._work.children(FOLDER)) - known):
                # a former holder that still writes may have saved others and removed these
                known |= names
                found = self._newest(sorted(names, key=_step, reverse=True))
            agree(found.name if found else None)
        else:
            name = agree("")
            found = self._newest([name] if name else [])
            if name and found is None:
                raise OSError(f"host 0 resumes from checkpoint {name}, which cannot be read here")
        barrier()
        return found

    def _newest(self, names: list[str]) -> Checkpoint | None:
        """The first of these checkpoints that verifies."""
        for name in names:
            try:
                found = self._work.load_tree(f"{FOLDER}/{name}")
                if found is not None:
                    checkpoint = Checkpoint(name, *found)
                    self._good = [name]
                    return checkpoint
                problem = "it is damaged, or its writer did not finish it"
            except FileNotFoundError as error:
                problem = f"{error.filename} was removed meanwhile"
            self._log.warning("checkpoint %s is not used: %s", name, problem)
        return None


def save_arrays(
    work: Workspace, folder: str, step: int, arrays: Mapping[str, Array], values: dict[str, Any]
) -> str:
    """Write the tree of a checkpoint into a folder of the workspace, on host 0. Returns its name,
    `<step>-<attempt>`."""
    name = f"{step:08d}-{work.attempt}"
    if not work.writes:
        for key in sorted(arrays):
            gathered(arrays[key])
        return name
    directory = work.scratch("checkpoint")
    _write_arrays(directory / _ARRAYS, arrays)
    (directory / _VALUES).write_text(json.dumps(values), encoding="utf-8")
    work.save_tree(f"{folder}/{name}", directory, {"step": step, "written": time.time()})
    return name


def fingerprint(arrays: Mapping[str, Array]) -> str:
    """sha256 over name, dtype, shape and bytes of all arrays in the order of names; fetches one at
    a time."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        value = fetch(arrays[name])
        digest.update(f"{name} {value.dtype} {value.shape}\n".encode())
        digest.update(_raw(value))
    return digest.hexdigest()


def _step(name: str) -> int:
    return int(name.partition("-")[0])


def _write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write a safetensors file. (The library's own writer needs all arrays in host memory at
    once.)"""
    header, end = {}, 0
    for name in sorted(arrays):
        start, end = end, end + arrays[name].nbytes
        header[name] = {
            "dtype": _CODES[str(arrays[name].dtype)],
            "shape": arrays[name].shape,
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for name in header:
            out.write(_raw(fetch(arrays[name])))


def _raw(value: np.ndarray) -> memoryview:
    """The array's bytes in row-major order, without a copy if they are contiguous."""
    return np.ascontiguousarray(value).reshape(-1).view(np.uint8).data

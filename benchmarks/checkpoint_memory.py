"""Host memory and time of saving and restoring a checkpoint: Orbax beside `tasks.training.checkpoints`.

    python -m benchmarks.checkpoint_memory [directory for the checkpoints]

Each variant is a process of its own with one tree of 1 GiB (48 arrays of 16 MiB, and one of 256 MiB as an embedding is), alive all the
while as in training. `peak` is the highest resident size during the call above that before it, `kept` what is still there after it, in MiB:
the worst of three saves, then one restore that replaces the live tree. Needs Linux (/proc).

                      save: peak    kept      time   restore: peak    kept      time
Orbax, default               917     912     7.6 s           1509     278     3.9 s
Orbax, limit 300 MB          461     366     7.3 s           1649     434     4.9 s
tasks.training.checkpoints              2       2     4.7 s            547     291     1.8 s

Two shared cores, Python 3.11, JAX 0.10.2, orbax-checkpoint 0.12.8. Our times include what Orbax does not do: sha256 over every byte when it
is kept and when it is read, and fsync. Orbax's limit has to exceed the largest array: with 100 MB it raises "Requested more bytes than we
reserved space for". Ours holds the largest array twice while it is restored: as it was read, and in place.
"""

import ctypes
import gc
import logging
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

MIB = 1024 * 1024
VARIANTS = {"orbax": "Orbax, default", "orbax-limit": "Orbax, limit 300 MB", "ours": "tasks.training.checkpoints"}


def resident(field: str) -> float:
    """A field of /proc/self/status, MiB: VmRSS is the resident size, VmHWM its peak."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024


def measured(call: Callable[[], None]) -> tuple[float, float, float]:
    """Peak and kept memory over what was there before (MiB), and seconds."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    began = time.perf_counter()
    call()
    return resident("VmHWM") - before, resident("VmRSS") - before, time.perf_counter() - began


def run(variant: str, directory: Path) -> None:
    """Measure one variant in this process and print its row."""
    import jax

    sizes = [16] * 48 + [256]
    tree = {f"w{index:02d}": jax.random.uniform(jax.random.key(index), (size * MIB // 4096, 1024)) for index, size in enumerate(sizes)}
    sums = {name: float(value.sum()) for name, value in tree.items()}

    if variant == "ours":
        from infra.store.store import open_store
        from infra.store.workspace import Workspace
        from tasks.training.checkpoints import Checkpoints

        checkpoints = Checkpoints(Workspace(open_store(directory), "key", "1"), seconds=60, log=logging.getLogger())

        def save(number: int) -> None:
            checkpoints.save(number, tree, {})

        def restore() -> None:
            found = checkpoints.newest()
            assert found is not None
            with found:
                for name in tree:
                    tree[name] = jax.block_until_ready(jax.device_put(found.read(name), may_alias=False))
    else:
        from orbax.checkpoint import v1 as ocp

        context = ocp.Context()
        if variant == "orbax-limit":
            context.memory.write_concurrent_bytes = context.memory.read_concurrent_bytes = 300_000_000

        def save(number: int) -> None:
            with context:
                ocp.save(directory / str(number), tree)
            shutil.rmtree(directory / str(number - 2), ignore_errors=True)

        def restore() -> None:
            with context:
                tree.update(ocp.load(directory / "3", tree))

    saves = [measured(lambda number=number: save(number)) for number in (1, 2, 3)]
    worst = [max(column) for column in zip(*saves, strict=True)]
    loaded = measured(restore)
    assert {name: float(value.sum()) for name, value in tree.items()} == sums
    print(f"{VARIANTS[variant]:20}" + "   ".join(f"{peak:12.0f}{kept:8.0f}{seconds:8.1f} s" for peak, kept, seconds in (worst, loaded)))


def main() -> None:
    if sys.argv[1:2] and sys.argv[1] in VARIANTS:
        run(sys.argv[1], Path(sys.argv[2]))
        return
    print(f"{'':20}" + "   ".join(f"{call + ': peak':>12}{'kept':>8}{'time':>10}" for call in ("save", "restore")))
    for variant in VARIANTS:
        with tempfile.TemporaryDirectory(dir=sys.argv[1] if sys.argv[1:] else None) as directory:
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.checkpoint_memory", variant, directory], capture_output=True, text=True, check=False
            )
            print(done.stdout.strip() if done.returncode == 0 else f"{VARIANTS[variant]}: {done.stderr.strip().splitlines()[-1]}")


if __name__ == "__main__":
    main()

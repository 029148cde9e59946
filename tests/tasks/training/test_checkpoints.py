"""Checkpoints: exact bytes back, when one is due, which are kept, and what happens to damaged
ones."""

import logging
import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from infra.store.store import open_store
from infra.store.workspace import Workspace
from tasks.training.checkpoints import Checkpoints, fingerprint
from tests.tasks.devices.fake_devices import printed

ARRAYS = {
    "weights": jnp.arange(6, dtype=jnp.float32).reshape(2, 3) / 7,
    "half": jnp.array([1.5, jnp.nan, -0.0], jnp.bfloat16),
    "count": jnp.array(3, jnp.int32),
    "step": jnp.array(7, jnp.uint32),
    "mask": np.array([[True, False]]),
    "reversed": np.arange(6, dtype=np.int64).reshape(2, 3).T,
}


class Bench:
    """A store, the checkpoints of one key in it as any attempt sees them, and a clock, whose
    seconds pass when a test says so."""

    now = 1000.0

    def __init__(self, root: Path) -> None:
        self.store = open_store(root / "store")

    def work(self, attempt: str = "1") -> Workspace:
        return Workspace(self.store, "key", attempt)

    def checkpoints(
        self, attempt: str = "1", seconds: float = 60.0, every: int | None = None
    ) -> Checkpoints:
        return Checkpoints(
            self.work(attempt),
            seconds=seconds,
            every=every,
            log=logging.getLogger("lyceum"),
            clock=lambda: self.now,
        )

    def kept(self) -> list[str]:
        return self.work().children("checkpoints")

    def files(self, name: str) -> list[Path]:
        directory = self.store.path(f"work/key/kept/checkpoints/{name}")
        return sorted(path for path in directory.rglob("*") if path.is_file())


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def save(checkpoints: Checkpoints, *steps: int) -> None:
    for step in steps:
        checkpoints.save(step, {"a": np.full(3, step)}, {"step": step})


def newest(checkpoints: Checkpoints) -> str | None:
    found = checkpoints.newest()
    if found is None:
        return None
    with found:
        assert found.read("a").tolist() == [found.step] * 3
        assert found.values == {"step": found.step}
    return found.name


def test_arrays_and_values_come_back_exactly_from_a_safetensors_file(bench: Bench):
    values = {"rows": [{"loss": 0.1 + 0.2, "grad_norm": float("inf")}], "text": "π\n"}
    bench.checkpoints().save(5, ARRAYS, values)
    found = bench.checkpoints("2").newest()
    with found:
        assert (found.name, found.step, found.values) == ("00000005-1", 5, values)
        assert 0 <= found.age < 60
        for name, array in ARRAYS.items():
            value = found.read(name)
            assert found.forms[name] == (array.shape, array.dtype) == (value.shape, value.dtype)
            assert value.tobytes() == np.asarray(array).tobytes()
    (path,) = [path for path in bench.files("00000005-1") if path.suffix == ".safetensors"]
    loaded = load_file(path)
    assert loaded.keys() == ARRAYS.keys()
    np.testing.assert_array_equal(loaded["weights"], ARRAYS["weights"])


def test_a_checkpoint_is_due_by_the_clock_and_after_every_so_many_steps(bench: Bench):
    by_clock, by_step = bench.checkpoints(seconds=60), bench.checkpoints(seconds=60, every=3)
    assert [step for step in range(1, 8) if by_step.due(step)] == [3, 6]
    bench.now += 59
    assert not by_clock.due(1)
    bench.now += 1
    assert by_clock.due(1)
    assert by_step.due(1)
    save(by_clock, 1)
    assert not by_clock.due(2)


def test_saving_takes_no_more_than_a_twentieth_of_the_time(bench, meanwhile):
    """A save of 10 s, due every 60 s: the next one is due 190 s after it ended, so that saving
    takes 10 of 200 s."""
    meanwhile(Workspace, "save_tree", lambda *_: setattr(bench, "now", bench.now + 10))
    checkpoints = bench.checkpoints(seconds=60)
    save(checkpoints, 1)
    bench.now += 189
    assert not checkpoints.due(2)
    bench.now += 1
    assert checkpoints.due(2)


def test_the_newest_two_are_kept_and_older_ones_go_only_after_the_new_one_is_complete(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    checkpoints = bench.checkpoints()
    save(checkpoints, 10, 20, 30)
    assert bench.kept() == ["00000020-1", "00000030-1"]
    monkeypatch.setattr(Workspace, "save_tree", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        save(checkpoints, 40)
    assert bench.kept() == ["00000020-1", "00000030-1"]
    assert newest(bench.checkpoints("2")) == "00000030-1"


@pytest.mark.parametrize("file", ["arrays.safetensors", "values.json", "seal.json"])
@pytest.mark.parametrize("how", ["flip", "truncate", "remove"])
def test_a_damaged_checkpoint_is_passed_over(bench, file, how, caplog):
    save(bench.checkpoints(), 10, 20)
    (path,) = [path for path in bench.files("00000020-1") if path.name == file]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    damages = {
        "flip": lambda: path.write_bytes(content),
        "truncate": lambda: path.write_bytes(content[:-1]),
        "remove": path.unlink,
    }
    damages[how]()
    again = bench.checkpoints("2")
    assert newest(again) == "00000010-1"
    assert (
        "checkpoint 00000020-1 is not used: it is damaged, or its writer did not finish it"
        in caplog.text
    )
    save(again, 20)
    assert newest(bench.checkpoints("3")) == "00000020-2"


def test_no_good_checkpoint_is_none(bench: Bench):
    assert bench.checkpoints().newest() is None
    save(bench.checkpoints(), 10)
    shutil.rmtree(bench.store.path("work/key/kept/checkpoints/00000010-1/data"))
    assert bench.checkpoints("2").newest() is None


def test_a_damaged_checkpoint_does_not_count_among_those_that_are_kept(bench: Bench):
    """Of 10, 20 and 30 the last one is damaged: after going on from 20 and saving 25, both 20 and
    25 are there."""
    save(bench.checkpoints(), 10, 20, 30)
    for path in bench.files("00000030-1"):
        path.write_bytes(b"")
    again = bench.checkpoints("2")
    assert newest(again) == "00000020-1"
    save(again, 25)
    assert bench.kept() == ["00000020-1", "00000025-2", "00000030-1"]
    assert newest(bench.checkpoints("3")) == "00000025-2"
    save(again, 35)
    assert bench.kept() == ["00000025-2", "00000035-2"]


def test_a_late_holder_removes_nothing_of_the_one_that_is_ahead(bench: Bench):
    late, ahead = bench.checkpoints("1"), bench.checkpoints("2")
    save(late, 10, 20)
    assert newest(ahead) == "00000020-1"
    save(ahead, 30, 40)
    save(late, 25, 30)
    assert bench.kept() == ["00000025-1", "00000030-1", "00000030-2", "00000040-2"]
    assert newest(bench.checkpoints("3")) == "00000040-2"
    save(ahead, 50)
    assert bench.kept() == ["00000040-2", "00000050-2"]


def test_an_opened_checkpoint_can_be_read_although_somebody_removes_it(bench: Bench):
    save(bench.checkpoints(), 10)
    found = bench.checkpoints("2").newest()
    bench.work().remove("checkpoints/00000010-1")
    with found:
        assert found.read("a").tolist() == [10] * 3


def test_one_that_is_removed_between_verifying_and_opening_is_passed_over(bench, meanwhile, caplog):
    save(bench.checkpoints(), 10, 20)
    remove = lambda work, name: name.endswith("20-1") and work.remove(name)  # noqa: E731
    meanwhile(Workspace, "load_tree", after=remove)
    assert newest(bench.checkpoints("2")) == "00000010-1"
    assert "checkpoint 00000020-1 is not used" in caplog.text
    assert "was removed meanwhile" in caplog.text


def test_those_that_were_saved_while_the_listed_ones_were_removed_are_found(bench, meanwhile):
    """While a large checkpoint was read, a former holder saved two more, which removed the two that
    were known, and the stage began at its first step."""
    former = bench.checkpoints()
    save(former, 10, 20)
    late = lambda work, name: name.endswith("20-1") and save(former, 30, 40)  # noqa: E731
    meanwhile(Workspace, "load_tree", late)
    assert newest(bench.checkpoints("2")) == "00000040-1"


def test_a_fingerprint_is_of_names_dtypes_shapes_and_bytes_in_any_order():
    same = fingerprint({"a": jnp.zeros(2), "b": jnp.ones(2)})
    assert fingerprint({"b": np.ones(2, np.float32), "a": np.zeros(2, np.float32)}) == same
    others = [
        {"a": jnp.zeros(2), "c": jnp.ones(2)},
        {"a": jnp.zeros(2), "b": jnp.ones(2).at[1].add(1e-7)},
        {"a": jnp.zeros((2, 1)), "b": jnp.ones(2)},
        {"a": jnp.zeros(2, jnp.int32), "b": jnp.ones(2)},
        {"a": -jnp.zeros(2), "b": jnp.ones(2)},
    ]
    assert len({same, *map(fingerprint, others)}) == 6


SHARDED = """
import tracemalloc
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from tasks.training.checkpoints import fingerprint
from tasks.devices.hosts import fetch

mesh = jax.make_mesh((2,), ("x",))
whole = np.arange(2**18, dtype=np.float32).reshape(2**10, 2**8)
specs = P(), P("x"), P(None, "x")
arrays = {str(spec): jax.device_put(whole, NamedSharding(mesh, spec)) for spec in specs}
tracemalloc.start()
for spec, array in arrays.items():
    np.testing.assert_array_equal(fetch(array), whole)
    kept = tracemalloc.get_traced_memory()[0]
    assert kept < whole.nbytes / 2, f"{spec}: {kept} bytes stay beside the array"
shard = arrays[str(P())].addressable_shards[0].data
assert fetch(arrays[str(P())]) is not np.asarray(shard)
print(len({fingerprint({"a": array}) for array in (whole, *arrays.values())}))
"""


def test_arrays_on_several_devices_are_fetched_whole_and_not_kept_by_jax():
    assert printed(SHARDED, devices=2) == 1

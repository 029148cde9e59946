"""The store: what is committed verifies, what does not verify is never served, and one of many
committers wins."""

import hashlib
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.store import local_objects
from infra.store.store import Store
from schemas.artifact import Manifest
from schemas.base import InputError
from schemas.job import JobStatus
from tests.fakes.process import printed

KEY = "ab" * 32


def draft(attempt: str = "1", key: str = KEY, **fields: object) -> Manifest:
    always = {"kind": "sft", "key": key, "version": 1, "config": {}, "inputs": {}, "files": []}
    return Manifest.parse({**always, "attempt": attempt, **fields})


def output(store: Store, attempt: str = "1", content: str = "hello") -> Path:
    """A job's output: one file, one file in a subdirectory, one empty file."""
    out = store.path(f"work/{KEY}/{attempt}/out")
    (out / "deep").mkdir(parents=True)
    (out / "model.json").write_text(content)
    (out / "deep" / "weights.bin").write_bytes(bytes(range(256)))
    (out / "empty").write_text("")
    return out


def committed(store: Store) -> Manifest:
    return store.commit(draft(), output(store))


def everything_below(directory: Path) -> list[str]:
    return sorted(
        str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()
    )


def test_a_committed_artifact_is_found_verified_and_readable(store: Store) -> None:
    manifest = committed(store)
    assert store.lookup("sft", KEY) == store.valid("sft", KEY) == manifest
    assert store.verify(manifest) == []
    assert (store.local_dir(manifest) / "model.json").read_text() == "hello"
    assert [(entry.path, entry.size) for entry in manifest.files] == [
        ("deep/weights.bin", 256),
        ("empty", 0),
        ("model.json", 5),
    ]
    assert manifest.files[2].sha256 == hashlib.sha256(b"hello").hexdigest()
    assert not store.path(f"work/{KEY}/1/out").exists()


def test_an_artifact_without_a_manifest_does_not_exist(store: Store) -> None:
    committed(store)
    store.path(f"artifacts/sft/{KEY}/manifest.json").unlink()
    assert store.lookup("sft", KEY) is None
    assert store.valid("sft", KEY) is None


def flip_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def written(name: str, data: bytes) -> Callable[[Path], object]:
    return lambda artifact: (artifact / name).write_bytes(data)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "one byte of a file changed": lambda artifact: flip_byte(artifact / "data/1/deep/weights.bin"),
    "a file truncated": written("data/1/model.json", b"hell"),
    "a file deleted": lambda artifact: (artifact / "data/1/empty").unlink(),
    "a file added": written("data/1/extra.txt", b"x"),
    "a hidden file added": written("data/1/.extra", b"x"),
    "a file replaced by a link": lambda artifact: (
        (artifact / "data/1/empty").unlink(),
        (artifact / "data/1/empty").symlink_to("/dev/null"),
    ),
    "the data deleted": lambda artifact: (artifact / "data").rename(artifact / "elsewhere"),
    "the manifest truncated": written("manifest.json", b'{"kind": "sft", "key": '),
    "the manifest empty": written("manifest.json", b""),
    "the manifest binary": written("manifest.json", b"\xff\xfe\x00"),
    "the manifest of another schema": written("manifest.json", b'{"kind": "sft"}'),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_artifact_is_never_served_and_can_be_committed_again(store, damage):
    first = committed(store)
    DAMAGE[damage](store.path(f"artifacts/sft/{KEY}"))
    assert store.valid("sft", KEY) is None
    assert store.lookup("sft", KEY) is None
    again = store.commit(draft("2"), output(store, "2"))
    assert (again.attempt, again.digest) == ("2", first.digest)
    assert store.valid("sft", KEY) == again
    assert len(list(store.path(f"artifacts/sft/{KEY}").glob("manifest.corrupt-*"))) == 1


def test_damage_that_nobody_looked_for_does_not_stop_a_commit(store: Store) -> None:
    committed(store)
    flip_byte(store.path(f"artifacts/sft/{KEY}/data/1/model.json"))
    assert store.commit(draft("2"), output(store, "2")).attempt == "2"


@pytest.mark.parametrize(
    ("old", "new"),
    [('"loss": 0.25', '"loss": 0.75'), ('"lr": 0.001', '"lr": 0.002'), ('"size": 5', '"size": 6')],
)
def test_a_changed_number_in_a_manifest_is_noticed(store: Store, old: str, new: str) -> None:
    """A flipped digit leaves valid JSON of the right schema; only the manifest's own checksum can
    tell."""
    store.commit(draft(metrics={"loss": 0.25}, config={"lr": 0.001}), output(store))
    path = store.path(f"artifacts/sft/{KEY}/manifest.json")
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    assert store.valid("sft", KEY) is None


def test_a_manifest_copied_to_another_key_is_not_served(store: Store) -> None:
    committed(store)
    source, target = store.path(f"artifacts/sft/{KEY}"), store.path(f"artifacts/sft/{'cd' * 32}")
    source.rename(target)
    assert store.valid("sft", "cd" * 32) is None


def test_the_second_committer_adopts_what_the_first_committed(store: Store) -> None:
    first = committed(store)
    second = store.commit(draft("2"), output(store, "2", content="something else"))
    assert second == first
    assert store.children(f"artifacts/sft/{KEY}/data") == ["1"]


def test_of_many_that_commit_one_key_one_wins_and_all_agree(store: Store) -> None:
    for number in range(8):
        key = f"{number:064}"

        def commit(attempt: str, key: str = key) -> str:
            out = store.path(f"work/{key}/{attempt}/out")
            out.mkdir(parents=True)
            (out / "file").write_text(attempt * 1000)
            return store.commit(draft(attempt, key), out).attempt

        with ThreadPoolExecutor(4) as pool:
            said = {*pool.map(commit, "abcd")}
        winner = store.valid("sft", key).attempt
        assert (said, store.children(f"artifacts/sft/{key}/data")) == ({winner}, [winner])


CRASHER = """
import os, signal, sys
from pathlib import Path
from infra.store.store import open_store
from schemas.artifact import Manifest
root = Path(sys.argv[1])

def commit(number, attempt):
    store = open_store(root)
    out = store.path(f"work/{number:064}/{attempt}/out")
    out.mkdir(parents=True)
    (out / "file").write_text("content")
    fields = {"kind": "sft", "version": 1, "config": {}, "inputs": {}, "files": ()}
    draft = Manifest(key=f"{number:064}", attempt=attempt, **fields)
    return store, draft, out

def die_at(event_number):
    left = event_number
    def hook(event, args):
        nonlocal left
        if event.startswith(("open", "os.", "shutil.")) and event != "os.kill":
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)

number, before, after = 0, 0, 0
while True:
    child = os.fork()
    if child == 0:
        store, draft, out = commit(number, "1")
        die_at(number)
        store.commit(draft, out)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    store, draft, out = commit(number, "2")
    found = store.valid("sft", draft.key)
    before, after = before + (found is None), after + (found is not None)
    final = store.commit(draft, out)
    assert final.attempt == ("1" if found else "2"), (number, final)
    assert store.valid("sft", draft.key) == final
    assert not os.WIFSIGNALED(status) or os.WTERMSIG(status) == signal.SIGKILL
    if os.WIFEXITED(status):
        assert os.WEXITSTATUS(status) == 0
        break
    number += 1
print(before, after)
"""


def test_a_commit_killed_at_any_point_leaves_an_artifact_or_none(tmp_path: Path) -> None:
    """SIGKILL at the n-th operation on files, for every n until a commit gets through; then another
    attempt commits."""
    before, after = map(int, printed(CRASHER, tmp_path).split())
    assert before > 10  # killed before the manifest existed: nothing was there
    assert after > 1  # killed after: the artifact was complete


def test_a_discarded_artifact_is_made_again(store: Store) -> None:
    committed(store)
    store.discard("sft", KEY)
    store.discard("sft", KEY)
    assert store.lookup("sft", KEY) is None
    assert store.commit(draft("2"), output(store, "2")).attempt == "2"


def test_setting_aside_spares_an_artifact_that_was_committed_meanwhile(store: Store) -> None:
    """Whoever found the old manifest damaged must not set aside the new one."""
    committed(store)
    name = f"artifacts/sft/{KEY}/manifest.json"
    assert not local_objects.Files(store.path("work").parent, store.uri).set_aside(
        name, f"artifacts/sft/{KEY}/aside.json", b"the old manifest"
    )
    assert store.valid("sft", KEY) is not None


@pytest.mark.parametrize(
    "name",
    ["../escape", "a/../b", "/etc/passwd", "a//b", "", ".hidden", "a/.git/x", "a b", "a\n", "a/"],
)
def test_a_name_cannot_leave_the_store(store: Store, name: str) -> None:
    with pytest.raises(InputError, match="not allowed in a store"):
        store.path(name)
    with pytest.raises(InputError, match="not allowed in a store"):
        store.write_bytes(f"runs/{name}", b"x")


def test_a_manifest_that_names_a_file_outside_is_damaged(store: Store, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    entry = {"path": "../../../../../../secret", "size": 1, "crc32c": "AAAAAA=="}
    forged = draft(files=[{**entry, "sha256": hashlib.sha256(b"s").hexdigest()}]).sealed()
    path = store.path(f"artifacts/sft/{KEY}/manifest.json")
    path.parent.mkdir(parents=True)
    path.write_text(forged.model_dump_json())
    assert store.valid("sft", KEY) is None


@pytest.mark.parametrize("bad", ["link", "pipe", "name"])
def test_only_plain_files_with_allowed_names_become_artifacts(store: Store, bad: str) -> None:
    out = output(store)
    if bad == "link":
        (out / "link").symlink_to("/etc/hostname")
    elif bad == "pipe":
        os.mkfifo(out / "pipe")
    else:
        (out / ".name").write_text("")
    with pytest.raises(ValueError, match=bad):
        store.commit(draft(), out)
    assert everything_below(store.path("work").parent / "artifacts") == []


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_metrics_that_are_not_finite_are_not_committed(store: Store, value: float) -> None:
    with pytest.raises(ValueError):
        store.commit(draft().model_copy(update={"metrics": {"loss": value}}), output(store))
    assert store.lookup("sft", KEY) is None


plain = st.none() | st.booleans() | st.integers() | st.text() | st.floats(-1e300, 1e300)
json_values = st.recursive(
    plain,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(metrics=st.dictionaries(st.text(), json_values, max_size=3))
@settings(max_examples=25)
def test_any_finite_json_survives_the_manifest(metrics: dict[str, object]) -> None:
    sealed = draft().model_copy(update={"metrics": metrics}).sealed()
    for text in (sealed.model_dump_json(), json.dumps(sealed.model_dump(mode="json"), indent=2)):
        assert Manifest.model_validate_json(text).is_intact


def test_json_objects_are_replaced_whole_and_created_once(store: Store) -> None:
    name = f"work/{KEY}/1/status.json"
    assert store.read_json(name, JobStatus) is None
    running = JobStatus(state="running", heartbeat=1.5)
    done = JobStatus(state="succeeded", heartbeat=2.0)
    store.write_json(name, running)
    store.write_json(name, done)
    assert not store.create_json(name, running)
    assert store.read_json(name, JobStatus) == done
    assert os.listdir(store.path(f"work/{KEY}/1")) == ["status.json"]


@pytest.mark.parametrize(
    "text", ["", "{", '{"state": "dreaming", "heartbeat": 1}', '{"state": "running"}', "[]"]
)
def test_a_damaged_json_object_is_an_input_error_that_names_it(store: Store, text: str) -> None:
    store.write_bytes("runs/x/run.json", text.encode())
    with pytest.raises(InputError, match=r"runs/x/run.json is no valid JobStatus"):
        store.read_json("runs/x/run.json", JobStatus)


def test_runs_and_artifacts_are_listed(store: Store) -> None:
    manifest = committed(store)
    store.write_bytes("runs/b/run.json", b"{}")
    store.write_bytes("runs/a/run.json", b"{}")
    store.write_bytes("runs/c/report.html", b"")
    assert store.list_runs() == ["a", "b"]
    assert list(store.artifacts()) == list(store.artifacts("sft")) == [manifest]
    assert list(store.artifacts("grpo")) == []

"""The store: immutable artifacts, working files of jobs, and run records, below one URI.

    artifacts/<kind>/<key>/manifest.json        written last, created once: an artifact is complete if and only if it exists and verifies
    artifacts/<kind>/<key>/data/<attempt>/...   the artifact's files
    work/<key>/<attempt>/{lease,job,status}.json, log.txt, out/
    runs/<run_id>/{run.json,report.html}

Correctness rests on one operation only, the create-only commit of the manifest: of several runners of one stage the first to commit wins
and the others adopt what it committed. Immutability is enforced by digests, not by permissions: every reader verifies before it uses, and
what does not verify is set aside and computed again.
"""

import hashlib
import json
import logging
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from pydantic import ValidationError

from infra.files import Files, checked_name, files_below
from schemas.artifact import FileEntry, Manifest
from schemas.base import InputError, StrictModel

log = logging.getLogger("lyceum.store")
ModelT = TypeVar("ModelT", bound=StrictModel)

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def open_store(location: str | Path, *, write: bool = True) -> "Store":
    """The store at a `file://` URI or a plain path (relative to the current directory, `~` allowed).

    Args:
        location: e.g. `.lyceum` or `file:///data/lyceum`.
        write: create the store if it is missing and prove that it can be written; False only looks and creates nothing.

    Raises:
        InputError: an unknown scheme, or a place that is a file, cannot be written, or is full.
    """
    text = str(location)
    if not text:
        raise InputError("the store is empty. Give --store a path (for example ./.lyceum) or a file:///absolute/path URI.")
    if _URI.match(text):
        parts = urlsplit(text)
        if parts.scheme != "file":
            raise InputError(f"store {text!r}: the scheme {parts.scheme!r} is not supported. Valid: a path, or file:///absolute/path.")
        if parts.netloc not in ("", "localhost") or not parts.path:
            meant = f"file:///{parts.netloc}{parts.path}"
            raise InputError(f"store {text!r}: a file URI has three slashes and an absolute path. Write {meant} instead.")
        root = Path(unquote(parts.path))
    else:
        root = Path(text).expanduser().absolute()
    files = Files(root, root.as_uri())
    if write:
        files.prepare()
    else:
        files.require_directory()
    return Store(files)


def attempt_file(key: str, attempt: str, name: str) -> str:
    """The name, in the store, of one of an attempt's files: `work/<key>/<attempt>/<name>`."""
    return f"work/{key}/{attempt}/{name}"


class Store:
    """Artifacts, working files and run records. Cheap to construct; holds no open files and no cache, so processes may share one."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.uri = files.uri

    # Artifacts

    def lookup(self, kind: str, key: str) -> Manifest | None:
        """The manifest if the artifact was committed; its files are not looked at. Use `valid` before reading them."""
        return _parse_manifest(self._files.read(_manifest_name(kind, key)), kind, key)

    def verify(self, manifest: Manifest) -> list[str]:
        """What is wrong with an artifact's files, one line each: missing, extra, wrong size, wrong sha256. Reads every byte."""
        directory = self.local_dir(manifest)
        try:
            present = set(files_below(directory))
        except ValueError as error:
            return [str(error)]
        problems = [f"{name}: is not in the manifest" for name in sorted(present - {entry.path for entry in manifest.files})]
        for entry in manifest.files:
            if entry.path not in present:
                problems.append(f"{entry.path}: is missing")
                continue
            size = (directory / entry.path).stat().st_size
            if size != entry.size:
                problems.append(f"{entry.path}: has {size} bytes instead of {entry.size}")
            elif (sha256 := self._entry(directory, entry.path).sha256) != entry.sha256:
                problems.append(f"{entry.path}: has sha256 {sha256} instead of {entry.sha256}")
        return problems

    def valid(self, kind: str, key: str) -> Manifest | None:
        """The manifest of an artifact that exists and verifies.

        A damaged artifact is set aside (`manifest.corrupt-<id>.json`; its files stay for inspection), logged, and never served again:
        None is returned, and the stage can be run and committed anew.
        """
        name = _manifest_name(kind, key)
        raw = self._files.read(name)
        if raw is None:
            return None
        manifest = _parse_manifest(raw, kind, key)
        problems = ["manifest.json is damaged"] if manifest is None else self.verify(manifest)
        if not problems:
            return manifest
        log.warning("artifact %s/%s does not verify and will be computed again: %s", kind, key, "; ".join(problems))
        self._files.set_aside(name, _aside_name(kind, key, "corrupt"), raw)
        return None

    def discard(self, kind: str, key: str) -> None:
        """Set a committed artifact aside (`manifest.discarded-<id>.json`) so that the stage is run again: `--force`."""
        name = _manifest_name(kind, key)
        raw = self._files.read(name)
        if raw is not None:
            self._files.set_aside(name, _aside_name(kind, key, "discarded"), raw)

    def commit(self, draft: Manifest, directory: Path) -> Manifest:
        """Make the files of `directory` an artifact, or adopt the one that somebody else committed first.

        The files are moved, so `directory` is gone afterwards.

        Args:
            draft: the manifest with `files` empty.
            directory: the job's output; plain files below it, names as `infra.files.checked_name` allows them.

        Returns:
            The committed manifest: this one, or the winner's (its `attempt` tells).

        Raises:
            InputError: the store is full or cannot be written; nothing of this attempt is left in it.
            ValueError: a file that cannot be part of an artifact, or metrics that are not finite JSON.
        """
        winner = self.valid(draft.kind, draft.key)
        if winner is not None:
            return winner
        entries = tuple(self._entry(directory, name) for name in files_below(directory))
        content = _pretty(draft.model_copy(update={"files": entries}).sealed())
        manifest = _parse_manifest(content, draft.kind, draft.key)  # what readers will see, e.g. lists where there were tuples
        if manifest is None:
            raise ValueError(f"the manifest of {draft.kind}/{draft.key} does not survive being written as JSON: {content.decode()}")
        data = _data_name(manifest)
        self._files.move_in(directory, data)
        try:
            while not self._files.create(_manifest_name(manifest.kind, manifest.key), content):
                # Lost a race, unless the winner is damaged: then `valid` sets it aside and the next round creates ours.
                winner = self.valid(manifest.kind, manifest.key)
                if winner is not None:
                    if winner.attempt != manifest.attempt:
                        self._files.remove(data)
                    return winner
        except InputError:
            self._files.remove(data)
            raise
        return manifest

    def local_dir(self, manifest: Manifest) -> Path:
        """A local directory that holds the artifact's files, to be read only."""
        return self._files.path(_data_name(manifest))

    def artifacts(self, kind: str | None = None) -> Iterator[Manifest]:
        """Manifests of all committed artifacts (of one kind), in the order of kind and key; damaged ones are passed over."""
        for found_kind in [kind] if kind else self._files.children("artifacts"):
            for key in self._files.children(f"artifacts/{found_kind}"):
                manifest = self.lookup(found_kind, key)
                if manifest is not None:
                    yield manifest

    # Working files and run records

    def work_dir(self, key: str) -> Path:
        """The directory `work/<key>`, which outlives attempts: checkpoints. It is created."""
        path = self._files.path(f"work/{key}")
        with self._files.explained(path):
            path.mkdir(parents=True, exist_ok=True)
        return path

    def path(self, name: str) -> Path:
        """Where the object `name` lies on this machine, for logs and reports. Raises ValueError for a name that leaves the store."""
        return self._files.path(name)

    def children(self, name: str) -> list[str]:
        """Names directly below a prefix, sorted, e.g. `children("work/<key>")` for the attempts of a stage."""
        return self._files.children(name)

    def list_runs(self) -> list[str]:
        """Ids of all runs that have a record, sorted."""
        return [run for run in self._files.children("runs") if self._files.path(f"runs/{run}/run.json").is_file()]

    def read_json(self, name: str, model: type[ModelT]) -> ModelT | None:
        """The object `name` as `model`, or None if there is none. Raises InputError when it is damaged."""
        raw = self._files.read(name)
        if raw is None:
            return None
        try:
            return model.model_validate_json(raw)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise InputError(f"store {self.uri}: {name} is no valid {model.__name__} ({reason}). Remove the file and run again.") from error

    def write_json(self, name: str, value: StrictModel) -> None:
        """Create or replace an object: readers see the old one or the new one, nothing between."""
        self._files.write(name, _pretty(value))

    def create_json(self, name: str, value: StrictModel) -> bool:
        """Create an object, durably; False, and nothing changes, if it exists. Of many racers exactly one gets True."""
        return self._files.create(name, _pretty(value))

    def write_text(self, name: str, text: str) -> None:
        """Create or replace a UTF-8 text object (reports)."""
        self._files.write(name, text.encode("utf-8"))

    def _entry(self, directory: Path, name: str) -> FileEntry:
        path = directory / name
        with self._files.explained(path), path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            return FileEntry(path=name, size=file.tell(), sha256=sha256)


def _manifest_name(kind: str, key: str) -> str:
    return f"artifacts/{kind}/{key}/manifest.json"


def _aside_name(kind: str, key: str, why: str) -> str:
    return f"artifacts/{kind}/{key}/manifest.{why}-{uuid.uuid4().hex}.json"


def _data_name(manifest: Manifest) -> str:
    return f"artifacts/{manifest.kind}/{manifest.key}/data/{manifest.attempt}"


def _parse_manifest(raw: bytes | None, kind: str, key: str) -> Manifest | None:
    """The manifest in `raw` if it is intact, belongs to `kind` and `key` and names only allowed files; None otherwise."""
    if raw is None:
        return None
    try:
        manifest = Manifest.model_validate_json(raw)
        checked_name(manifest.attempt)
        for entry in manifest.files:
            checked_name(entry.path)
    except ValueError:  # pydantic's ValidationError is one
        return None
    return manifest if manifest.is_intact and (manifest.kind, manifest.key) == (kind, key) else None


def _pretty(value: StrictModel) -> bytes:
    return (json.dumps(value.model_dump(mode="json"), indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8")

"""The store: immutable artifacts, working files of jobs, and run records, below one URI.

    artifacts/<kind>/<key>/manifest.json        written last, created once: an artifact is complete
                                                if and only if it exists and verifies
    artifacts/<kind>/<key>/data/<attempt>/...   the artifact's files
    work/<key>/<attempt>/{lease,job,status}.json, log.txt, out/
    runs/<run_id>/{run,nightly}.json, stages/<name>.json, report.html
    champions/<recipe>/<number>.json            the champion is the highest number's
                                                (`flows.promotion.champion`)
    nights/<recipe>/<number>.json               how many nights were judged
                                                (`flows.promotion.levels`)
    answers/<xx>/<digest>                       paid answers of teachers and judges, never deleted
                                                (`infra.store.answers`)
    src/ data/ env/ models/ compiled/           files for machines in the cloud

Correctness rests on one operation only, the create-only commit of the manifest: of several runners
of one stage the first to commit wins and the others adopt what it committed. Immutability is
enforced by digests, not by permissions: every reader verifies before it uses, and an artifact that
does not verify is set aside and computed again.

A store lies in a directory (`infra.store.local_objects`) or in a bucket (`infra.gcs.bucket`); both
are `infra.store.objects.Objects`, and nothing else differs.
"""

import logging
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from infra.gcs.region import require_near
from infra.settings import Settings
from infra.store.local_objects import Files, file_entry, files_below
from infra.store.location import parsed_location
from infra.store.objects import Damaged, Objects, checked_name
from schemas.artifact import FileEntry, Manifest, Seal
from schemas.base import InputError, StrictModel, problem_text

log = logging.getLogger("lyceum.store")
ModelT = TypeVar("ModelT", bound=StrictModel)


def open_store(
    location: str | Path, settings: Settings | None = None, *, write: bool = True
) -> "Store":
    """The store at a `file://` or `gs://` URI, or at a plain path (relative to the current
    directory, `~` allowed).

    Args:
        location: e.g. `.lyceum`, `file:///data/lyceum` or `gs://bucket/prefix`.
        settings: of a bucket; read from the environment if not given.
        write: create the store's directory if it is missing and prove that the store can be
            written; False only looks.

    Raises:
        InputError: an unknown scheme, or a place that is a file, does not exist, cannot be read or
            written, or is full.
    """
    place = parsed_location(str(location))
    objects: Objects
    if isinstance(place, Path):
        objects = here = _directory(place)
    else:
        from infra.gcs.bucket import Bucket

        settings = settings or Settings.from_environment()
        objects = Bucket(*place, Path(settings.cache).absolute(), settings)
        here = _directory(objects.cache)
    if write:
        objects.prepare()
    else:
        objects.require()
    return Store(objects, here)


def _directory(root: Path) -> Files:
    return Files(root, root.as_uri())


def attempt_file(key: str, attempt: str, name: str) -> str:
    """The name, in the store, of one of an attempt's files: `work/<key>/<attempt>/<name>`."""
    return f"work/{key}/{attempt}/{name}"


def manifest_name(kind: str, key: str) -> str:
    return f"artifacts/{kind}/{key}/manifest.json"


def aside_name(kind: str, key: str, why: str) -> str:
    """A new name for a manifest that is set aside."""
    return f"artifacts/{kind}/{key}/manifest.{why}-{uuid.uuid4().hex}.json"


def data_name(manifest: Manifest) -> str:
    """The name below which the artifact's files lie."""
    return f"artifacts/{manifest.kind}/{manifest.key}/data/{manifest.attempt}"


def parse_manifest(raw: bytes | None, kind: str, key: str) -> Manifest | None:
    """The manifest in `raw` if it is intact, belongs to `kind` and `key` and names only allowed
    files; None otherwise."""
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


class Store:
    """Artifacts, working files and run records. Cheap to construct; holds no open files and no
    cache, so processes may share one.

    Args:
        objects: where the store lies.
        here: the same directory, or for a bucket a place for working files of this machine.

    Attributes:
        read_bytes, read_all, write_bytes, create_bytes, children, objects, each: as the place
            offers them; see `infra.store.objects.Objects`.
    """

    def __init__(self, objects: Objects, here: Files) -> None:
        self._objects, self._here = objects, here
        self.uri = objects.uri
        self.read_bytes, self.read_all = objects.read, objects.read_all
        self.write_bytes, self.create_bytes = objects.write, objects.create
        self.children, self.objects, self.each = objects.children, objects.objects, objects.each

    def require_near(self, settings: Settings) -> None:
        """Raises InputError for a bucket far from a zone where jobs run, if that is known and not
        allowed; see `infra.gcs.region`."""
        if settings.zones and (location := self._objects.location()):
            for zone in settings.zones:
                require_near(self.uri, location, zone, allowed=settings.far_bucket)

    # Artifacts

    def lookup(self, kind: str, key: str) -> Manifest | None:
        """The manifest if the artifact was committed, without looking at its files. Use `valid`
        before reading them."""
        return parse_manifest(self._objects.read(manifest_name(kind, key)), kind, key)

    def verify(self, manifest: Manifest) -> list[str]:
        """Problems of an artifact's files, one line each: missing, extra, wrong size, wrong
        bytes."""
        return self._objects.check_tree(data_name(manifest), manifest.files)

    def valid(
        self, kind: str, key: str, damage: Callable[[str], None] = lambda text: None
    ) -> Manifest | None:
        """The manifest of an artifact that exists and verifies.

        It sets a damaged artifact aside (`manifest.corrupt-<id>.json`; its files stay for
        inspection), logs that, and returns None, so that the stage can run and commit anew.
        `damage` is called with the problems.
        """
        name = manifest_name(kind, key)
        raw = self._objects.read(name)
        if raw is None:
            return None
        manifest = parse_manifest(raw, kind, key)
        problems = ["manifest.json is damaged"] if manifest is None else self.verify(manifest)
        if not problems:
            return manifest
        self._set_aside(kind, key, raw, problems)
        more = f"; and {len(problems) - 1} more" if len(problems) > 1 else ""
        damage(f"{problems[0]}{more}")
        return None

    def _set_aside(self, kind: str, key: str, raw: bytes, problems: list[str]) -> None:
        what, why = f"artifact {kind}/{key}", "; ".join(problems)
        log.warning("%s does not verify and will be computed again: %s", what, why)
        self._objects.set_aside(manifest_name(kind, key), aside_name(kind, key, "corrupt"), raw)

    def discard(self, kind: str, key: str, why: str = "discarded") -> bytes | None:
        """Set a committed artifact aside (`manifest.<why>-<id>.json`) so that the stage runs again:
        `--force`. Returns the manifest, and None when there is none."""
        name = manifest_name(kind, key)
        if (raw := self._objects.read(name)) is not None:
            self._objects.set_aside(name, aside_name(kind, key, why), raw)
        return raw

    def commit(self, draft: Manifest, directory: Path) -> Manifest:
        """Make the files of `directory` an artifact, or adopt the one that somebody else committed
        first.

        The files are moved, so `directory` is gone afterwards.

        Args:
            draft: the manifest with `files` empty.
            directory: the job's output; plain files below it, names as
                `infra.store.local_objects.checked_name` allows them.

        Returns:
            The committed manifest: this one, or the winner's (its `attempt` tells).

        Raises:
            InputError: the store is full or not writable; nothing of this attempt stays in it.
            ValueError: a file that cannot be part of an artifact, or metrics that are not finite
                JSON.
        """
        winner = self.valid(draft.kind, draft.key)
        if winner is not None:
            return winner
        entries = self._entries(directory)
        content = _pretty(draft.model_copy(update={"files": entries}).sealed())
        # what readers will see, e.g. lists where there were tuples
        manifest = parse_manifest(content, draft.kind, draft.key)
        if manifest is None:
            raise ValueError(
                f"the manifest of {draft.kind}/{draft.key} does not survive being written as JSON:"
                f" {content.decode()}"
            )
        data = data_name(manifest)
        self._objects.put_tree(directory, data, entries)
        try:
            while not self._objects.create(manifest_name(manifest.kind, manifest.key), content):
                # Lost a race, unless the winner is damaged: then `valid` sets it aside and the next
                # round creates ours.
                winner = self.valid(manifest.kind, manifest.key)
                if winner is not None:
                    if winner.attempt != manifest.attempt:
                        self._objects.remove(data)
                    return winner
        except InputError:
            self._objects.remove(data)
            raise
        return manifest

    def local_dir(self, manifest: Manifest, wanted: Collection[str] | None = None) -> Path:
        """A read-only local directory with the artifact's files.

        Args:
            wanted: paths of the files that are needed; None for all. From a bucket only these are
                transferred.

        Raises:
            Damaged: transferred bytes differ from the manifest. The artifact has been set aside, as
                by `valid`.
        """
        try:
            return self._objects.get_tree(data_name(manifest), manifest.files, wanted)
        except Damaged as error:
            raw = self._objects.read(manifest_name(manifest.kind, manifest.key))
            if raw is not None and parse_manifest(raw, manifest.kind, manifest.key) == manifest:
                self._set_aside(manifest.kind, manifest.key, raw, error.problems)
            raise

    def artifacts(self, kind: str | None = None, newest: int | None = None) -> Iterator[Manifest]:
        """Manifests of all committed artifacts (of one kind), by kind, the newest first; damaged
        ones are passed over.

        Args:
            newest: so many of each kind; None for all.
        """
        for one in [kind] if kind else self._objects.children("artifacts"):
            found = [*self._objects.each(f"artifacts/{one}", "manifest.json")]
            found.sort(key=lambda each: each.written, reverse=True)
            names = [each.name for each in found[:newest]]
            for name, raw in zip(names, self._objects.read_all(names), strict=True):
                if manifest := parse_manifest(raw, one, name.split("/")[2]):
                    yield manifest

    # Trees: files of work in progress, complete when their seal exists

    def save_tree(self, name: str, directory: Path, about: dict[str, Any]) -> None:
        """Store a directory's files, and a note about them (JSON), as the tree `name`, which must
        be new.

        The files are moved, so `directory` is gone afterwards. A tree whose writer was killed
        before it was sealed does not count.
        """
        entries = self._entries(directory)
        seal = Seal(files=entries, about=about).sealed()
        self._objects.put_tree(directory, f"{name}/data", entries)
        self._objects.create(f"{name}/seal.json", _pretty(seal))

    def has_tree(self, name: str) -> bool:
        """Whether the tree exists, complete and unchanged; nothing is transferred from a bucket."""
        return self._sound_tree(name) is not None

    def load_tree(self, name: str) -> tuple[Path, dict[str, Any]] | None:
        """A local directory with the tree's files, every byte verified, and the note about them.

        None when there is no such tree, or it is damaged or incomplete, which is logged.
        """
        seal = self._sound_tree(name)
        try:
            if seal is None:
                return None
            return self._objects.get_tree(f"{name}/data", seal.files), seal.about
        except Damaged as error:
            self._warn_of_tree(name, error.problems)
            return None

    def _sound_tree(self, name: str) -> Seal | None:
        raw = self._objects.read(f"{name}/seal.json")
        if raw is None:
            return None
        try:
            seal = Seal.model_validate_json(raw)
        except ValidationError:
            seal = None
        problems = ["seal.json is damaged"]
        if seal and seal.is_intact:
            problems = self._objects.check_tree(f"{name}/data", seal.files)
        if problems:
            self._warn_of_tree(name, problems)
        return None if problems else seal

    def _warn_of_tree(self, name: str, problems: Sequence[str]) -> None:
        log.warning("%s does not verify and is not used: %s", name, "; ".join(problems))

    def _entries(self, directory: Path) -> tuple[FileEntry, ...]:
        with self._here.explained(directory):
            return tuple(file_entry(directory, name) for name in files_below(directory))

    # Working files and run records

    def path(self, name: str) -> Path:
        """The path of a working file on this machine: in a directory store the object `name`
        itself, for a bucket a place in the cache.

        Raises InputError for a name that leaves the store.
        """
        return self._here.path(name)

    def location(self, name: str) -> str:
        """The place where people find the object `name`: a path, or a `gs://` URI."""
        checked_name(name)
        return str(self._here.path(name)) if self.is_directory else f"{self.uri}/{name}"

    @property
    def is_directory(self) -> bool:
        """Whether the store is a directory of this machine, so that working files lie in it."""
        return self._objects is self._here

    def write_here(self, name: str, value: StrictModel) -> None:
        """Create or replace a working file of this machine (`path`)."""
        self._here.write(name, _pretty(value))

    def remove_here(self, name: str) -> None:
        """Remove the working files of that name, and below it, of this machine (`path`)."""
        self._here.remove(name)

    def read_here(self, name: str, model: type[ModelT]) -> ModelT | None:
        """A working file of this machine as `model`, or None if there is none. Raises InputError
        when it is damaged."""
        return self.parsed(name, self._here.read(name), model)

    def remove(self, name: str) -> None:
        """Remove the object of that name, and all below it, in the store and on this machine."""
        self._objects.remove(name)
        if not self.is_directory:
            self.remove_here(name)

    def list_runs(self) -> list[str]:
        """Ids of all runs that have a record, sorted."""
        return [found.name.split("/")[1] for found in self.each("runs", "run.json")]

    def read_json(self, name: str, model: type[ModelT]) -> ModelT | None:
        """The object `name` as `model`, or None if there is none. Raises InputError when it is
        damaged."""
        return self.parsed(name, self.read_bytes(name), model)

    def parsed(self, name: str, raw: bytes | None, model: type[ModelT]) -> ModelT | None:
        """Parse the bytes of the object `name` like `read_json`."""
        if raw is None:
            return None
        try:
            return model.model_validate_json(raw)
        except ValidationError as error:
            reason = problem_text(error.errors()[0])
            raise InputError(
                f"store {self.uri}: {name} is no valid {model.__name__} ({reason}). Remove the file"
                " and run again."
            ) from error

    def write_json(self, name: str, value: StrictModel, seconds: float | None = None) -> None:
        self.write_bytes(name, _pretty(value), seconds)

    def create_json(self, name: str, value: StrictModel) -> bool:
        return self.create_bytes(name, _pretty(value))


def _pretty(value: StrictModel) -> bytes:
    return value.model_dump_json(indent=2).encode() + b"\n"

"""Artifacts: the immutable output of a stage, complete if and only if its manifest exists and
verifies."""

from typing import Any

from pydantic import Field

from schemas.base import Sealed, StrictModel, digest


class FileEntry(StrictModel):
    """One file of an artifact: POSIX path below the artifact's data directory, size in bytes,
    sha256 in hexadecimal, and crc32c as Cloud Storage writes it (base64 of the big-endian 32 bits),
    which a bucket keeps for every object and so can be compared without a download."""

    path: str
    size: int = Field(ge=0)
    sha256: str
    crc32c: str


class ArtifactRef(StrictModel):
    """Points at a committed artifact. `digest` covers every file's path, size and sha256: it is
    what later stage keys hash."""

    kind: str
    key: str
    digest: str


class Manifest(Sealed):
    """`artifacts/<kind>/<key>/manifest.json`, written last and create-only.

    Identity (hashed into `key`): kind, version, dependencies, config, inputs. Everything under
    `execution` (target, git SHA, seconds, host, package versions) and the attempt are recorded and
    never hashed. `checksum` covers all other fields: damage to the manifest is noticed.
    """

    kind: str
    key: str
    version: int
    dependencies: dict[str, str | int] = Field(default_factory=dict)
    config: dict[str, Any]
    inputs: dict[str, ArtifactRef]
    attempt: str
    files: tuple[FileEntry, ...]
    metrics: dict[str, Any] = Field(default_factory=dict)
    execution: dict[str, Any] = Field(default_factory=dict)

    @property
    def digest(self) -> str:
        """sha256 over the files' paths, sizes and digests: equal content gives equal digests,
        whatever produced it."""
        return digest(
            [
                [entry.path, entry.size, entry.sha256]
                for entry in sorted(self.files, key=lambda entry: entry.path)
            ]
        )

    def ref(self) -> ArtifactRef:
        return ArtifactRef(kind=self.kind, key=self.key, digest=self.digest)


class Seal(Sealed):
    """`seal.json` of a tree of working files: its files, what was said about them, and a checksum
    over both. Written last."""

    files: tuple[FileEntry, ...]
    about: dict[str, Any]

    def _checksum(self) -> str:
        return digest([[entry.model_dump() for entry in self.files], self.about])


def stage_key(
    kind: str,
    version: int,
    dependencies: dict[str, str | int],
    config: dict[str, Any],
    inputs: dict[str, str],
) -> str:
    """The stage key: sha256 over what decides the stage's bytes, and nothing about where it runs.

    Args:
        kind: the stage kind.
        version: that kind's VERSION.
        dependencies: what else decides the bytes: VERSION of each reward or teacher the config
            names (`{"rewards.format": 1}`) and the sha256 of each data file it reads
            (`{"data/gsm8k/test.jsonl": "ab12..."}`).
        config: the validated config with defaults filled in, as JSON.
        inputs: input name -> digest of the artifact that feeds it.
    """
    return digest(
        {
            "kind": kind,
            "version": version,
            "dependencies": dependencies,
            "config": config,
            "inputs": inputs,
        }
    )

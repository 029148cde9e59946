"""Where an artifact's manifest and files lie in a store, and reading a manifest
(`infra.store.store`)."""

import uuid

from infra.store.objects import checked_name
from schemas.artifact import Manifest


def manifest_name(kind: str, key: str) -> str:
    """The manifest's name in the store."""
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

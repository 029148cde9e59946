"""Secrets that a test plants, and the search for them in whatever a run leaves."""

import base64
import gzip
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

VARIABLES = (
    "HF_TOKEN HUGGING_FACE_HUB_TOKEN KAGGLE_KEY WANDB_API_KEY OPENAI_API_KEY GEMINI_API_KEY"
    " ANTHROPIC_API_KEY PREFECT_API_KEY AWS_SECRET_ACCESS_KEY GITHUB_TOKEN"
)
CANARIES = {
    name: f"canary-{number:02}-{name.lower()}"
    for number, name in enumerate((*VARIABLES.split(), "auth", "private", "proxy", "typed"))
}


def findings(content: bytes, where: str) -> list[str]:
    """Which canaries some bytes hold, as they are or in base64 (as authorization headers and data
    URIs have them)."""
    return [
        f"{name} in {where}"
        for name, canary in CANARIES.items()
        if any(form in content for form in _forms(canary))
    ]


def _forms(canary: str) -> Iterator[bytes]:
    yield canary.encode()
    # where in a group of three bytes the canary begins decides its letters; those at the ends
    # depend on neighbours
    for lead in range(3):
        yield base64.b64encode(b"\0" * lead + canary.encode())[4:-4]


def findings_below(directory: Path) -> list[str]:
    """Which canaries a directory holds: in names, in files, in compressed files, in SQLite
    databases; and which files are pickles."""
    found = []
    for path in directory.rglob("*"):
        found += findings(bytes(path.relative_to(directory)), f"the name of {path}")
        if path.is_file():
            content = path.read_bytes()
            found += findings(content, str(path))
            if content[:2] == b"\x1f\x8b":
                found += findings(gzip.decompress(content), f"{path}, unpacked")
            if content.startswith(b"SQLite format 3"):
                found += findings(dump(path).encode(), f"{path}, dumped")
            if re.search(rb'^\x80|\A"?gA[SW]V|"gA[SW]V', content):
                found.append(f"{path} is a pickle")
    return found


def dump(database: Path) -> str:
    """All rows of a SQLite database, those in its write-ahead log included."""
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        return "\n".join(connection.iterdump())
    finally:
        connection.close()

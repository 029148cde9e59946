"""The name of Lyceum's distribution, and what comes with which of its extras.

On the package index `lyceum` is somebody else's package, and this distribution is not there: nobody
is sent there for an extra who did not get Lyceum there.
"""

import json
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from infra.secrets import mask

DISTRIBUTION = "lyceum-post-training"

EXTRAS = {
    "full": (
        "datasets",
        "openai",
        "pyarrow",
        "sklearn",
        "threadpoolctl",
        "tokenizers",
        "transformers",
    ),
    "cloud": ("gcsfs", "google", "grpc"),
    "export": ("torch",),
    "cluster": ("ray",),
}
"""The modules of the packages of an extra (pyproject.toml), which quickstart does without."""

FOR_CLOUD = ("tpu", "full", "cloud")
"""Extras of a worker on a machine in the cloud; here they come with `tpu`."""


def install(extra: str) -> str:
    """How to install an extra: in a checkout by uv, else from where this installation came, as its
    installer recorded it (PEP 610)."""
    if (Path(__file__).parents[1] / "pyproject.toml").exists():
        return f"`uv sync --extra {extra}`"
    requirement, recorded = f"{DISTRIBUTION}[{extra}]", None
    with suppress(PackageNotFoundError):  # its source was shipped to this machine
        recorded = distribution(DISTRIBUTION).read_text("direct_url.json")
    origin = json.loads(recorded or "{}")
    if url := origin.get("url"):
        git = origin.get("vcs_info")
        requirement += f" @ git+{url}@{git['commit_id']}" if git else f" @ {url}"
    return f"`pip install '{mask(requirement)}'`"


def absent(error: ModuleNotFoundError) -> str:
    """Say what to install when an import of an extra's package failed; "" when no extra has it."""
    name = (error.name or "").partition(".")[0]
    for extra, modules in EXTRAS.items():
        if name in modules:
            return (
                f"the package {error.name} is not installed. It comes with the extra {extra!r}:"
                f" {install(extra)}."
            )
    return ""

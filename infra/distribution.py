"""The name of Lyceum's distribution, and what comes with which of its extras.

On the package index `lyceum` is somebody else's package.
"""

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
    """How to install an extra, in a checkout and without one."""
    return f"`uv sync --extra {extra}` in a checkout, else `pip install '{DISTRIBUTION}[{extra}]'`"


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

"""The name of Lyceum's distribution: on the package index `lyceum` is somebody else's package."""

DISTRIBUTION = "lyceum-post-training"


def install(extra: str) -> str:
    """How to install an extra, in a checkout and without one."""
    return f"`uv sync --extra {extra}` in a checkout, else `pip install '{DISTRIBUTION}[{extra}]'`"

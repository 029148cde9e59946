"""The name that Lyceum is installed by. On the package index `lyceum` is somebody else's package;
the command and the imports are called as the house is."""

DISTRIBUTION = "lyceum-post-training"


def install(extra: str) -> str:
    """How somebody gets an extra, in a checkout and without one."""
    return f"`uv sync --extra {extra}` in a checkout, else `pip install '{DISTRIBUTION}[{extra}]'`"

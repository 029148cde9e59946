"""Whether this machine says nothing of a Prefect API, told without loading Prefect, which takes a
second.

Looks at every place that Prefect 3.8.8 reads settings from (`prefect.settings.sources`), and that
`lyceum serve` writes to. One that says anything, whatever it is, makes the answer no, and then
Prefect itself is asked: a wrong no costs a second, and a yes is certain.
"""

import os
import sys
import tomllib
from pathlib import Path

from flows.server.key import FILE

_SERVERS = ("PREFECT_SERVER_", "PREFECT_LOGGING_")
"""How settings begin that say how a server of ours runs, not where one is."""


def is_silent() -> bool:
    """Whether no Prefect API can be configured here, and no `lyceum serve` can run."""
    if "prefect" in sys.modules:  # asking costs nothing, and settings may have been set in memory
        return False
    names = (name.upper() for name in os.environ if name.upper().startswith("PREFECT_"))
    home = Path(os.environ.get("PREFECT_HOME") or Path.home() / ".prefect")
    files = home / "profiles.toml", home / FILE, Path("prefect.toml")
    return not (
        any(name != "PREFECT_HOME" and not name.startswith(_SERVERS) for name in names)
        or any(path.exists() for path in files)
        or "PREFECT" in _text(Path(".env")).upper()
        or _is_for_prefect(_text(Path("pyproject.toml")))
    )


def _is_for_prefect(project: str) -> bool:
    try:
        return "prefect" in tomllib.loads(project).get("tool", {})
    except tomllib.TOMLDecodeError:
        return True


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""

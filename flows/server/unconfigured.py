"""Tells whether no Prefect API is configured on this machine, without loading Prefect, which takes
a second.

It looks at every place from which Prefect 3.8.8 reads settings (`prefect.settings.sources`), and
where `lyceum serve` writes. Any setting there makes the answer no, and then Prefect itself is
asked: a wrong no costs a second, and a yes is certain.
"""

import os
import sys
import tomllib
from pathlib import Path

from flows.server.key import FILE
from infra.settings import home_directory

_SERVERS = ("PREFECT_SERVER_", "PREFECT_LOGGING_")
"""Prefixes of settings that configure a server of ours and name no API."""


def is_unconfigured() -> bool:
    """Whether no Prefect API can be configured here, and no `lyceum serve` can run. Raises
    InputError: nothing says where Prefect's files would lie."""
    if "prefect" in sys.modules:  # asking costs nothing, and settings may have been set in memory
        return False
    names = (name.upper() for name in os.environ if name.upper().startswith("PREFECT_"))
    home = Path(os.environ.get("PREFECT_HOME") or home_directory() / ".prefect").expanduser()
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

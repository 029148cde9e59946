"""A run's evaluations and curves in the formats of other tools: `lyceum scores`. A format is a file
in `formats/`."""

from pathlib import Path

FORMATS = tuple(
    sorted(
        path.stem
        for path in (Path(__file__).parent / "formats").glob("*.py")
        if not path.stem.startswith("_")
    )
)
"""The names of all formats."""

"""The pictures of docs/walk.md, made anew: `uv run --group ci python docs/walk.py`.

What is shown is what tests/end_to_end/flows/server/test_browser.py does: `lyceum serve`, a real
Chromium, and the clicks of a person. It takes some minutes.
"""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
TEST = "tests/end_to_end/flows/server/test_browser.py"
PICTURES = ROOT / "docs" / "walk"
NAMES = ("form", "form-refused", "running", "failed-details", "retried-stages", "artifact-stages")
NAMES += ("cancelled", "schedule-on")
SIZE, COLOURS = (1000, 900), 48
"""Pixels at most, and colours: enough to be read."""
MOST_BYTES = 600_000
"""Of all pictures: they lie in every clone."""


def shrink(taken: Path, made: Path) -> int:
    """Write a picture for the page; returns its bytes."""
    with Image.open(taken) as image:
        width, height = image.size
        scale = SIZE[0] / width
        shown = image.convert("RGB").crop((0, 0, width, min(height, round(SIZE[1] / scale))))
        small = shown.resize((SIZE[0], round(shown.height * scale)), Image.Resampling.LANCZOS)
        small.quantize(COLOURS, dither=Image.Dither.NONE).save(made, optimize=True)
    return made.stat().st_size


def main() -> None:
    with TemporaryDirectory() as taken:
        command = [sys.executable, "-m", "pytest", "-q", "-n0", TEST]
        environment = os.environ | {"LYCEUM_TEST_PICTURES": taken}
        subprocess.run(command, cwd=ROOT, env=environment, check=True)
        PICTURES.mkdir(exist_ok=True)
        sizes = [shrink(Path(taken) / f"{name}.png", PICTURES / f"{name}.png") for name in NAMES]
    if sum(sizes) > MOST_BYTES:
        sys.exit(f"{sum(sizes)} bytes in {PICTURES}, more than {MOST_BYTES}; take fewer colours")


if __name__ == "__main__":
    main()

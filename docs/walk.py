"""A page of pictures of Prefect's UI, made anew: `uv run --group ci python docs/walk.py` writes
docs/walk.md and docs/walk/.

What is shown is what tests/end_to_end/flows/server/test_browser.py does: `lyceum serve`, a real
Chromium, and the clicks of a person. It takes some minutes. `python docs/walk.py DIR` takes the
pictures that a run of that test with LYCEUM_TEST_PICTURES=DIR has left.
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
STEPS = {
    "form": "**Start a run.** *Deployments*, `post-train`, *Run*, *Custom run*: the form has what"
    " `lyceum run` has.",
    "form-refused": "**A mistake is refused here**, before anything begins.",
    "running": "**Watch.** Each stage is a task run, with logs and progress.",
    "failed-details": "**A stage that breaks** says why in one message: here the quotas ask for"
    " rows that nobody made.",
    "retried-stages": "**Retry**, after the recipe was mended: what was finished is *Cached*, and"
    " the rest runs.",
    "artifact-stages": "**What came of it**, among the run's artifacts.",
    "cancelled": "**Cancel** stops the job, and deletes machines in the cloud.",
    "deployments": "**Every night**: `nightly` has a schedule, at 02:00, which is paused.",
    "schedule": "**Switch it on** with one click, on the page of `nightly`; the same click pauses"
    " it again.",
}
"""What is shown, in order, with its words."""
PAGE = ROOT / "docs" / "walk.md"
SIZE, COLOURS = (1000, 900), 128
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


def take(into: str) -> None:
    """Walk through the UI and leave a picture of each of its pages."""
    command = [sys.executable, "-m", "pytest", "-q", "-n0", TEST]
    environment = os.environ | {"LYCEUM_TEST_PICTURES": into}
    subprocess.run(command, cwd=ROOT, env=environment, check=True)


def main() -> None:
    with TemporaryDirectory() as empty:
        taken = Path(sys.argv[1] if len(sys.argv) > 1 else empty)
        if taken == Path(empty):
            take(empty)
        PICTURES.mkdir(exist_ok=True)
        sizes = [shrink(taken / f"{name}.png", PICTURES / f"{name}.png") for name in STEPS]
    steps = [f"{text}\n\n![{name}](walk/{name}.png)\n" for name, text in STEPS.items()]
    head = "# Prefect's UI, step by step\n\nTaken in Chromium by `docs/walk.py`.\n"
    PAGE.write_text("\n".join([head, *steps]), encoding="utf-8")
    if sum(sizes) > MOST_BYTES:
        sys.exit(f"{sum(sizes)} bytes in {PICTURES}, more than {MOST_BYTES}; take fewer colours")


if __name__ == "__main__":
    main()

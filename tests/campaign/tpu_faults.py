"""Fault campaign on TPUs: whatever goes wrong in whatever state, a job comes to the defined end,
says why, and leaves nothing behind.

    python -m tests.campaign.tpu_faults [WORD...] [--jobs 3] [--patience 1] [--list]

Each case drives a real job (a distill stage, which needs no JAX) through
`infra.targets.open_backend` against the fakes of Cloud TPU and Cloud Storage in tests/, as
`tasks/stage.py` does: submit, poll to the end, submit again when the attempt was lost, cancel,
close. One fault strikes it in one state. Then it is asked: was there an end, the right one, with
the right words? Is the artifact committed where it should be, and what is left?
`tests/campaign/tpu_scenes.py` lists the cases. Prints a JSON line for each case and a table at the
end; exits 1 when anything is wrong.

WORDs choose the cases that contain all of them, and none after a `!`: `preempted running`, `!API`.
All times are multiplied by `--patience`, for slow machines.
"""

import argparse
import atexit
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from tests.campaign.tpu_play import play, submit
from tests.campaign.tpu_scenes import STATES, Case, cases
from tests.fakes.gcs_emulator import Emulator
from tests.fakes.tpu_fake import FakeTpu

BUCKET = "lyceum-faults"
TINY = """
name = "tiny"
model = "gemma3-tiny"

[stages.distill]
kind = "distill"
[[stages.distill.config.teachers]]
name = "procedural"
rows = { summarization = 1000 }
grounded = {}
"""


def settings(patience: float, scratch: str) -> dict[str, str]:
    """Settings that hurry. Two zones, so that there is another one to go to."""
    seconds = {
        "TPU_QUEUE_SECONDS": 4,
        "TPU_BOOT_SECONDS": 15,
        "TPU_SILENCE_SECONDS": 6,
        "TPU_DELETE_SECONDS": 16,
        "LEASE_SECONDS": 5,
    }
    return {
        "LYCEUM_ZONES": "us-central1-a,us-west4-a",
        "LYCEUM_FAR_BUCKET": "true",
        "LYCEUM_TPU_POLL_SECONDS": "0.05",
        "LYCEUM_POLL_SECONDS": "0.05",
        "LYCEUM_HEARTBEAT_SECONDS": "0.3",
        "LYCEUM_STOP_SECONDS": "2",
        "LYCEUM_RESTARTS": "2",
        "LYCEUM_CACHE": scratch,
        "GRPC_VERBOSITY": "NONE",  # connections that are reset are no news here
        **{f"LYCEUM_{name}": f"{value * patience:g}" for name, value in seconds.items()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", metavar="WORD")
    parser.add_argument("--jobs", type=int, default=3, help="cases side by side")
    parser.add_argument("--patience", type=float, default=1.0)
    parser.add_argument("--list", action="store_true", help="only say which cases there are")
    parser.add_argument("--submit", metavar="SPEC", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.submit:
        submit(Path(options.submit))
        return 0
    chosen = [case for case in cases() if all(_fits(case, word) for word in options.words)]
    if options.list or not chosen:
        print("\n".join(f"{case.state:13}{case.fault}" for case in chosen) or "no such case")
        return 0
    began = time.monotonic()
    with Emulator(BUCKET) as gcs, tempfile.TemporaryDirectory() as scratch:
        os.environ |= gcs.environment | settings(options.patience, scratch)
        recipe = Path(scratch) / "tiny.toml"
        recipe.write_text(TINY)
        context = multiprocessing.get_context("spawn")
        begin = {"initializer": _begin, "initargs": (gcs.environment,)}
        with ProcessPoolExecutor(options.jobs, mp_context=context, **begin) as pool:
            waiting = []
            for number, case in enumerate(chosen, 1):
                where = (f"gs://{BUCKET}/{number}", str(recipe), options.patience)
                waiting.append(pool.submit(_play, case.fault, case.state, *where))
            results = []
            for future in as_completed(waiting):
                results.append(future.result())
                print(json.dumps(results[-1]), flush=True)
    _table(results)
    wrong = [result for result in results if result["wrong"]]
    print(
        f"\n{len(results)} cases in {time.monotonic() - began:.0f} s: {len(wrong)} wrong,"
        f" {sum(not result['ended'] for result in results)} without an end,"
        f" {sum(len(result['left']) for result in results)} things left. From the end of a job to"
        f" nothing left: {max((result['cleaned_seconds'] for result in results), default=0.0):.1f}"
        " s at most."
    )
    for result in wrong:
        print(f"WRONG {result['fault']} while {result['state']}: {'; '.join(result['wrong'])}")
    return 1 if wrong else 0


def _fits(case: Case, word: str) -> bool:
    return (word.removeprefix("!") in f"{case.fault} {case.state}") != word.startswith("!")


_fake: list[FakeTpu] = []


def _begin(vm_environment: dict[str, str]) -> None:
    """A process of the pool begins: it has a cloud of its own."""
    fake = FakeTpu(vm_environment=vm_environment).__enter__()
    atexit.register(fake.__exit__)
    os.environ |= fake.environment
    _fake.append(fake)


def _play(fault: str, state: str, store: str, recipe: str, patience: float) -> dict[str, Any]:
    case = next(case for case in cases() if (case.fault, case.state) == (fault, state))
    return play(case, _fake[0], store, recipe, patience)


def _table(results: Sequence[dict[str, Any]]) -> None:
    cells = {(result["fault"], result["state"]): result for result in results}
    struck = {fault for fault, _ in cells}
    faults = list(dict.fromkeys(case.fault for case in cases() if case.fault in struck))
    width = max(map(len, faults))
    print("\n" + " " * width + "".join(f"  {state:15}" for state in STATES))
    for fault in faults:
        row = [cells.get((fault, state)) for state in STATES]
        print(f"{fault:{width}}" + "".join(f"  {_cell(one):15}" for one in row))


def _cell(result: dict[str, Any] | None) -> str:
    if result is None:
        return ""
    wrong = "WRONG " if result["wrong"] else ""
    return f"{wrong}{result['outcome']} {result['seconds']:.1f} s"


if __name__ == "__main__":
    sys.exit(main())

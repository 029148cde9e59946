"""`python -m tests.simulation`: plays histories until the number or the time is used up, and prints
each that breaks a law, made small. Exit code 1 if there was one."""

import argparse
import gc
import os
import sys
import time
from collections import Counter

AGAIN = "uv run python -m tests.simulation"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="the first seed; without, one of the clock's")
    parser.add_argument("--histories", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin none after them")
    parser.add_argument("--target", action="append", choices=("local", "v5e-8"))
    parser.add_argument(
        "--replay",
        action="store_true",
        help="print the history of the seed: made small if it breaks a law, else all of it",
    )
    given = parser.parse_args(arguments)
    from tests.simulation.history import play
    from tests.simulation.plan import drawn
    from tests.simulation.shrink import shrunk, told

    seed = int(time.time()) % 10**9 if given.seed is None else given.seed
    targets = given.target or ("local", "local", "v5e-8")
    if given.replay:
        result = play(drawn(seed, targets))
        if result.law:
            print(told(shrunk(result)))
            return 1
        print("\n".join([*result.plan.words(), *result.lines]))
        return 0
    chosen = "".join(f" --target {target}" for target in given.target or ())
    gc.freeze()  # what is imported is no garbage, and is not searched for any
    gc.set_threshold(50_000)
    virtual, played, broken = 0.0, 0, Counter[str]()
    began, busy = time.monotonic(), time.process_time()

    def tell() -> None:
        took, worked, hours = time.monotonic() - began, time.process_time() - busy, virtual / 3600
        print(
            f"seeds {seed} to {seed + played - 1}: {played} histories, {broken.total()} broken,"
            f" {played / took:.1f} a second ({played / worked:.1f} of the CPU), {hours:.1f} virtual"
            f" hours ({hours / took:.2f} a second, {hours / worked:.2f} of the CPU)",
            flush=True,
        )

    while played < given.histories and time.monotonic() - began < given.seconds:
        result = play(drawn(seed + played, targets))
        played, virtual = played + 1, virtual + result.seconds
        if result.law:
            broken[result.law] += 1
            if broken[result.law] <= 2:
                again = f"again: {AGAIN} --seed {result.plan.seed}{chosen} --replay"
                print(told(shrunk(result)), again, sep="\n", end="\n\n", flush=True)
            else:
                print(f"seed {result.plan.seed}: {result.how}", flush=True)
        if played % 500 == 0:
            tell()
    tell()
    for law, times in broken.most_common():
        print(f"  {times:5d}  {law}")
    return int(bool(broken))


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is a part of a history
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    sys.exit(main(sys.argv[1:]))

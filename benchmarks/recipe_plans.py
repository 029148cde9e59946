"""What shipped recipes take on a TPU, by `lyceum plan`: the table of docs/recipes.md.

    python -m benchmarks.recipe_plans [RECIPE ...] [--target v5e-8 --target v3-8] [--store DIR]

Each row that is computed replaces that recipe's and target's row in the file, with today's date;
the others stay as they are. A plan takes minutes when nothing of it is in the store.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

from flows.recipe.resolve import shipped_recipes
from infra.process import ROOT

FILE = ROOT / "docs" / "recipes.md"
TARGETS = ("v5e-8", "v3-8")
_ROW = re.compile(r"^\| `(?P<recipe>\w+)` \| (?P<target>[\w-]+) \|.*$", re.MULTILINE)


def planned(recipe: str, target: str, store: str) -> dict[str, Any] | None:
    """`lyceum plan --json`; None: it failed, and said why on stderr. Exit code 3 is a plan that
    does not fit."""
    command = (sys.executable, "-m", "flows.cli.main", "plan", recipe, "--target", target)
    done = subprocess.run(
        [*command, "--hours", "9", "--store", store, "--json"],
        cwd=ROOT,
        env={"HF_HUB_OFFLINE": "1", **os.environ},  # what is planned does not depend on the rows
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return json.loads(done.stdout) if done.returncode in (0, 3) and done.stdout else None


def row(recipe: str, target: str, plan: dict[str, Any]) -> str:
    """A line of the table; times are of the stages that are known."""
    hbm = [one["hbm_bytes"] for stage in plan["stages"] for one in stage["programs"] or ()]
    limit = [one["hbm_limit_bytes"] for stage in plan["stages"] for one in stage["programs"] or ()]
    seconds = sum(stage["seconds"] or 0 for stage in plan["stages"])
    usd = sum(stage["cost_usd"] or 0 for stage in plan["stages"])
    unknown = [stage["name"] for stage in plan["stages"] if stage["seconds"] is None]
    hours, minutes = divmod(int(seconds // 60), 60)
    return (
        f"| `{recipe}` | {target} | {'yes' if plan['fits'] else 'no'} |"
        f" {max(hbm, default=0) / 2**30:.1f} of {min(limit, default=0) / 2**30:.1f} |"
        f" {hours} h {minutes:02} min | {usd:.2f} | {', '.join(unknown) or '-'} |"
        f" {datetime.now(UTC):%Y-%m-%d} |"
    )


def put(line: str) -> None:
    """Into the file, in place of the row of the same recipe and target, or as the last one."""
    text = FILE.read_text(encoding="utf-8")
    wanted = _ROW.match(line)
    assert wanted
    old = next((one for one in _ROW.finditer(text) if one.groups() == wanted.groups()), None)
    rows = list(_ROW.finditer(text))
    start, end = old.span() if old else (rows[-1].end(), rows[-1].end())
    FILE.write_text(f"{text[:start]}{'' if old else chr(10)}{line}{text[end:]}", encoding="utf-8")


def main() -> None:
    """Plan, and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = sorted(shipped_recipes().keys() - {"quickstart", "open_data"})
    parser.add_argument("recipes", nargs="*", default=names, metavar="RECIPE")
    parser.add_argument("--target", action="append", choices=TARGETS)
    parser.add_argument("--store", default=".lyceum")
    given = parser.parse_args()
    for recipe in given.recipes:
        for target in given.target or TARGETS:
            plan = planned(recipe, target, given.store)
            if plan is None:
                print(f"{recipe} on {target}: not planned", file=sys.stderr)
                continue
            put(row(recipe, target, plan))
            print(row(recipe, target, plan))


if __name__ == "__main__":
    main()

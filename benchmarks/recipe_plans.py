"""Plan the shipped recipes for a TPU by `lyceum plan` and write what they take:
flows/recipes/takes.csv, which `lyceum recipes` and docs/recipes.md show.

    python -m benchmarks.recipe_plans [RECIPE ...] [--target v5e-8 --target v3-8] [--store DIR]

Each row that is computed replaces that recipe's and target's row in the file, with today's date;
the others stay as they are. What takes more than nine hours is planned once more with the settings
of `SHORTER`. A plan takes minutes when nothing of it is in the store.
"""

import csv
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import paired
from docs import reference
from flows.recipe.shipped import TAKES, Takes, shipped_recipes, takes
from infra.process import ROOT

TARGETS = ("v5e-8", "v3-8")

SHORTER = {
    "dipg_safety": (
        "stages.grpo.config.steps=800",
        "stages.grpo.config.rewards.1.penalties.to_step=800",
    ),
    "g_rar": ("stages.grpo.config.steps=190",),
    "gemma2_deep": ("stages.grpo.config.steps=200",),
    "legal": ("stages.grpo.config.steps=180",),
    "on_policy_distillation": (
        "stages.teacher_simpo.config.prompts=1024",
        "stages.teacher_grpo.config.steps=55",
    ),
}
"""Settings with which a recipe that takes longer on a v3-8 ends within nine hours there: fewer
updates by GRPO, which is most of their time."""


def planned(
    recipe: str, target: str, store: str, settings: Sequence[str] = ()
) -> dict[str, Any] | None:
    """`lyceum plan --json`; None: it failed, and said why on stderr. Exit code 3 is a plan that
    does not fit."""
    command = [sys.executable, "-m", "flows.cli.main", "plan", recipe, "--target", target]
    command += [word for one in settings for word in ("--set", one)]
    done = subprocess.run(
        [*command, "--hours", "9", "--store", store, "--json"],
        cwd=ROOT,
        env={"HF_HUB_OFFLINE": "1", **os.environ},  # a plan does not depend on the rows
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return json.loads(done.stdout) if done.returncode in (0, 3) and done.stdout else None


def row(recipe: str, target: str, plan: dict[str, Any], settings: Sequence[str] = ()) -> Takes:
    """A row of the file from a plan; times are of the stages that are known."""
    programs = [one for stage in plan["stages"] for one in stage["programs"] or ()]
    most = max((one["hbm_bytes"] for one in programs), default=0)
    limit = min((one["hbm_limit_bytes"] for one in programs), default=0)
    return Takes(
        recipe=recipe,
        target=target,
        by="plan",
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        minutes=int(plan["at_least"]["seconds"] // 60),
        usd=round(plan["at_least"]["cost_usd"], 2),
        fits="yes" if plan["fits"] else "no",
        most_gib=f"{most / 2**30:.1f}",
        limit_gib=f"{limit / 2**30:.1f}",
        without=" ".join(plan["at_least"]["without"]),
        settings=" ".join(settings),
    )


def put(recipe: str, target: str, new: Sequence[Takes]) -> None:
    """Into the file, in place of the rows of this recipe and target."""
    rows = [one for one in takes() if (one.recipe, one.target) != (recipe, target)]
    rows = sorted([*rows, *new], key=lambda one: (one.recipe, one.target != "v5e-8", one.target))
    with Path(str(TAKES)).open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [*Takes.model_fields], lineterminator="\n")
        writer.writeheader()
        writer.writerows({**one.model_dump(), "usd": f"{one.usd:.2f}"} for one in rows)


def main() -> None:
    """Plan, and write the rows."""
    made = paired.parser(__doc__)
    names = sorted(shipped_recipes().keys() - {"quickstart", "open_data"})
    made.add_argument("recipes", nargs="*", default=names, metavar="RECIPE")
    made.add_argument("--target", action="append", choices=TARGETS)
    made.add_argument("--store", default=".lyceum")
    given = made.parse_args()
    for recipe in given.recipes:
        for target in given.target or TARGETS:
            plan = planned(recipe, target, given.store)
            if plan is None:
                print(f"{recipe} on {target}: not planned", file=sys.stderr)
                continue
            rows = [row(recipe, target, plan)]
            settings = SHORTER.get(recipe, ())
            if not plan["fits"] and settings:
                shorter = planned(recipe, target, given.store, settings)
                rows += [row(recipe, target, shorter, settings)] if shorter else []
            put(recipe, target, rows)
            print(*rows, sep="\n")
    reference.write()


if __name__ == "__main__":
    main()

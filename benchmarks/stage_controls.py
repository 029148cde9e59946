"""Measure the preference stage and GRPO of a recipe beside their controls.

    python -m benchmarks.stage_controls RECIPE [--store DIR] [--seeds N] [--more STEPS]

The controls are stages that are added to the recipe and go on from its SFT model. `lyceum run` runs
recipe and controls in one store, so whatever is there is taken from it:

winners     the preference stage (kind simpo, dpo or orpo) with another loss: supervised training on
            the chosen responses of the same pairs, for the same steps in the same batches, which is
            ORPO's loss without its preference (`lambda_orpo = 0`)
dpo         the preference stage with DPO's loss, at its kind's defaults
grpo_alone  GRPO without the preference stage
more_sft    the SFT stage once more, from the SFT model on (its rates fall anew), for `--more`
            steps; by default as many as fit the seconds that both stages took under the first seed

Differences are paired over the held-out prompts, with a 95 % interval for each seed in turn. The
same command goes on after an interruption. Beside other work seconds say little: give `--more`.
"""

import copy
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import paired
from benchmarks.paired import heading, row
from flows.recipe.recipe_toml import recipe_toml
from flows.recipe.table import read_recipe
from flows.runs.effects import CORRECT, EXACT, Metric, change_between, outcomes
from flows.runs.record import read_run
from flows.runs.results import RunResults, read_results
from infra.process import ROOT
from infra.store.store import Store, open_store
from schemas.recipe import StageSpec, recipe_from_table
from tasks.contract.kind import Product
from tasks.contract.kinds import kinds_producing
from tasks.training.preference_kind import PreferenceConfig

PREFERENCES = ("simpo", "dpo", "orpo")
Table = dict[str, Any]
"""A table of TOML: a recipe's stages, or a stage."""


def main() -> None:
    made = paired.parser(__doc__)
    made.add_argument("recipe")
    made.add_argument("--store", default=".lyceum")
    made.add_argument("--seeds", type=int, default=1)
    made.add_argument("--more", type=int, metavar="STEPS")
    options = made.parse_args()
    about, store = paired.machine(), open_store(options.store)
    table = read_recipe(options.recipe, None)
    chain = [one_of(table.recipe.stages, kinds) for kinds in (("sft",), PREFERENCES, ("grpo",))]
    sft, preference, grpo = chain
    more = options.more or steps_for_both(launched(table.values, store, options.seeds), *chain)
    stages = copy.deepcopy(table.values["stages"])
    added = controls(stages, sft, preference, grpo, more)
    for name, stage in added.items():
        stages[name] = stage
        stages |= evaluations(stages, name, sft, grpo)
    runs = launched({**table.values, "stages": stages}, store, options.seeds)
    heading("", "exact answer", "since SFT", "beside as shipped", "grounded right")
    show(runs, sft)
    show(runs, preference, sft)
    show(runs, "winners", sft, preference)
    show(runs, "dpo", sft, preference)
    show(runs, grpo, sft)
    show(runs, "grpo_alone", sft, grpo)
    show(runs, "more_sft", sft, grpo)
    print(f"\n{about}; {options.recipe}, seeds {', '.join(map(str, runs))}; more_sft: {more} steps")


def one_of(stages: Sequence[StageSpec], kinds: Sequence[str]) -> str:
    """The name of the recipe's stage of these kinds. Raises SystemExit: it has none, or several."""
    found = [stage.name for stage in stages if stage.kind in kinds]
    if len(found) != 1:
        said = f"the recipe has {len(found)} stages of kind {' or '.join(kinds)}"
        raise SystemExit(f"{said}; the controls need one that has one")
    return found[0]


def steps_for_both(runs: Mapping[int, RunResults], sft: str, preference: str, grpo: str) -> int:
    """How many steps of SFT take as long as the two stages after it, by the wall time of the jobs
    under the first seed."""
    stages = next(iter(runs.values())).stages
    made = {name: one.manifest for name, one in stages.items() if one.manifest}
    first, *both = (made[name].execution["seconds"] for name in (sft, preference, grpo))
    told = made[sft].metrics  # of a recipe in epochs, its config has 0 steps
    steps = told["epochs"] * told["rows"] / made[sft].config["batch_size"]
    return round(steps * sum(both) / first)


def controls(stages: Table, sft: str, preference: str, grpo: str, more: int) -> Table:
    """The stages that are added, by name."""
    again = {**stages[sft]["config"], "steps": more}
    again.pop("epochs", None)
    return {
        "winners": with_loss(stages[preference], "orpo", lambda_orpo=0.0),
        "dpo": with_loss(stages[preference], "dpo"),
        "grpo_alone": begun_from(stages[grpo], sft),
        "more_sft": {**begun_from(stages[sft], sft), "config": again},
    }


def with_loss(stage: Table, kind: str, **own: float) -> Table:
    """A preference stage with another loss: the settings that these kinds share stay."""
    shared = PreferenceConfig.model_fields
    config = {key: value for key, value in stage["config"].items() if key in shared}
    return {**stage, "kind": kind, "config": {**config, **own}}


def begun_from(stage: Table, policy: str) -> Table:
    return {**stage, "inputs": {**stage["inputs"], "policy": policy}}


def evaluations(stages: Table, name: str, sft: str, grpo: str) -> Table:
    """The evaluations of a stage that is added: of each kind the SFT model's, else GRPO's."""
    asked: Table = {}
    for policy in (grpo, sft):
        for stage in stages.values():
            mine = stage.get("inputs", {}).get("policy") == policy
            if mine and stage["kind"] in kinds_producing(Product.ANSWERS):
                inputs = {key: of for key, of in stage["inputs"].items() if key != "baseline"}
                asked[f"{name}_{stage['kind']}"] = begun_from({**stage, "inputs": inputs}, name)
    return asked


def launched(values: Table, store: Store, seeds: int) -> dict[int, RunResults]:
    """Seed -> what `lyceum run` left. Raises SystemExit where a run did not succeed."""
    recipe = recipe_from_table(values, "with its controls")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{recipe.name}.toml"
        path.write_text(recipe_toml(recipe), encoding="utf-8")
        command = [sys.executable, "-m", "flows.cli.main", "run", str(path), "--store", store.uri]
        command += ["--json", *(["--seeds", str(seeds)] if seeds > 1 else [])]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}")
    ended = json.loads(done.stdout)
    runs = [read_run(store, one["run_id"]) for one in ended.get("seeds", [ended])]
    return {run.recipe.seed: read_results(store, run) for run in runs}


def show(runs: Mapping[int, RunResults], name: str, *others: str) -> None:
    """A line of the table: a model's rates, and its differences from each of `others`."""
    compared = [differences(runs, other, name) for other in others] + ["", ""]
    row(name, rates(runs, name, EXACT), *compared[:2], rates(runs, name, CORRECT))


def judged(run: RunResults, name: str, metric: Metric) -> dict[str, Any]:
    return outcomes(run.models[name].items(metric.kind), metric)


def rates(runs: Mapping[int, RunResults], name: str, metric: Metric) -> str:
    """The rate under each seed, "88.4, 90.2 %"; empty where nothing was asked."""
    found = [[*judged(run, name, metric).values()] for run in runs.values()]
    shown = [f"{100 * sum(one) / len(one):.1f}" for one in found if one]
    return ", ".join(shown) + " %" * bool(shown)


def differences(runs: Mapping[int, RunResults], before: str, after: str) -> str:
    """The paired difference of exact answers under each seed in points, "+0.4 [-0.2, 1.1]"."""
    shown = []
    for seed, run in runs.items():
        change = change_between(judged(run, before, EXACT), judged(run, after, EXACT), seed)
        if change is not None:
            low, high = (100 * end for end in (change.interval.low, change.interval.high))
            shown.append(f"{100 * change.delta:+.1f} [{low:.1f}, {high:.1f}]")
    return ", ".join(shown)


if __name__ == "__main__":
    main()

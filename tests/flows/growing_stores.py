"""Synthetic recipes and stores: so many stages, artifacts and runs, made through the store's own
API."""

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flows.recipe.resolve import ResolvedRecipe, ResolvedStage, resolve
from flows.runs.record import record_name
from infra.process_identity import this_process
from infra.store.lease import LeaseRecord
from infra.store.store import Store, attempt_file
from schemas.artifact import ArtifactRef, Manifest, stage_key
from schemas.evaluation import HELDOUT
from schemas.reports import RunRecord, StageRecord
from tests.flows.runs import synthetic_run

THREADS = 8
HEAD = """\
name = "growth"
model = "gemma3-tiny"
seed = 7
[stages.distill]
kind = "distill"
[[stages.distill.config.teachers]]
name = "procedural"
rows = { math = 200 }
[stages.rebalance]
kind = "rebalance"
inputs = { examples = "distill" }
config = { quotas = { math = { train = 64, validation = 4, heldout = 8 } } }
"""
LENGTHS = "prompt_length = 60\nresponse_length"
REWARDS = '[{ name = "format", weight = 0.2 }, { name = "exact_answer", weight = 1.0 }]'
TRAIN = {
    "sft": "steps = 8\nbatch_size = 2\nsequence_length = 128\noptimizer.learning_rate = 1e-3",
    "simpo": (
        f"steps = 4\nbatch_size = 2\nprompts = 8\n{LENGTHS} = 60\noptimizer.learning_rate = 2e-5"
    ),
    "grpo": (
        f"steps = 4\nbatch_size = 8\ngroup_size = 4\n{LENGTHS} = 24\nrewards = {REWARDS}\n"
        "optimizer.learning_rate = 4e-4"
    ),
}


def recipe_text(stages: int) -> str:
    """A recipe of so many stages: after the data, one chain of SFT, SimPO and GRPO again and again,
    each model evaluated twice."""
    parts, policy, evaluations = [HEAD], "", {"reasoning_eval": "", "safety_eval": ""}
    for number in range(stages - 2):
        model, place = divmod(number, 3)
        if place == 0:
            kind = tuple(TRAIN)[model % 3]
            inputs = 'examples = "rebalance"' if kind == "sft" else 'prompts = "rebalance"'
            inputs += f', policy = "{policy}"' if policy else ""
            policy = f"{kind}{model}"
            parts.append(_stage(policy, kind, inputs, f"seed = {model}\n{TRAIN[kind]}"))
        else:
            kind = tuple(evaluations)[place - 1]
            before, name = evaluations[kind], f"{kind}{model}"
            inputs = f'prompts = "rebalance", policy = "{policy}"'
            inputs += f', baseline = "{before}"' if before else ""
            parts.append(
                _stage(name, kind, inputs, f"{LENGTHS} = 24\nbatch_size = 4\nmin_items = 8")
            )
            evaluations[kind] = name
    return "".join(parts)


def _stage(name: str, kind: str, inputs: str, config: str) -> str:
    head = f'[stages.{name}]\nkind = "{kind}"\ninputs = {{ {inputs} }}\n'
    return f"{head}[stages.{name}.config]\n{config}\n"


def write_recipe(path: Path, stages: int) -> ResolvedRecipe:
    """Write the recipe and resolve it."""
    path.write_text(recipe_text(stages), encoding="utf-8")
    return resolve(str(path))


def commit_chain(store: Store, resolved: ResolvedRecipe, scratch: Path) -> list[Manifest]:
    """The artifacts that a run of the recipe would leave, under the keys that it would look up,
    with files that its report can read."""
    made: dict[str, Manifest] = {}
    for stage in resolved.stages:
        out = scratch / f"{stage.name}-out"
        out.mkdir(parents=True)
        skill: defaultdict[str, float] = defaultdict(lambda: 0.5, base=0.0)
        table = resolved.recipe.stage(stage.name)
        sizes = ("held", (HELDOUT,), 5, 0, 0)
        metrics = synthetic_run.write_stage(table, out, skill, stage.name, *sizes)
        inputs = {name: made[source].ref() for name, source in stage.inputs.items()}
        made[stage.name] = _commit(store, stage, stage.config_json, inputs, metrics, out)
    return list(made.values())


def fill_artifacts(store: Store, resolved: ResolvedRecipe, numbers: range, scratch: Path) -> None:
    """Artifacts of no run, each of its own seed: the stages of the recipe in turns, two small files
    and a released lease each."""
    inputs = {"policy": ArtifactRef(kind="sft", key="0" * 64, digest="0" * 64)}
    mark = {"owner": "growth", "nonce": "0" * 16, "renewed": 0.0, "released": True}
    released = LeaseRecord(**this_process().model_dump(), **mark)

    def one(number: int) -> None:
        stage, out = resolved.stages[number % len(resolved.stages)], scratch / f"filled-{number}"
        out.mkdir(parents=True)
        for name in ("state.json", "rows.jsonl"):
            (out / name).write_text(f'{{"number": {number}}}\n', encoding="utf-8")
        config = stage.config_json | {"seed": 1_000_000 + number}
        made = _commit(store, stage, config, inputs, {"loss_last": 1.0}, out)
        store.create_json(attempt_file(made.key, "1", "lease.json"), released)

    _all(one, numbers)


def fill_runs(
    store: Store, resolved: ResolvedRecipe, made: Sequence[Manifest], numbers: range
) -> None:
    """Finished runs of the recipe, one a minute, that all found everything cached; none of them was
    a nightly one."""
    same = {"status": "cached", "seconds": 0.1}
    stages = tuple(
        StageRecord(
            **same,
            **made.model_dump(include={"kind", "key", "metrics"}),
            artifact=made.ref(),
            name=of,
        )
        for of, made in zip([stage.name for stage in resolved.stages], made, strict=True)
    )
    shared = {"recipe": resolved.recipe, "target": "local", "store": store.uri, "stages": stages}

    def one(number: int) -> None:
        time = f"{number // 3600:02d}{number // 60 % 60:02d}{number % 60:02d}"
        name, began = f"growth-20250101-{time}-{number:04x}", 1_735_689_600.0 + 60 * number
        ran = {"status": "succeeded", "started": began, "finished": began + 50}
        store.write_json(record_name(name), RunRecord(run_id=name, **shared, **ran))

    _all(one, numbers)


@contextmanager
def hurried() -> Iterator[None]:
    """Nothing waits for the disk meanwhile: what is made here need not survive a power cut."""
    fsync, os.fsync = os.fsync, lambda descriptor: None
    try:
        yield
    finally:
        os.fsync = fsync


def _all(one: Callable[[int], None], numbers: range) -> None:
    with hurried(), ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(one, numbers))


def _commit(
    store: Store,
    stage: ResolvedStage,
    config: dict[str, Any],
    inputs: dict[str, ArtifactRef],
    metrics: dict[str, Any],
    out: Path,
) -> Manifest:
    digests = {name: ref.digest for name, ref in inputs.items()}
    code = {"kind": stage.kind, "version": stage.version, "dependencies": stage.dependencies}
    key = stage_key(**code, config=config, inputs=digests)
    made = {"attempt": "1", "files": (), "execution": {"target": "local", "seconds": 12.0}}
    draft = Manifest(key=key, **code, config=config, inputs=inputs, metrics=metrics, **made)
    return store.commit(draft, out)

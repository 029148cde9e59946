"""Synthetic recipes and stores: so many stages, artifacts and runs, made through the store's own
API."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows.recipe.resolve import ResolvedRecipe, ResolvedStage, resolve
from flows.runs.record import record_name
from infra.process_identity import this_process
from infra.store.lease import LeaseRecord
from infra.store.store import Store, attempt_file
from schemas.artifact import ArtifactRef, Manifest, stage_key
from schemas.reports import RunRecord, StageRecord

HEAD = """\
name = "growth"
model = "gemma3-tiny"
seed = 7
[stages.distill]
kind = "distill"
[[stages.distill.config.teachers]]
name = "procedural"
rows = { math = 200 }
"""
REBALANCE = """\
[stages.rebalance{number}]
kind = "rebalance"
inputs = {{ examples = "distill" }}
config = {{ quotas = {{ math = {{ train = 64, validation = 4, heldout = 8 }} }} }}
"""
SFT = """\
[stages.sft]
kind = "sft"
inputs = { examples = "rebalance" }
config = { steps = 8, batch_size = 2, sequence_length = 128, optimizer.learning_rate = 1e-3 }
"""


def write_recipe(path: Path, stages: int) -> ResolvedRecipe:
    """Write and resolve a recipe of so many stages: data, mixed in so many ways that they are
    enough, and one model."""
    mixed = [REBALANCE.format(number=number) for number in ("", *range(2, stages - 1))]
    path.write_text("".join([HEAD, *mixed, SFT]), encoding="utf-8")
    return resolve(str(path))


def commit_chain(store: Store, resolved: ResolvedRecipe, scratch: Path) -> list[Manifest]:
    """The artifacts that a run of the recipe would leave, under the keys that it would look up."""
    made: dict[str, Manifest] = {}
    for stage in resolved.stages:
        inputs = {name: made[source].ref() for name, source in stage.inputs.items()}
        made[stage.name] = commit_stage(store, stage, scratch / stage.name, inputs)
    return list(made.values())


def fill_artifacts(store: Store, resolved: ResolvedRecipe, numbers: range, scratch: Path) -> None:
    """Artifacts of no run, each of its own seed: the stages of the recipe in turns, and a released
    lease each."""
    inputs = {"policy": ArtifactRef(kind="sft", key="0" * 64, digest="0" * 64)}
    mark = {"owner": "growth", "nonce": "0" * 16, "renewed": 0.0, "released": True}
    released = LeaseRecord(**this_process().model_dump(), **mark)
    for number in numbers:
        stage = resolved.stages[number % len(resolved.stages)]
        seed, out = {"seed": 1_000_000 + number}, scratch / f"filled-{number}"
        made = commit_stage(store, stage, out, inputs, stage.config_json | seed)
        store.create_json(attempt_file(made.key, "1", "lease.json"), released)


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
    for number in numbers:
        time = f"{number // 3600:02d}{number // 60 % 60:02d}{number % 60:02d}"
        name, began = f"growth-20250101-{time}-{number:04x}", 1_735_689_600.0 + 60 * number
        ran = {"status": "succeeded", "started": began, "finished": began + 50}
        store.write_json(record_name(name), RunRecord(run_id=name, **shared, **ran))


def commit_stage(
    store: Store,
    stage: ResolvedStage,
    out: Path,
    inputs: dict[str, ArtifactRef] | None = None,
    config: dict[str, Any] | None = None,
    *,
    target: str = "local",
    seconds: float = 12.0,
) -> Manifest:
    """The artifact of a stage that has run: one small file, which is put down in `out` before."""
    inputs, config = inputs or {}, config or stage.config_json
    out.mkdir(parents=True)
    (out / "rows.jsonl").write_text(f'{{"of": "{out.name}"}}\n', encoding="utf-8")
    digests = {name: ref.digest for name, ref in inputs.items()}
    code = {"kind": stage.kind, "version": stage.version, "dependencies": stage.dependencies}
    key = stage_key(**code, config=config, inputs=digests)
    made = {"attempt": "1", "files": (), "execution": {"target": target, "seconds": seconds}}
    return store.commit(Manifest(key=key, **code, config=config, inputs=inputs, **made), out)

"""`lyceum export`: the model of a run's stage as a Hugging Face directory, proven in
`transformers`, with its lineage in the model card.

It loads JAX, and then torch, into its own process. The directory appears under its name once it is
complete and proven, or not at all.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flows.cli.ask import start_jax
from flows.cli.new_directory import new_directory, require_new
from flows.recipe.recipe_toml import recipe_toml
from flows.recipe.trained import trained_stage
from flows.runs.results import BASE, Model, RunResults, StageOutput, left_out_text, read_results
from infra.context import context
from infra.store.store import Store
from schemas.artifact import Manifest
from schemas.base import InputError, StageFailed
from schemas.reports import RunRecord
from tasks.data.data_files import files_below
from tasks.models.adapters import ADAPTERS
from tasks.models.model_source import ADAPTER_CONFIG, source_of

if TYPE_CHECKING:
    from tasks.exporting.model_card import Card


def export(
    store: Store,
    record: RunRecord,
    to: Path,
    stage: str | None,
    dtype: Literal["float32", "bfloat16"] | None,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Export the model of `stage` (the last trained stage by default) to the directory `to`, which
    is made.

    Args:
        dtype: in which the proof computes; None: there is no proof, and the card says so.
        say: told what is being done.

    Raises:
        InputError: the run has no such model, `to` cannot be made or holds something, or torch is
            not installed.
        StageFailed: an artifact of the run is gone or damaged, or `transformers` finds another
            model than was trained; nothing is left.
    """
    chosen, manifest = trained_stage(store, record, stage)
    to = require_new(to)
    start_jax()
    from tasks.exporting.exported import export_model
    from tasks.exporting.round_trip import require_transformers

    if dtype is not None:
        require_transformers()  # before anything is downloaded
    card, prompts = card_of(store, record, chosen.name)
    with new_directory(to) as partial:
        proof = export_model(store.local_dir(manifest), partial, card, prompts, dtype, say)
    return {**_told(record, manifest, chosen.name, to), "verification": proof and asdict(proof)}


def card_of(store: Store, record: RunRecord, stage: str) -> tuple["Card", list[str]]:
    """The card of a stage's model, and some prompts of its evaluations. Raises StageFailed when
    artifacts of the run are gone or damaged."""
    from tasks.exporting.exported import PROMPTS_OF_EVALUATION

    results = read_results(store, record)
    if results.left_out:
        raise StageFailed(
            f"run {record.run_id!r} cannot be exported, because its card would leave something out:"
            f" {left_out_text(results.left_out)}. `lyceum run` with the same recipe makes it again."
        )
    made = _lineage(results, stage)
    asked = [output for found in made[-1].evaluations.values() for output in found]
    prompts = [item.prompt for output in asked for item in output.items[:PROMPTS_OF_EVALUATION]]
    return _card(results, stage, made, asked), prompts


def export_adapters(store: Store, record: RunRecord, to: Path, stage: str | None) -> dict[str, Any]:
    """Write the adapters of `stage` (the last trained one by default) to the new directory `to`;
    with a card, if their base model is published.

    Raises:
        InputError: the run has no such model, it was trained without keeping any, or their base
            may be multimodal and is out of reach.
        StageFailed: the artifact is damaged.
    """
    chosen, manifest = trained_stage(store, record, stage)
    to = require_new(to)
    source = store.local_dir(manifest) / ADAPTERS
    if not source.is_dir():
        raise InputError(
            f"stage {chosen.name!r} kept no adapters: run it with --set"
            f" stages.{chosen.name}.config.lora.keep=true (and lora.rank, lora.alpha, if it has"
            " none)."
        )
    start_jax()
    with new_directory(to) as partial:
        for path in sorted(source.iterdir()):
            shutil.copyfile(path, partial / path.name)
        if _adapt_multimodal(record, chosen.name, source.parent):
            from tasks.models.peft import name_within_multimodal

            name_within_multimodal(partial)
        config = json.loads((partial / ADAPTER_CONFIG).read_text(encoding="utf-8"))
        if base := config.get("base_model_name_or_path"):
            from tasks.exporting.model_card import write_card
            from tasks.models.hf_config import read_config

            card, _ = card_of(store, record, chosen.name)
            write_card(
                partial, replace(card, beside=base), None, read_config(source.parent)[0].family
            )
    return _told(record, manifest, chosen.name, to)


def _adapt_multimodal(record: RunRecord, stage: str, artifact: Path) -> bool:
    """Whether a stage's adapters belong to a model that sees images, too. Raises InputError when
    that is out of reach."""
    from tasks.data.tokens import Tokenizer
    from tasks.models.hf_config import is_multimodal, read_config
    from tasks.models.hf_directory import TOKENIZER
    from tasks.models.model_download import fetch

    inputs = next(one.inputs for one in record.recipe.stages if one.name == stage)
    if "policy" in inputs:  # it adapts the model of a stage, which is text alone
        return False
    if read_config(artifact)[0].vocab_size == len(Tokenizer.from_file(artifact / TOKENIZER)):
        return False  # there are no rows for images
    return is_multimodal(fetch(source_of(record.recipe.model), context().settings, weights=False))


def export_orbax(
    store: Store, record: RunRecord, to: Path, stage: str | None, say: Callable[[str], None]
) -> dict[str, Any]:
    """Write the model of `stage` (the last trained one by default) as an Orbax checkpoint to the
    new directory `to`.

    Raises:
        InputError: the run has no such model, it is no Gemma 3, or `to` cannot be made.
        StageFailed: the artifact is damaged, or the checkpoint is not what was written.
    """
    chosen, manifest = trained_stage(store, record, stage)
    to = require_new(to)
    start_jax()
    from tasks.exporting.orbax_checkpoint import export_orbax as write

    with new_directory(to) as partial:
        write(store.local_dir(manifest), partial, say)
    return _told(record, manifest, chosen.name, to)


def _told(record: RunRecord, manifest: Manifest, stage: str, to: Path) -> dict[str, Any]:
    """The answer about the exported directory."""
    return {
        "run_id": record.run_id,
        "stage": stage,
        "artifact": manifest.ref().model_dump(mode="json"),
        "directory": str(to),
        "files": {name: (to / name).stat().st_size for name in files_below(to)},
    }


def _lineage(results: RunResults, stage: str) -> list[Model]:
    """The model of `stage` and those it was trained from, the base first."""
    line = [results.models[stage]]
    while line[0].parent is not None:
        line.insert(0, results.models[line[0].parent])
    return line


def _card(results: RunResults, stage: str, line: list[Model], asked: list[StageOutput]) -> "Card":
    """The card of the model of `stage`, the last of `line`; `asked`: its evaluations."""
    from tasks.exporting.model_card import Card, Evaluation, format_taught

    record = results.record
    names = {model.name: model.name for model in line} | {BASE: f"{record.recipe.model} (base)"}
    # after the first those evaluated with worked examples
    prompted = [one for name, one in results.prompted.items() if name.split(", ")[0] in names]
    shown = [*line[:1], *prompted, *line[1:]]
    names |= {one.name: one.name.replace(BASE, names[BASE], 1) for one in shown if one not in line}
    evaluations = [
        Evaluation(names[model.name], kind, output.metrics)
        for model in shown
        for kind, outputs in model.evaluations.items()
        for output in outputs
    ]
    manifest = results.stages[stage].manifest
    packages = manifest.execution.get("packages", {}) if manifest else {}
    return Card(
        title=f"{record.recipe.name}: {stage}",
        base=record.recipe.model,
        evaluations=evaluations,
        origins=_origins(results, stage, shown),
        recipe=recipe_toml(record.recipe),
        versions={name: version for name, version in packages.items() if version},
        channels=format_taught(item for output in asked for item in output.items),
        model=stage,
    )


def _origins(results: RunResults, stage: str, shown: list[Model]) -> list[Any]:
    """Every stage in the model's lineage, and those that evaluated one of the models shown."""
    from tasks.exporting.model_card import Origin

    evaluations = [outputs for model in shown for outputs in model.evaluations.values()]
    wanted = [stage, *(output.name for outputs in evaluations for output in outputs)]
    found: set[str] = set()
    while wanted:
        name = wanted.pop()
        found.add(name)
        sources = results.stages[name].spec.inputs.values()
        wanted += [source for source in sources if source not in found]
    return [
        Origin(
            stage=output.name,
            kind=output.spec.kind,
            version=output.manifest.version,
            inputs=", ".join(f"{name}: {source}" for name, source in output.spec.inputs.items()),
            key=output.manifest.key,
            digest=output.manifest.digest,
        )
        for output in results.stages.values()
        if output.name in found and output.manifest is not None
    ]

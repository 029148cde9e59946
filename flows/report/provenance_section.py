"""The report's last part: how long each stage took, what made it, and how to make it again."""

import base64
import itertools
import shlex
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from markupsafe import Markup

from flows.report import plots
from flows.report.recipe_toml import recipe_toml
from flows.report.training_section import flat_metrics
from flows.runs.results import RunResults, StageOutput
from flows.runs.wording import duration, size


@dataclass(frozen=True)
class StageRow:
    """One stage: what happened in this run, and what its artifact says of when it was made. Times
    and memory are text, empty if unknown."""

    name: str
    kind: str
    status: str
    seconds: str
    made_in: str
    peak_memory: str
    inputs: str
    version: str
    key: str
    digest: str
    size: str
    problem: str | None


def stage_rows(run: RunResults) -> list[StageRow]:
    """Every stage of the recipe, reached or not."""
    return [_stage_row(stage) for stage in run.stages.values()]


def _stage_row(stage: StageOutput) -> StageRow:
    record, manifest = stage.record, stage.manifest
    execution = manifest.execution if manifest else {}
    return StageRow(
        name=stage.name,
        kind=stage.spec.kind,
        status=stage.status,
        seconds=duration(record.seconds) if record and record.status != "running" else "",
        made_in=duration(execution["seconds"]) if "seconds" in execution else "",
        peak_memory=", ".join(
            f"{size(execution[name])}{of_what}"
            for name, of_what in _PEAKS.items()
            if name in execution
        ),
        inputs=", ".join(f"{name}: {source}" for name, source in stage.spec.inputs.items()),
        version=str(manifest.version) if manifest else "",
        key=(record.key if record else None) or "",
        digest=manifest.digest if manifest else "",
        size=size(sum(entry.size for entry in manifest.files)) if manifest else "",
        problem=stage.problem,
    )


_PEAKS = {"peak_rss_bytes": "", "peak_device_bytes": " on a device"}
"""A stage's peaks of memory, of its process and of its fullest device, and how they are told
apart."""


def times(run: RunResults) -> Markup | None:
    """Seconds per stage of this run; None when no stage has ended."""
    ended = [
        stage.record
        for stage in run.stages.values()
        if stage.record and stage.record.status != "running"
    ]
    return (
        plots.stage_times(
            "Time per stage", [(record.name, record.seconds, record.status) for record in ended]
        )
        if ended
        else None
    )


def lineage(run: RunResults) -> Markup:
    """Which stage feeds which. An input that also reaches the stage through another of its inputs
    is not drawn, so that arrows stay few."""
    depth: dict[str, int] = {}
    above: dict[str, set[str]] = {}
    edges = []
    for stage in run.stages.values():
        sources = set(stage.spec.inputs.values())
        depth[stage.name] = max((depth[source] + 1 for source in sources), default=0)
        above[stage.name] = sources.union(*(above[source] for source in sources))
        edges += [
            (source, stage.name)
            for source in sorted(sources)
            if not any(source in above[other] for other in sources)
        ]
    status = {stage.name: stage.status for stage in run.stages.values()}
    return plots.lineage("Lineage: what each stage was made from", depth, edges, status)


def environments(run: RunResults) -> list[tuple[str, str, str]]:
    """What ran the flow and made the artifacts: host, Python, packages, commit, as `(field, value,
    of what)`; equal values are one row."""
    found: dict[tuple[str, str], list[str]] = {}
    for of_what, execution in _executions(run):
        for field, value in flat_metrics(
            {key: value for key, value in execution.items() if key not in _PER_STAGE}
        ):
            found.setdefault((field.removeprefix("packages."), value), []).append(of_what)
    stages = sum(1 for of_what, _ in _executions(run) if of_what != _FLOW)
    rows = []
    for (field, value), whose in sorted(found.items()):
        made = [name for name in whose if name != _FLOW]
        artifacts = "all artifacts" if len(made) == stages and stages > 1 else ", ".join(made)
        rows.append(
            (field, value, ", ".join(filter(None, [_FLOW if _FLOW in whose else "", artifacts])))
        )
    return rows


_FLOW = "the flow"
_PER_STAGE = ("seconds", "started", *_PEAKS, "unit", "unit_seconds", "command")


def _executions(run: RunResults) -> list[tuple[str, dict[str, Any]]]:
    made = [
        (stage.name, stage.manifest.execution) for stage in run.stages.values() if stage.manifest
    ]
    return [(_FLOW, run.record.execution), *made]


@dataclass(frozen=True)
class Reproduction:
    """The resolved recipe as TOML and as a data URI to save it, the command that runs it, and the
    command that was given."""

    toml: str
    file: str
    link: str
    command: str
    given: str | None


def reproduction(run: RunResults) -> Reproduction:
    """How to run this again, `--set` changes included."""
    toml = recipe_toml(run.record.recipe)
    file = f"{run.record.recipe.name}.toml"
    link = "data:application/toml;base64," + base64.b64encode(toml.encode("utf-8")).decode("ascii")
    argv = [str(argument) for argument in run.record.execution.get("command", [])]
    by_lyceum = (
        bool(argv) and PurePath(argv[0]).name == "lyceum"
    )  # a flow started in the Prefect UI was given no command
    given = shlex.join(["lyceum", *argv[1:]]) if by_lyceum else None
    command = shlex.join(
        ["lyceum", "run", f"./{file}", "--target", run.record.target, *_data_argument(argv)]
    )
    return Reproduction(toml, file, link, command, given)


def _data_argument(argv: list[str]) -> list[str]:
    """`--data DIR` as it was given, in either of its two forms."""
    for argument, following in itertools.pairwise([*argv, ""]):
        if argument == "--data" or argument.startswith("--data="):
            return [
                "--data",
                following if argument == "--data" else argument.removeprefix("--data="),
            ]
    return []

"""Provenance: lineage, keys, digests, machines, versions."""

from flows.recipe.explain import flat
from flows.report import plots
from flows.report.blocks import Block, Column, Details, Figure, Table, Text, code, grid
from flows.report.section import Section
from flows.runs.results import RunResults, StageOutput
from flows.runs.wording import figure, size

_KEYS = (
    "stage",
    Column("kind", "text"),
    Column("inputs", "wrap"),
    "version",
    Column("key", "wrap"),
    Column("digest", "wrap"),
    "size",
)
_FLOW = "the flow"
_PER_STAGE = (
    *("seconds", "started", "peak_rss_bytes", "peak_device_bytes", "unit", "unit_seconds"),
    "command",
)
"""Fields of a stage or a run, not of its machine."""


def blocks(run: RunResults) -> list[Block]:
    """The lineage, and two folded tables."""
    keys = Table(_KEYS, [_row(stage) for stage in run.stages.values()])
    machines = Table(("what", Column("value", "wrap"), Column("of", "wrap")), environments(run))
    return [
        *grid([lineage(run)]),
        Details("Keys and digests", [keys]),
        Details("Machine and versions", [machines]),
    ]


def _row(stage: StageOutput) -> tuple[Text, ...]:
    record, manifest = stage.record, stage.manifest
    inputs = ", ".join(f"{name}: {source}" for name, source in stage.spec.inputs.items())
    key = code((record.key if record else None) or "")
    if manifest is None:
        return stage.name, stage.spec.kind, inputs, "", key, "", ""
    total = size(sum(entry.size for entry in manifest.files))
    made = str(manifest.version), key, code(manifest.digest), total
    return stage.name, stage.spec.kind, inputs, *made


def lineage(run: RunResults) -> Figure:
    """List which stage feeds which. An input that also reaches the stage through another of its
    inputs is not drawn, so that arrows stay few."""
    depth: dict[str, int] = {}
    above: dict[str, set[str]] = {}
    edges = []
    for stage in run.stages.values():
        sources = set(stage.spec.inputs.values())
        depth[stage.name] = max((depth[source] + 1 for source in sources), default=0)
        above[stage.name] = sources.union(*(above[source] for source in sources))
        drawn = (one for one in sources if not any(one in above[other] for other in sources))
        edges += [(source, stage.name) for source in sorted(drawn)]
    status = {stage.name: stage.status for stage in run.stages.values()}
    return plots.lineage("Lineage: what each stage was made from", depth, edges, status)


def environments(run: RunResults) -> list[tuple[str, str, str]]:
    """The environments of the flow and of the artifacts: host, Python, packages, commit, as
    `(field, value, of what)`; equal values are one row."""
    made = {one.name: one.manifest.execution for one in run.stages.values() if one.manifest}
    found: dict[tuple[str, str], list[str]] = {}
    for of_what, execution in [(_FLOW, run.record.execution), *made.items()]:
        stated = {key: value for key, value in execution.items() if key not in _PER_STAGE}
        for field, value in flat("", stated).items():
            name = field.removeprefix("packages."), figure(value)
            found.setdefault(name, []).append(of_what)
    rows = []
    for (field, text), whose in sorted(found.items()):
        stages = [name for name in whose if name != _FLOW]
        every = len(stages) == len(made) > 1
        said = ["all artifacts"] if every else stages
        rows.append((field, text, ", ".join([_FLOW] * (_FLOW in whose) + said)))
    return rows


SECTION = Section(title="Provenance", heading="Provenance", order=90, blocks=blocks)

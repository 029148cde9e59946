"""Items as Parquet, one file per evaluation: a row per answer, greedy ones and (`sample` 0, 1, ...)
sampled ones, with every outcome.

Columns: `stage`, `model`, then the fields of `schemas.evaluation.EvalItem` by their own types
(lists and tables as JSON text), then one nullable boolean `outcome_<rate>` per rate: null where the
answer is outside the rate's denominator; and one nullable number per metric function: null where it
abstained, and for sampled answers.
"""

import types
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

from flows.runs.results import RunResults
from flows.scores import Format
from flows.scores.evaluations import Evaluation, evaluations, flat_fields
from schemas.evaluation import EvalItem

if TYPE_CHECKING:
    import pyarrow as pa

FIELDS = [name for name in EvalItem.model_fields if name != "measured"]
"""Columns of an item; what metric functions say has columns of its own."""


def write(run: RunResults, directory: Path) -> int:
    """Write `<stage>.parquet` for each evaluation; returns the number of files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    found = evaluations(run)
    for one in found:
        answers = [*one.stage.items, *one.stage.samples]
        rows = [
            {"stage": one.stage.name, "model": one.model}
            | flat_fields(item, FIELDS)
            | {f"outcome_{name}": outcome(item) for name, outcome in one.outcomes.items()}
            for item in answers
        ]
        pq.write_table(
            pa.Table.from_pylist(rows, schema=_schema(one)),
            directory / f"{one.stage.name}.parquet",
            compression="zstd",
        )
    return len(found)


def _schema(one: Evaluation) -> "pa.Schema":
    import pyarrow as pa

    fields = {name: _column(EvalItem.model_fields[name].annotation) for name in FIELDS}
    outcomes = {
        f"outcome_{name}": pa.float64() if name in one.functions else pa.bool_()
        for name in one.outcomes
    }
    return pa.schema({"stage": pa.string(), "model": pa.string(), **fields, **outcomes})


def _column(annotation: Any) -> "pa.DataType":
    """The column of a field: a plain type by its own, `X | None` as X, all else as text."""
    import pyarrow as pa

    if get_origin(annotation) in (Union, types.UnionType):
        [annotation] = [one for one in get_args(annotation) if one is not type(None)]
    plain = {bool: pa.bool_(), int: pa.int64(), float: pa.float64()}
    return plain.get(annotation, pa.string())


FORMAT = Format(write=write)

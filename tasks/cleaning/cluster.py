"""Cleaning of corpora beyond one machine: `tasks.cleaning.clean` on Ray Data, with the same
decisions. A rebalance stage uses it where `RAY_ADDRESS` names a cluster (`local`: Ray on this
machine), whose machines have this code and the stage's files under the same paths.

Why Ray: it runs these Python functions as they are, compiled code included; it runs on one machine
without any service, where the tests compare its decisions with `clean`'s; and `ray[data]` 2.60
installs beside the pinned packages (extra `cluster`), which Beam 2.77 does not. Spark needs a JVM
on every machine.

It does not speed up a small corpus: the five shuffles take a minute on two cores whatever their
size, in which one machine cleans a million rows (docs/measurements.md,
2026-11-22).

1. Survey (`tasks.cleaning.survey`) the blocks; a row becomes about 130 bytes and 8 for each word of
   its prompt.
2. Group by prompt id: exact duplicates.
3. Group by bucket, 24 bytes per row and band: which rows share one. Then for those, with
   signatures, 530 bytes per row and band: which are near duplicates.
4. The remaining held-out rows go to the driver, which indexes them (20 bytes for each of their
   n-grams) and sends the index to all.
5. The decisions, `STATE_BYTES` a row, go to the driver.

Groups are hash partitions, not single keys: a call gets some ten thousand rows as arrays.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from infra.process import ROOT
from schemas.base import InputError
from tasks.cleaning.clean import Cleaned, empty_scratch
from tasks.cleaning.contamination import index
from tasks.cleaning.near_duplicates import Sketch, buckets, fallen, ranks
from tasks.cleaning.rules import COLUMNS, DETAILS, Contamination, EvaluationItems, Rules
from tasks.cleaning.state import (
    CONTAMINATED,
    DUPLICATE,
    FIRST_HELDOUT_HIT,
    HELDOUT,
    NEAR_DUPLICATE,
    duplicates,
    reorder,
)
from tasks.cleaning.survey import Block, blocks, plan_of, survey

if TYPE_CHECKING:
    from ray.data import Dataset

Batch = dict[str, NDArray[Any]]
MARK = -1


def clean_on_cluster(
    files: Sequence[Path],
    evaluations: Sequence[EvaluationItems],
    rules: Rules,
    *,
    scratch: Path,
    partitions: int = 64,
) -> Cleaned:
    """Decide about every row of the files, as `tasks.cleaning.clean.clean` does.

    Args:
        partitions: how many parts the rows are divided in by id and by bucket; one must fit the
            memory of a machine.

    Raises:
        InputError: Ray is not installed, or does not answer.
    """
    try:
        import ray
    except ImportError as error:
        raise InputError(
            "RAY_ADDRESS is set and Ray is not installed: `uv sync --extra cluster`, or unset it to"
            " clean on this machine."
        ) from error
    if not ray.is_initialized():
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            ray.init(log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}})
        except ConnectionError as error:
            raise InputError(
                f"no Ray answers at RAY_ADDRESS = {os.environ.get('RAY_ADDRESS')!r}: {error}. Start"
                " it, or unset RAY_ADDRESS to clean on this machine."
            ) from error
    empty_scratch(scratch)
    plan, items = plan_of(evaluations, rules)
    found = blocks(files)
    numbers = ray.data.range(len(found), override_num_blocks=max(1, len(found)))
    given = {"found": found, "plan": ray.put(plan)}
    rows = numbers.map_batches(_survey, batch_size=1, fn_kwargs=given, batch_format="numpy")
    rows = _mapped(rows, "id", partitions, _drop_duplicates).materialize()
    if plan.sketch is not None:
        rows = _drop_near_duplicates(rows, plan.sketch, rules.seed, partitions)
    if rules.contamination is not None and rules.contamination.heldout:
        rows = _drop_heldout(rows, rules.contamination)
    return _collected(rows.select_columns([*COLUMNS, "detail"]), tuple(files), items, scratch)


def _collected(
    rows: "Dataset", files: tuple[Path, ...], items: tuple[tuple[str, str], ...], scratch: Path
) -> Cleaned:
    """The decisions in the order of the files, with the row of each match instead of its prompt
    id."""
    batches = list(rows.iter_batches(batch_format="numpy", batch_size=None))
    place = [np.concatenate([one[name] for one in batches]) for name in ("offset", "file")]
    batch = {
        name: np.concatenate([one[name] for one in batches])[np.lexsort(place)]
        for name in batches[0]
    }
    columns = {name: batch[name].astype(kind) for name, kind in COLUMNS.items()}
    ids, cause, match = (columns[name] for name in ("id", "cause", "match"))
    of_heldout = columns["hit"] > FIRST_HELDOUT_HIT
    # the row of each prompt id that its duplicates and all others were compared with
    first = np.flatnonzero((cause == 0) | (cause == NEAR_DUPLICATE) | of_heldout)
    first = first[np.argsort(ids[first])]
    inside = (cause == DUPLICATE) | (cause == NEAR_DUPLICATE) | of_heldout
    match[inside] = first[np.searchsorted(ids[first], match[inside].astype(np.uint64))]
    details = batch["detail"][cause > CONTAMINATED]
    text = "".join(" ".join(detail.split()) + "\n" for detail in details)
    (scratch / DETAILS).write_text(text, encoding="utf-8", newline="\n")
    del columns["words"]
    return Cleaned(files=files, items=items, scratch=scratch, **columns)


def _survey(batch: Batch, found: Sequence[Block], plan: Any) -> Batch:
    """A block's survey, with words and keys as bytes per row. `plan` is a reference, sent to each
    machine once."""
    import ray

    block = found[int(batch["id"][0])]
    left = survey(block, ray.get(plan))
    ends = np.cumsum(left.columns["words"], dtype=np.int64) * 8
    reasons = iter(left.details)
    filtered = (left.columns["cause"] > 0) & (left.columns["hit"] == 0)
    details = [next(reasons) if dropped else "" for dropped in filtered]
    columns = left.columns | {"match": left.columns["match"].astype(np.uint64)}
    keys = np.ascontiguousarray(left.keys.T)
    return columns | {
        "block": np.full(len(ends), block.number, np.int64),
        "detail": np.array(details, object),
        "hashes": _bytes(left.words.tobytes(), ends),
        "keys": _bytes(keys.tobytes(), np.arange(1, len(ends) + 1) * 8 * keys.shape[1]),
    }


def _bytes(data: bytes, ends: NDArray[np.int64]) -> NDArray[Any]:
    """Pieces of `data` as an array of bytes objects."""
    out = np.empty(len(ends), object)
    starts = np.concatenate(([0], ends[:-1]))[: len(ends)]
    out[:] = [data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    return out


def _array(column: NDArray[Any], kind: type) -> NDArray[Any]:
    """The inverse of `_bytes`: all pieces as one array."""
    return np.frombuffer(b"".join(column), kind)


def _words(batch: Batch) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    return _array(batch["hashes"], np.uint64), np.cumsum(batch["words"], dtype=np.int64)


def _mapped(
    rows: "Dataset", column: str, partitions: int, function: Callable[[Batch], Batch]
) -> "Dataset":
    """The results of a function on the rows, grouped by part of a hash column."""
    divided = rows.map_batches(
        lambda batch: batch | {"part": batch[column] % np.uint64(partitions)}, batch_format="numpy"
    )
    groups = divided.groupby("part", num_partitions=partitions)
    return groups.map_groups(function, batch_format="numpy")


def _taken(batch: Batch, chosen: NDArray[Any]) -> Batch:
    return {name: column[chosen] for name, column in batch.items()}


def _decide(batch: Batch, rows: NDArray[Any], cause: int, match: Any, score: Any) -> None:
    for column, value in (("cause", cause), ("match", match), ("score", score)):
        batch[column][rows] = value


def _drop_duplicates(batch: Batch) -> Batch:
    batch = _taken(batch, np.lexsort((batch["offset"], batch["file"])))
    live = np.flatnonzero(batch["cause"] == 0)
    fallen, _ = duplicates(batch["id"][live], batch["content"][live])
    rows = live[fallen]
    # Batches may be views of Ray's read-only memory; `_taken` has copied.
    _decide(batch, rows, DUPLICATE, batch["id"][rows], 1)
    del batch["part"]
    return batch


def _drop_near_duplicates(rows: "Dataset", near: Sketch, seed: int, partitions: int) -> "Dataset":
    """Instead of joins there are marks: rows of the same columns that come to the rows of their id;
    their `block` is MARK."""

    def in_bands(batch: Batch) -> Batch:
        """A row in each band: its key and id."""
        batch = _taken(batch, (batch["cause"] == 0) & (batch["words"] > 0))
        return {"key": _array(batch["keys"], np.uint64), "id": np.repeat(batch["id"], near.bands)}

    def shared(batch: Batch) -> Batch:
        return _marks(id=np.unique(batch["id"][buckets(batch["key"])[0]]))

    def signed(batch: Batch) -> Batch:
        """A row in each band of the rows that share a bucket: its key, id, rank and signature."""
        marked = np.isin(batch["id"], batch["id"][batch["block"] == MARK])
        batch = _taken(
            batch, marked & (batch["block"] != MARK) & (batch["cause"] == 0) & (batch["words"] > 0)
        )
        signatures = near.signatures(*_words(batch))
        pieces = _bytes(
            signatures.tobytes(), np.arange(1, len(signatures) + 1) * 4 * near.permutations
        )
        more = {"rank": ranks(batch["id"], batch["content"], seed), "signature": pieces}
        return in_bands(batch) | {
            name: np.repeat(column, near.bands) for name, column in more.items()
        }

    def falls(batch: Batch) -> Batch:
        batch = _taken(batch, np.argsort(batch["rank"]))
        signatures = _array(batch["signature"], np.uint32).reshape(-1, near.permutations)
        places = np.arange(len(signatures))
        fell, leaders, agreed = fallen(batch["key"], signatures, places, near.enough)
        score = (agreed / near.permutations).astype(np.float32)
        return _marks(
            id=batch["id"][fell],
            match=batch["id"][leaders],
            content=batch["rank"][leaders],
            score=score,
        )

    def drop(batch: Batch) -> Batch:
        """Keep the mark with the best score of each id, of several the one whose leader comes
        first."""
        mark = batch["block"] == MARK
        marks, batch = _taken(batch, mark), _taken(batch, ~mark)
        marks = _taken(marks, np.lexsort((marks["content"], -marks["score"], marks["id"])))
        ids, first = np.unique(marks["id"], return_index=True)
        fell = np.flatnonzero((batch["cause"] == 0) & np.isin(batch["id"], ids))
        by = first[np.searchsorted(ids, batch["id"][fell])]
        _decide(batch, fell, NEAR_DUPLICATE, marks["match"][by], marks["score"][by])
        del batch["part"]
        return batch

    banded = rows.map_batches(in_bands, batch_format="numpy")
    found = _mapped(banded, "key", partitions, shared)
    compared = _mapped(rows.union(found), "id", partitions, signed)
    fell = _mapped(compared, "key", partitions, falls)
    return _mapped(rows.union(fell), "id", partitions, drop).materialize()


def _marks(**columns: NDArray[Any]) -> Batch:
    """Marks with these columns, the others empty."""
    size = len(columns["id"])
    empty: Batch = {name: np.zeros(size, kind) for name, kind in COLUMNS.items()}
    empty |= {"match": np.zeros(size, np.uint64), "block": np.full(size, MARK, np.int64)}
    empty |= {"detail": np.full(size, "", object)}
    empty |= {name: np.full(size, b"", object) for name in ("hashes", "keys")}
    return empty | columns


def _drop_heldout(rows: "Dataset", contamination: Contamination) -> "Dataset":
    import ray

    tested = rows.map_batches(
        lambda batch: _taken(batch, (batch["cause"] == 0) & (batch["split"] == HELDOUT)),
        batch_format="numpy",
    ).select_columns(["id", "words", "hashes"])
    batches = list(tested.iter_batches(batch_format="numpy", batch_size=None))
    if not batches:
        return rows
    batch = {name: np.concatenate([part[name] for part in batches]) for name in batches[0]}
    order = np.argsort(batch["id"])
    words, ends = reorder(*_words(batch), order)
    found = ray.put((index(words, ends, contamination), batch["id"][order]))
    return rows.map_batches(
        _scan_heldout, fn_kwargs={"found": found}, batch_format="numpy"
    ).materialize()


def _scan_heldout(batch: Batch, found: Any) -> Batch:
    import ray

    heldout, ids = ray.get(found)
    rest = np.flatnonzero((batch["cause"] == 0) & (batch["split"] != HELDOUT))
    hits, items, scores = heldout.scan(*_words(_taken(batch, rest)))
    hit = hits > 0
    rows = rest[hit]
    batch = {name: column.copy() for name, column in batch.items()}
    _decide(batch, rows, CONTAMINATED, ids[items[hit]], scores[hit])
    batch["hit"][rows] = hits[hit] + FIRST_HELDOUT_HIT
    return batch

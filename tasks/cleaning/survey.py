"""The first pass of cleaning: what a block of JSONL lines yields for the decisions over all rows.

A block is a range of bytes of a file; it owns the lines that begin in it. Its survey is a function
of the file's bytes and the plan, so blocks may be surveyed anywhere in any order: by processes here
(`tasks.cleaning.clean`), by a cluster (`tasks.cleaning.cluster`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import xxhash
from numpy.typing import NDArray

from tasks.cleaning.contamination import EXACT, Index, index
from tasks.cleaning.filters import Filter
from tasks.cleaning.near_duplicates import Sketch, sketch
from tasks.cleaning.rules import CAUSES, COLUMNS, GROUPS, SPLITS, EvaluationItems, Rules
from tasks.cleaning.shingles import Words, words_of

BLOCK_BYTES = 4 * 2**20

_GROUP_CODES = {group: code for code, group in enumerate(GROUPS)}


@dataclass(frozen=True)
class Block:
    """Lines that begin in bytes [start, end) of a file; `file` is its index among the input files,
    `number` the block's among all."""

    number: int
    file: int
    path: Path
    start: int
    end: int


@dataclass(frozen=True)
class Plan:
    """The plan of a survey: all that it needs besides the block. Pickled to every process.

    Attributes:
        rules: the filters, and the fractions of the splits.
        sketch: of near duplicates; None: not wanted.
        index: of the evaluation sets; None: there are none.
    """

    rules: Rules
    sketch: Sketch | None
    index: Index | None


@dataclass(frozen=True)
class Survey:
    """The results for a block of n lines.

    Attributes:
        columns: `tasks.cleaning.rules.COLUMNS`, each of shape (n,).
        keys: the bucket in each band, shape (bands, n).
        words: the hashes of the prompts' words, one prompt after the other, `columns["words"]` for
            each.
        details: the reason for each row that a filter drops, in order.
    """

    columns: dict[str, NDArray[Any]]
    keys: NDArray[np.uint64]
    words: Words
    details: list[str]


def blocks(files: Sequence[Path]) -> list[Block]:
    """The files cut into blocks, in order."""
    found: list[Block] = []
    for file, path in enumerate(files):
        size = path.stat().st_size
        for start in range(0, size, BLOCK_BYTES):
            found.append(Block(len(found), file, path, start, min(start + BLOCK_BYTES, size)))
    return found


def lines_of(block: Block) -> tuple[int, list[bytes]]:
    """The offset of a block's first line, and its lines without their newlines."""
    before = min(block.start, 1)  # the byte before tells whether a line begins with the block
    with block.path.open("rb") as stream:
        stream.seek(block.start - before)
        data = stream.read(block.end - block.start + before)
        skipped = data.find(b"\n") + 1 if before else 0
        if before and not skipped:
            return block.end, []
        lines = (data[skipped:] + (b"" if data.endswith(b"\n") else stream.readline())).split(b"\n")
    if not lines[-1]:
        lines.pop()
    return block.start - before + skipped, lines


def compared_text(row: Mapping[str, Any]) -> str:
    """The prompt, with its context (of grounded prompts) replaced by one word."""
    prompt: str = row["prompt"]
    context = row.get("context")
    return prompt.replace(context, f" context{context_hash(row):016x} ") if context else prompt


def context_hash(row: Mapping[str, Any]) -> int:
    """64 bits of the context, 0 for none."""
    context = row.get("context")
    return xxhash.xxh3_64_intdigest(context.encode()) if context else 0


def parse(block: Block, offset: int, lines: Sequence[bytes]) -> Iterator[dict[str, Any]]:
    """Parse lines. The files come from verified artifacts, so a bad line is a bug: raises
    ValueError with its place."""
    for line in lines:
        try:
            yield orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise ValueError(
                f"{block.path}, byte {offset}: a line that is not JSON ({error}): {line[:80]!r}"
            ) from error
        offset += len(line) + 1


def survey(block: Block, plan: Plan) -> Survey:
    """Read, parse, hash, look up, filter. Time: a quarter JSON; a tenth each for words, n-grams and
    signatures; the rest Python per row."""
    offset, lines = lines_of(block)
    rows = list(parse(block, offset, lines))
    lengths = np.fromiter(map(len, lines), np.int32, len(lines))
    hexadecimal = bytes.fromhex("".join([row["id"] for row in rows]))
    ids = np.frombuffer(hexadecimal, ">u8").astype(np.uint64)
    words, ends = words_of([compared_text(row) for row in rows])
    columns = {name: np.zeros(len(rows), kind) for name, kind in COLUMNS.items()}
    columns["file"][:] = block.file
    columns["offset"][:] = offset + np.cumsum(lengths + 1, dtype=np.int64) - (lengths + 1)
    columns["length"][:] = lengths
    columns["id"][:] = ids
    unsolved = np.array(["reasoning" not in row for row in rows], np.uint64)
    columns["content"][:] = [xxhash.xxh3_64_intdigest(line) >> 1 for line in lines]
    columns["content"] |= unsolved << np.uint64(63)
    columns["words"][:] = np.diff(ends, prepend=0)
    columns["group"][:] = [_GROUP_CODES[row.get("grounding") or row["domain"]] for row in rows]
    columns["difficulty"][:] = [row["difficulty"] for row in rows]
    rules = plan.rules
    columns["split"][:] = splits(ids, rules.validation_fraction, rules.heldout_fraction)
    columns["match"][:] = -1
    if plan.index is not None:
        columns["hit"][:], columns["match"][:], columns["score"][:] = plan.index.scan(words, ends)
        # without its context a verbatim copy of an item may have too few words to be found
        grounded = np.flatnonzero([bool(row.get("context")) for row in rows])
        same = plan.index.same(*words_of([rows[at]["prompt"] for at in grounded.tolist()]))
        copies = grounded[same >= 0]
        columns["hit"][copies], columns["score"][copies] = EXACT, 1.0
        columns["match"][copies] = same[same >= 0]
        columns["cause"][columns["hit"] > 0] = CAUSES.index("contaminated")
    keys = np.empty((0, len(rows)), np.uint64)
    if plan.sketch is not None:
        contexts = np.fromiter(map(context_hash, rows), np.uint64, len(rows))
        keys = plan.sketch.keys(plan.sketch.signatures(words, ends), contexts)
    return Survey(columns, keys, words, _filter(rules.filters, rows, columns["cause"]))


def plan_of(
    evaluations: Sequence[EvaluationItems], rules: Rules
) -> tuple[Plan, tuple[tuple[str, str], ...]]:
    """The plan, and (set, id) of each evaluation item in its index, in an order that does not
    depend on how they were given."""
    near = sketch(rules.near_duplicates) if rules.near_duplicates else None
    found = sorted((one.name, key, text) for one in evaluations for key, text in one.texts)
    if rules.contamination is None or not found:
        return Plan(rules, near, None), ()
    indexed = index(*words_of([text for _, _, text in found]), rules.contamination)
    return Plan(rules, near, indexed), tuple((name, key) for name, key, _ in found)


def splits(
    ids: NDArray[np.uint64], validation_fraction: float, heldout_fraction: float
) -> NDArray[np.uint8]:
    """`tasks.cleaning.rules.split_of` of many ids, as indices in SPLITS."""
    position = ids.astype(np.float64) / 2.0**64
    heldout = position < heldout_fraction
    validation = ~heldout & (position < heldout_fraction + validation_fraction)
    split = heldout * SPLITS.index("heldout") + validation * SPLITS.index("validation")
    return split.astype(np.uint8)


def _filter(
    filters: Sequence[Filter], rows: list[dict[str, Any]], causes: NDArray[np.uint8]
) -> list[str]:
    """Apply each filter to the remaining rows, record its causes, and return its reasons in the
    order of the rows."""
    reasons: dict[int, str] = {}
    for judge in filters:
        for at in np.flatnonzero(causes == 0).tolist():
            if (verdict := judge(rows[at])) is not None:
                causes[at], reasons[at] = CAUSES.index(verdict[0]), verdict[1]
    return [reasons[at] for at in sorted(reasons)]

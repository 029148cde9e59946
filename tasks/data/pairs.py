"""Preference pairs of chosen prompts, in an order that depends on their content alone."""

import hashlib
import json
from array import array
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tasks.data.quotas import ranks


def write_pairs(out: Path, files: Sequence[Path], ids: np.ndarray, seed: int) -> int:
    """Write the pairs of `files` whose prompt is chosen, by the rank of their prompt and then their
    digest; the same pair is written once.

    Args:
        ids: uint64, the chosen prompts'.

    Returns:
        how many were written. Memory: 32 bytes for each of them.
    """
    chosen = np.unique(ids)
    # Of each pair: prompt, digest, file and where its line starts.
    found = array("Q")
    for number, path in enumerate(files):
        with path.open("rb") as lines:
            offset = 0
            for line in lines:
                identity = int(json.loads(line)["id"], 16)
                place = int(np.searchsorted(chosen, np.uint64(identity)))
                if place < len(chosen) and int(chosen[place]) == identity:
                    found.extend(
                        (
                            identity,
                            int.from_bytes(hashlib.sha256(line.strip()).digest()[:8]),
                            number,
                            offset,
                        )
                    )
                offset += len(line)
    pairs = np.frombuffer(found, np.uint64).reshape(-1, 4)
    pairs = pairs[np.lexsort((pairs[:, 1], pairs[:, 0], ranks(seed, pairs[:, 0])))]
    new = np.ones(len(pairs), bool)
    new[1:] = (pairs[1:, :2] != pairs[:-1, :2]).any(axis=1)
    streams = [path.open("rb") for path in files]
    try:
        with out.open("wb") as target:
            for _, _, number, offset in pairs[new].tolist():
                streams[number].seek(offset)
                target.write(streams[number].readline().strip() + b"\n")
    finally:
        for stream in streams:
            stream.close()
    return int(new.sum())

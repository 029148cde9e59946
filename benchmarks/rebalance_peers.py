"""One way to deduplicate and decontaminate for `benchmarks.rebalance_scale`, in a process of its
own with that tool's own Python.

    python -m benchmarks.rebalance_peers Lyceum|datatrove|text-dedup|datasketch DIRECTORY WORK

Reads `DIRECTORY/rows-*.jsonl` and `items.json`, keeps what it needs in WORK, and writes the numbers
(`line`) of the rows that it keeps to `WORK/kept.npy`. Two processes each. Shingles of three words
and a threshold of 0.7 (or the bands next to it) for all.
"""

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

WORKERS = 2
SHINGLE, PERMUTATIONS, THRESHOLD = 3, 128, 0.7


def rows_in(directory: Path) -> list[str]:
    return sorted(map(str, directory.glob("rows-*.jsonl")))


def items_in(directory: Path) -> list[str]:
    return list(json.loads((directory / "items.json").read_text(encoding="utf-8")))


def ours(directory: Path, work: Path) -> Iterable[int]:
    """`tasks.data.cleaning.clean`: exact, near-duplicates, decontamination; then the kept rows are
    streamed back."""
    from tasks.data.cleaning import clean
    from tasks.data.cleaning_rules import Contamination, Evaluation, NearDuplicates

    items = items_in(directory)
    near: dict[str, Any] = {"threshold": THRESHOLD, "words": SHINGLE, "permutations": PERMUTATIONS}
    cleaned = clean(
        [Path(path) for path in rows_in(directory)],
        [Evaluation("items", [(str(at), text) for at, text in enumerate(items)])],
        near_duplicates=NearDuplicates(**near),
        contamination=Contamination(heldout=False),
        validation_fraction=0.0,
        heldout_fraction=0.0,
        seed=0,
        filters=(),
        scratch=work / "state",
        workers=WORKERS,
    )
    # What is kept is written as the tools beside us write it.
    remaining = []
    with (work / "ours.jsonl").open("wb") as out:
        for line in cleaned.lines(cleaned.remaining):
            out.write(line + b"\n")
            at = line.index(b'"line":') + 7
            remaining.append(int(line[at : line.index(b",", at)]))
    cleaned.remove()
    return remaining


def datatrove(directory: Path, work: Path) -> Iterable[int]:
    """Its four MinHash stages, and its n-gram filter (any 13-gram) in the last one. 14 bands of 8
    (threshold 0.72), its defaults."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline import dedup
    from datatrove.pipeline.decont.n_grams import NGramsDecontConfig, NGramsDecontFilter
    from datatrove.pipeline.dedup.minhash import MinhashConfig
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.writers import JsonlWriter
    from datatrove.utils.text import ngrams, simplify_text

    base = work / "datatrove"
    config = MinhashConfig(n_grams=SHINGLE)
    grams = NGramsDecontConfig(n_grams=13, find_query_ngrams=True)
    index = NGramsDecontFilter(str(base / "index"), grams)
    # Its indexer needs lighteval, so the same hashes are written without it.
    hashes = set()
    for text in items_in(directory):
        words = index.tokenizer.word_tokenize(simplify_text(text, grams.norm_config))
        hashes |= {index.hash_func(" ".join(gram)) for gram in ngrams(words, grams.n_grams)}
    (base / "index").mkdir(parents=True)
    np.array(list(hashes), grams.hash_config.np_descr).tofile(base / "index" / "items.index.hashes")

    def reader() -> Any:
        fields = {"text_key": "prompt", "id_key": "line"}
        return JsonlReader(str(directory), glob_pattern="rows-*.jsonl", **fields)

    def run(name: str, tasks: int, *pipeline: Any) -> None:
        # Forked, or each of its processes would import spaCy anew.
        place = {"logging_dir": str(base / "logs" / name), "start_method": "fork"}
        workers = min(tasks, WORKERS)
        LocalPipelineExecutor([*pipeline], tasks=tasks, workers=workers, **place).run()

    run(
        "signatures",
        WORKERS,
        reader(),
        dedup.MinhashDedupSignature(str(base / "signatures"), config),
    )
    buckets = dedup.MinhashDedupBuckets(
        str(base / "signatures"), str(base / "buckets"), config=config
    )
    run("buckets", config.num_buckets, buckets)
    cluster = dedup.MinhashDedupCluster(str(base / "buckets"), str(base / "remove"), config=config)
    run("cluster", 1, cluster)
    writer = JsonlWriter(str(base / "kept"), compression=None)
    run("filter", WORKERS, reader(), dedup.MinhashDedupFilter(str(base / "remove")), index, writer)
    remaining = []
    for path in sorted((base / "kept").glob("*.jsonl")):
        with path.open(encoding="utf-8") as lines:
            # Its writer leaves out what is 0.
            remaining += [int(json.loads(line).get("id", 0)) for line in lines]
    return remaining


def text_dedup(directory: Path, work: Path) -> Iterable[int]:
    """Its MinHash program with its fastest hash. It has no decontamination."""
    from datasets import load_from_disk
    from text_dedup.minhash import main

    base = work / "text-dedup"
    rows = {"path": "json", "data_files": directory / "rows-*.jsonl", "split": "train"}
    places = {"column": "prompt", "cache_dir": base / "cache", "output": base / "kept"}
    sizes = {"ngram": SHINGLE, "num_perm": PERMUTATIONS, "threshold": THRESHOLD}
    more = {"num_proc": WORKERS, "hash_func": "xxh3", "batch_size": 10_000}
    arguments: list[str] = []
    for name, value in {**rows, **places, **more, **sizes}.items():
        arguments += [f"--{name}", str(value)]
    main(arguments, standalone_mode=False)
    return list(load_from_disk(str(base / "kept"))["line"])


def datasketch(directory: Path, work: Path) -> Iterable[int]:
    """`datasets` maps signatures and 8-gram coverage in two processes; ids and datasketch's LSH
    index in this one."""
    import datasets
    from datasketch import MinHash, MinHashLSH

    base = work / "datasketch"
    where = {"data_files": rows_in(directory), "cache_dir": str(base)}
    rows = datasets.load_dataset("json", split="train", **where)
    asked = {"fn_kwargs": {"items": items_in(directory)}, "remove_columns": rows.column_names}
    told = rows.map(_sketch, batched=True, num_proc=WORKERS, **asked).with_format("numpy")
    lsh, seen, remaining = MinHashLSH(THRESHOLD, PERMUTATIONS), set(), []
    columns = ("line", "id", "leaked", "signature")
    for batch in told.iter(batch_size=1000):
        for line, key, leaked, signature in zip(*map(batch.__getitem__, columns), strict=True):
            if leaked or key in seen:
                continue
            seen.add(key)
            values = signature.astype(np.uint32)
            minhash = MinHash(PERMUTATIONS, hashvalues=values, scheme="affine32")
            if not lsh.query(minhash):
                lsh.insert(int(line), minhash)
                remaining.append(int(line))
    return remaining


_SEEN: set[str] = set()


def _sketch(batch: dict[str, list[Any]], items: list[str]) -> dict[str, list[Any]]:
    import xxhash
    from datasketch import MinHash

    def words(text: str) -> list[str]:
        return re.findall(r"\w+", text.lower())

    def grams(parts: list[str], size: int) -> set[str]:
        return {" ".join(parts[at : at + size]) for at in range(max(1, len(parts) - size + 1))}

    if not _SEEN:
        for item in items:
            _SEEN.update(grams(words(item), 8))
    texts = [words(prompt) for prompt in batch["prompt"]]
    shingles = [[gram.encode() for gram in grams(text, SHINGLE)] for text in texts]
    how = {"scheme": "affine32", "hashfunc": xxhash.xxh32_intdigest}
    sketches = MinHash.bulk(shingles, num_perm=PERMUTATIONS, **how)
    leaked = [not _SEEN.isdisjoint(grams(text, 8)) for text in texts]
    told = {"leaked": leaked, "signature": [one.hashvalues for one in sketches]}
    return {"line": batch["line"], "id": batch["id"], **told}


WAYS = {"Lyceum": ours, "datatrove": datatrove, "text-dedup": text_dedup, "datasketch": datasketch}

if __name__ == "__main__":
    name, directory, work = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    np.save(work / "kept.npy", np.fromiter(WAYS[name](directory, work), np.int64))

"""Data files in a bucket: the same rows as from a directory, streamed; digests from the listing;
clear errors."""

import gzip
import json
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from schemas.base import InputError
from schemas.examples import Example
from tasks.data.readers import read_remote
from tasks.data.remote_files import explained, remote_files
from tasks.teachers import dataset
from tests.fakes.gate import Gate
from tests.tasks.teachers import dataset_rows
from tests.tasks.teachers.dataset_rows import MATH as MAPPING
from tests.tasks.teachers.dataset_rows import causes, config


def rows(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [
        {"question": f"What is {n}+{n}?", "steps": f"{n}+{n}={2 * n}", "answer": str(2 * n)}
        for n in range(start, start + count)
    ]


def jsonl(records: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def parquet(path: Path, records: list[dict[str, Any]], schema: Any = None, **options: Any) -> bytes:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records, schema), path, **options)
    return path.read_bytes()


teach = partial(dataset_rows.teach, None)


NOT_THERE = "there is no such file, bucket or repository"


@pytest.fixture
def put(gcs_client: Any) -> Any:
    """Store bytes at a path of the test's bucket; returns its URL."""

    def store(name: str, data: bytes) -> str:
        gcs_client.blob(name).upload_from_string(data)
        return f"gs://{gcs_client.name}/{name}"

    return store


def test_all_files_of_a_pattern_are_read_in_order_and_every_row_knows_its_file_and_line(
    put: Any, tmp_path: Path
) -> None:
    second = put("sets/b.jsonl", jsonl(rows(3, 4)))
    first = put("sets/a.jsonl.gz", gzip.compress(jsonl(rows(4))))
    table = put("sets/c.parquet", parquet(tmp_path / "c.parquet", rows(3, 7), row_group_size=2))
    base = first.rpartition("/")[0]
    taught = teach(
        {"path": f"{base}/*.jsonl.gz", **MAPPING},
        {"path": f"{base}/*.jsonl", **MAPPING},
        {"path": f"{base}/*.parquet", **MAPPING},
    )
    assert [row.answer for row in taught] == [str(2 * n) for n in range(10)]
    assert [(row.source, row.line) for row in taught] == [
        *((first, line) for line in (1, 2, 3, 4)),
        *((second, line) for line in (1, 2, 3)),
        *((table, line) for line in (1, 2, 3)),
    ]


def test_bad_lines_are_counted_with_their_line_and_the_rest_is_read(put: Any) -> None:
    lines = jsonl(rows(6)).splitlines(keepends=True)
    lines[1] = b'{"question": "broken\n'
    lines[3] = b'{"question": "\xff", "steps": "s", "answer": "1"}\n'
    lines[4] = b"\n" + lines[4]
    url = put("a.jsonl", b"".join(lines))
    taught = teach({"path": url, **MAPPING, "max_bad_fraction": 0.5})
    assert causes(taught) == [(2, "broken_row"), (4, "wrong_encoding")]
    read = [(row.line, row.answer) for row in taught if isinstance(row, Example)]
    assert read == [(1, "0"), (3, "4"), (6, "8"), (7, "10")]


def test_text_beyond_ascii_and_exotic_line_ends_within_a_string_survive(put: Any) -> None:
    record = {
        "question": "Wie groß ist π? 🙂",
        "steps": "a\u2028line\x85",
        "answer": "größer als 3",
    }
    line = json.dumps(record, ensure_ascii=False).encode() + b"\r\n"
    (row,) = teach({"path": put("a.jsonl", line), **MAPPING})
    found = {"question": row.prompt, "steps": row.reasoning, "answer": row.answer}
    assert found == {**record, "steps": record["steps"].strip()}


def test_an_image_column_is_never_opened_whatever_its_rows_name(put: Any, tmp_path: Path) -> None:
    from datasets import Features, Image, Value

    features = Features(
        {name: Value("string") for name in ("question", "steps", "answer")} | {"image": Image()}
    )
    with Gate("http://127.0.0.1:9") as trap:
        table = [
            {**row, "image": {"bytes": None, "path": path}}
            for row, path in zip(rows(2), (f"{trap.url}/x.png", "/etc/passwd"), strict=True)
        ]
        url = put("a.parquet", parquet(tmp_path / "a.parquet", table, features.arrow_schema))
        assert [row.answer for row in teach({"path": url, **MAPPING})] == ["0", "2"]
        assert trap.connections == 0


def test_digests_come_from_the_listing_and_change_with_the_content_alone(put, gcs):
    source = {"path": put("a.jsonl", jsonl(rows(2))), **MAPPING}
    gcs.forget_requests()
    before = dataset.dependencies(config(source), None)
    assert list(before) == [f"data/{source['path']}"]
    assert "GET download" not in gcs.requests()
    put("a.jsonl", jsonl(rows(2)))
    assert dataset.dependencies(config(source), None) == before
    put("a.jsonl", jsonl(rows(2, 1)))
    assert dataset.dependencies(config(source), None) != before


def test_a_file_that_changes_while_it_is_read_is_noticed(put: Any) -> None:
    url = put("a.jsonl", jsonl(rows(3)))
    (file,) = remote_files(url, "test")
    records = read_remote(file)
    next(records)
    put("a.jsonl", jsonl(rows(3, 5)))
    said = r"a\.jsonl changed while it was read \(\d+ bytes, md5Hash"
    with pytest.raises(InputError, match=said):
        list(records)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("gs://{bucket}/none.jsonl", f"cannot read gs://.*/none.jsonl: {NOT_THERE}.* is empty"),
        ("gs://{bucket}/none/*.jsonl", NOT_THERE),
        ("gs://no-such-bucket-here/a.jsonl", NOT_THERE),
        ("gs://no-such-bucket-here/*.jsonl", NOT_THERE),
        ("s3://bucket/a.jsonl", "reading s3://bucket/a.jsonl needs the package s3fs: uv pip inst"),
    ],
)
def test_a_missing_file_bucket_or_package_is_found_before_a_job_starts(gcs_bucket, path, message):
    with pytest.raises(InputError, match=message):
        dataset.dependencies(config({"path": path.format(bucket=gcs_bucket), **MAPPING}), None)


def test_what_is_there_is_named_beside_what_is_not(put: Any) -> None:
    url = put("rows/train-1.jsonl", jsonl(rows(1)))
    put("rows/test-1.jsonl", jsonl(rows(1)))
    for asked in ("rows/trian-*.jsonl", "rows/deeper/a.jsonl"):
        missing = url.replace("rows/train-1.jsonl", asked)
        with pytest.raises(InputError, match=r"/rows has test-1\.jsonl, train-1\.jsonl\)"):
            remote_files(missing, "test")


def test_no_permission_says_how_to_log_in(put: Any, gcs: Any) -> None:
    url = put("a.jsonl", jsonl(rows(1)))
    gcs.faults.add("status", code=403, message="lyceum@example has no storage.objects.get access")
    with pytest.raises(InputError, match=r"no permission .*gcloud auth application-default login"):
        dataset.dependencies(config({"path": url, **MAPPING}), None)


def test_a_damaged_file_is_one_clear_message(put: Any) -> None:
    cut = gzip.compress(b"{}\n" * 9999)[:-9]
    damaged = {"a.parquet": b"PAR1 junk", "a.jsonl.gz": b"no gzip", "b.jsonl.gz": cut}
    for name, content in damaged.items():
        with pytest.raises(InputError, match=f"data file gs://.*/{name} is damaged"):
            teach({"path": put(name, content), **MAPPING, "max_bad_fraction": 0.99})


def test_what_a_file_systems_own_library_raises_is_explained_and_a_mistake_of_ours_is_not() -> None:
    import httpx
    from google.auth.exceptions import DefaultCredentialsError
    from huggingface_hub.errors import OfflineModeIsEnabled

    denied, gated = DefaultCredentialsError("none found"), PermissionError("gated")
    for url, error, kind, said in (
        ("hf://x", httpx.ConnectError("no host"), InputError, "ConnectError: no host. Check the n"),
        ("hf://x", OfflineModeIsEnabled("x."), InputError, "HF_HUB_OFFLINE is set.*Unset it"),
        ("hf://datasets/x", gated, InputError, "no such data set, or no permission .*HF_TOKEN"),
        ("gs://x", denied, InputError, r"no permission \(none found\). Log in"),
        ("gs://x", KeyError("ours"), KeyError, "ours"),
    ):
        with pytest.raises(kind, match=said), explained(url, "test"):
            raise error


def test_what_the_hub_does_not_show_is_mended_by_what_was_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a token: set one. With one: it is the wrong one. Without `datasets/`: write that."""
    for token, url, said in (
        ("", "hf://datasets/a/b/c.jsonl", r"accept the conditions on its page and set HF_TOKEN\."),
        ("hf_x", "hf://datasets/a/b/c.jsonl", "A token was sent .* must be allowed to read"),
        ("hf_x", "hf://a/b/c.jsonl", r"among models; a data set is at hf://datasets/a/b/c\.jsonl"),
    ):
        monkeypatch.setenv("HF_TOKEN", token)
        monkeypatch.setenv("HF_TOKEN_PATH", "nowhere")
        with pytest.raises(InputError, match=said), explained(url, "test"):
            raise PermissionError("403 Client Error")


def test_a_url_that_means_more_than_a_file_is_refused_before_anything_is_read():
    for path, message in (
        ("ftp://host/a.jsonl", "starts with one of gs, s3, hf"),
        ("gs://bucket/a.csv", "read as .jsonl, .jsonl.gz, .parquet"),
        ("gs://bucket/a::file:///etc/b.jsonl", "has no ::"),
        ("gs://bucket/a[1].jsonl", "has no ::"),
        ("gs://*/a.jsonl", "names its bucket"),
    ):
        with pytest.raises(InputError, match=message):
            config({"path": path, **MAPPING})


def test_memory_does_not_grow_with_the_file(put: Any, tmp_path: Path) -> None:
    """40,000 rows of 1 kB are 40 MB; about a thousand of them are held."""
    long = [{**row, "steps": "think " * 170} for row in rows(20_000)]
    table = parquet(tmp_path / "a.parquet", long, compression="none", row_group_size=2000)
    for url in (put("a.jsonl", jsonl(long)), put("a.parquet", table)):
        (file,) = remote_files(url, "test")
        next(read_remote(file))  # imports
        tracemalloc.start()
        assert sum(1 for _ in read_remote(file)) == len(long)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 30e6, f"{url}: {peak / 1e6:.0f} MB"

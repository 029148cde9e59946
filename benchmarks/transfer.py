"""How fast an artifact goes to a bucket and back, beside the tools that others use, through the fake of Cloud Storage in tests/.

    python -m benchmarks.transfer [--rounds 5] [--large-mb 400]

One file of 400 MB and ten of 10 MB. Every tool takes its turn in every round. The table shows the best time and the median over the rounds,
how many times the fastest tool's best time each took, and the processor time of the tool's own process (median). Both ends run on this
machine and share its cores, so the figures compare, and mean nothing else.
Ours checks more than the others: the service compares each upload with the manifest's crc32c and creates nothing over an object that is
there; each downloaded byte is hashed with sha256. Last, an artifact of 2 GB is verified where it lies.
"""

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import quote

from infra.gcs.bucket import Bucket
from infra.settings import Settings
from infra.store.files import file_entry
from schemas.artifact import FileEntry
from tests.fakes.gcs_emulator import Emulator

BUCKET = "benchmark"
MB = 1 << 20
Transfer = Callable[[Path, str], None]
"""Moves the files of a local directory to the prefix, or those below the prefix to the directory."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--large-mb", type=int, default=400)
    options = parser.parse_args()
    with Emulator(BUCKET) as emulator, tempfile.TemporaryDirectory() as temporary:
        os.environ |= emulator.environment
        root = Path(temporary)
        compare(
            emulator,
            root,
            options.rounds,
            {"model.safetensors": options.large_mb}
            | {f"part-{number}": 10 for number in range(10)},
        )
        verify(root)


def compare(emulator: Emulator, root: Path, rounds: int, megabytes: dict[str, int]) -> None:
    source = root / "source"
    entries = make_files(source, megabytes)
    size = sum(megabytes.values())
    ours = Bucket(BUCKET, "", root / "cache", Settings())
    names = list(megabytes)
    tools: dict[str, tuple[Transfer, Transfer]] = {
        "lyceum": (
            lambda directory, prefix: ours.put_tree(directory, prefix, entries),
            lambda directory, prefix: shutil.move(ours.get_tree(prefix, entries), directory),
        ),
        "transfer_manager": (
            transfer_manager_up,
            lambda directory, prefix: transfer_manager_down(directory, prefix, names),
        ),
        "gcsfs": (gcsfs_up, gcsfs_down),
        "requests": (
            lambda directory, prefix: requests_up(emulator.url, directory, prefix),
            lambda directory, prefix: requests_down(emulator.url, directory, prefix, names),
        ),
        "httpx": (
            lambda directory, prefix: httpx_up(emulator.url, directory, prefix),
            lambda directory, prefix: httpx_down(emulator.url, directory, prefix, names),
        ),
    }
    if shutil.which("curl"):
        tools["curl"] = (
            lambda directory, prefix: curl_up(emulator.url, directory, prefix),
            lambda directory, prefix: curl_down(emulator.url, directory, prefix, names),
        )
        tools["curl+sha256sum"] = (
            lambda directory, prefix: curl_up(emulator.url, directory, prefix),
            lambda directory, prefix: curl_and_compare(emulator.url, directory, prefix, entries),
        )
    seconds: dict[tuple[str, str], list[float]] = {}
    processor: dict[tuple[str, str], list[float]] = {}
    for number in range(rounds + 1):  # the first is not counted: imports, connections, page cache
        order = list(tools)[number % len(tools) :] + list(tools)[: number % len(tools)]
        for tool in order:
            up, down = tools[tool]
            copy, back, prefix = root / "copy", root / "back", f"{tool}-{number}"
            shutil.copytree(source, copy, copy_function=os.link)
            for direction, transfer, directory in (("up", up, copy), ("down", down, back)):
                started, used = time.perf_counter(), processor_seconds()
                transfer(directory, prefix)
                if number:
                    seconds.setdefault((tool, direction), []).append(time.perf_counter() - started)
                    processor.setdefault((tool, direction), []).append(processor_seconds() - used)
            check(source, back)
            shutil.rmtree(copy, ignore_errors=True)
            shutil.rmtree(back)
            ours.remove(prefix)
    print(f"{size} MB in {len(entries)} files, {rounds} rounds, seconds")
    for direction in ("up", "down"):
        fastest = min(min(seconds[tool, direction]) for tool in tools)
        print(f"\n{direction:18} {'best':>6} {'ratio':>6} {'median':>7} {'cpu':>6}")
        for tool in tools:
            times = seconds[tool, direction]
            cells = f"{min(times):6.2f} {min(times) / fastest:6.2f} {statistics.median(times):7.2f}"
            print(f"{tool:18} {cells} {statistics.median(processor[tool, direction]):6.2f}")


def processor_seconds() -> float:
    """Of this process and the processes that it waited for, user and system."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def verify(root: Path) -> None:
    """Prints how long it takes to verify 2 GB in the bucket, and then a copy of them in the cache."""
    bucket = Bucket(BUCKET, "", root / "cache", Settings())
    entries = make_files(root / "large", {f"shard-{number}": 256 for number in range(8)})
    bucket.put_tree(root / "large", "large", entries)
    started = time.perf_counter()
    problems = bucket.check_tree("large", entries)
    seconds = time.perf_counter() - started
    print(f"\n2 GB in 8 files verified in the bucket: {seconds:.3f} s, {len(problems)} problems")
    bucket.get_tree("large", entries)
    started = time.perf_counter()
    bucket.get_tree("large", entries)
    print(f"2 GB in 8 files in the cache read and compared: {time.perf_counter() - started:.3f} s")


def make_files(directory: Path, megabytes: dict[str, int]) -> list[FileEntry]:
    directory.mkdir()
    for name, size in megabytes.items():
        with (directory / name).open("wb") as out:
            for _ in range(size):
                out.write(os.urandom(MB))
    return [file_entry(directory, name) for name in megabytes]


def check(source: Path, back: Path) -> None:
    for path in source.iterdir():
        if (back / path.name).stat().st_size != path.stat().st_size:
            raise RuntimeError(f"{path.name} did not come back")


def transfer_manager_up(directory: Path, prefix: str) -> None:
    from google.cloud import storage
    from google.cloud.storage import transfer_manager

    names = [path.name for path in directory.iterdir()]
    results = transfer_manager.upload_many_from_filenames(
        storage.Client().bucket(BUCKET),
        names,
        str(directory),
        f"{prefix}/",
        worker_type=transfer_manager.THREAD,
        raise_exception=True,
    )
    assert len(results) == len(names)


def transfer_manager_down(directory: Path, prefix: str, names: list[str]) -> None:
    from google.cloud import storage
    from google.cloud.storage import transfer_manager

    directory.mkdir()
    bucket = storage.Client().bucket(BUCKET)
    large, *rest = names
    transfer_manager.download_chunks_concurrently(
        bucket.blob(f"{prefix}/{large}"),
        str(directory / large),
        worker_type=transfer_manager.THREAD,
    )
    transfer_manager.download_many_to_path(
        bucket,
        rest,
        str(directory),
        f"{prefix}/",
        worker_type=transfer_manager.THREAD,
        raise_exception=True,
    )


def gcsfs_up(directory: Path, prefix: str) -> None:
    import gcsfs

    gcsfs.GCSFileSystem(token="anon").put(f"{directory}/", f"{BUCKET}/{prefix}/", recursive=True)


def gcsfs_down(directory: Path, prefix: str) -> None:
    import gcsfs

    gcsfs.GCSFileSystem(token="anon").get(f"{BUCKET}/{prefix}/", f"{directory}/", recursive=True)


def upload_url(url: str, prefix: str, name: str) -> str:
    return f"{url}/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={quote(f'{prefix}/{name}', safe='')}"


def download_url(url: str, prefix: str, name: str) -> str:
    return f"{url}/download/storage/v1/b/{BUCKET}/o/{quote(f'{prefix}/{name}', safe='')}?alt=media"


def requests_up(url: str, directory: Path, prefix: str) -> None:
    import requests

    with requests.Session() as session:
        for path in directory.iterdir():
            with path.open("rb") as file:
                session.post(upload_url(url, prefix, path.name), data=file).raise_for_status()


def requests_down(url: str, directory: Path, prefix: str, names: list[str]) -> None:
    import requests

    directory.mkdir()
    with requests.Session() as session:
        for name in names:
            with (
                session.get(download_url(url, prefix, name), stream=True) as answer,
                (directory / name).open("wb") as out,
            ):
                answer.raise_for_status()
                for piece in answer.iter_content(MB):
                    out.write(piece)


def httpx_up(url: str, directory: Path, prefix: str) -> None:
    import httpx

    with httpx.Client(timeout=60) as client:
        for path in directory.iterdir():
            with path.open("rb") as file:
                headers = {"Content-Length": str(path.stat().st_size)}
                client.post(
                    upload_url(url, prefix, path.name),
                    content=iter(lambda: file.read(MB), b""),
                    headers=headers,
                ).raise_for_status()


def httpx_down(url: str, directory: Path, prefix: str, names: list[str]) -> None:
    import httpx

    directory.mkdir()
    with httpx.Client(timeout=60) as client:
        for name in names:
            with (
                client.stream("GET", download_url(url, prefix, name)) as answer,
                (directory / name).open("wb") as out,
            ):
                answer.raise_for_status()
                for piece in answer.iter_raw(MB):
                    out.write(piece)


def curl_up(url: str, directory: Path, prefix: str) -> None:
    """One process and one connection for all files."""
    command = ["curl", "--silent", "--show-error", "--fail"]
    for path in directory.iterdir():
        command += [
            "--request",
            "POST",
            "--header",
            "Expect:",
            "--upload-file",
            str(path),
            upload_url(url, prefix, path.name),
        ]
        command += ["--output", "/dev/null", "--next", "--silent", "--show-error", "--fail"]
    subprocess.run(command[:-4], check=True)


def curl_down(url: str, directory: Path, prefix: str, names: list[str]) -> None:
    directory.mkdir()
    command = ["curl", "--silent", "--show-error", "--fail"]
    for name in names:
        command += ["--output", str(directory / name), download_url(url, prefix, name)]
    subprocess.run(command, check=True)


def curl_and_compare(url: str, directory: Path, prefix: str, entries: Sequence[FileEntry]) -> None:
    curl_down(url, directory, prefix, [entry.path for entry in entries])
    lines = "".join(f"{entry.sha256}  {entry.path}\n" for entry in entries)
    subprocess.run(
        ["sha256sum", "--check", "--quiet"], cwd=directory, input=lines, text=True, check=True
    )


if __name__ == "__main__":
    main()

"""How fast an artifact goes to a bucket and back, beside the tools that others use, through the
fake of Cloud Storage in tests/.

    python -m benchmarks.transfer [--rounds 5] [--large-mb 400] [--verified-mb 2048]

One file of 400 MB and ten of 10 MB, in every round up and back; the first round is not counted
(imports, connections, page cache). The ratio is a tool's seconds to Lyceum's of the same round; CPU
is processor time of the tool's own process. Both ends run on this machine and share its cores, so
the figures compare, and mean nothing else. Ours checks more than the others: the service compares
each upload with the manifest's crc32c and creates nothing over an object that is there; each
downloaded byte is hashed with sha256. Last, an artifact of 2 GB is verified where it lies.
"""

import os
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import quote

from benchmarks.paired import heading, machine, parser, ratios, row, spread, take_turns
from infra.gcs.bucket import Bucket
from infra.settings import Settings
from infra.store.files import file_entry
from schemas.artifact import FileEntry
from tests.fakes.gcs_emulator import Emulator

BUCKET = "benchmark"
MB = 1 << 20
OURS = "lyceum"
CURL = ("curl", "--silent", "--show-error", "--fail")
Transfer = Callable[[Path, str], object]
"""Moves the files of a local directory to the prefix, or those below the prefix to the directory,
which is there and empty."""
Took = tuple[float, float]
"""Seconds of the clock and of the processor."""


def main() -> None:
    made = parser(__doc__, rounds=5)
    made.add_argument("--large-mb", type=int, default=400)
    made.add_argument("--verified-mb", type=int, default=2048)
    options = made.parse_args()
    with Emulator(BUCKET) as emulator, tempfile.TemporaryDirectory() as temporary:
        os.environ |= emulator.environment
        sizes = {"model.safetensors": options.large_mb}
        sizes |= {f"part-{number}": 10 for number in range(10)}
        compare(emulator.url, Path(temporary), options.rounds, sizes)
        verify(Path(temporary), options.verified_mb)


def compare(url: str, root: Path, rounds: int, megabytes: dict[str, int]) -> None:
    """Print the table."""
    source = root / "source"
    entries = make_files(source, megabytes)
    bucket, names = Bucket(BUCKET, "", root / "cache", Settings()), list(megabytes)

    def ours_down(directory: Path, prefix: str) -> None:
        directory.rmdir()
        shutil.move(bucket.get_tree(prefix, entries), directory)

    tools: dict[str, tuple[Transfer, Transfer]] = {
        OURS: (partial(bucket.put_tree, entries=entries), ours_down),
        "transfer_manager": (manager_up, partial(manager_down, names)),
        "gcsfs": (partial(gcsfs, "put"), partial(gcsfs, "get")),
        "requests": (partial(requests_up, url), partial(requests_down, url, names)),
    }
    if shutil.which("curl"):
        up = partial(curl_up, url)
        tools["curl"] = (up, partial(curl_down, url, names))
        tools["curl, sha256sum"] = (up, partial(curl_and_compare, url, entries))

    def there_and_back(name: str, number: int) -> tuple[Took, Took]:
        (up, down), prefix = tools[name], f"{name}-{number}".replace(", ", "-")
        copy, back = root / "copy", root / "back"
        shutil.copytree(source, copy, copy_function=os.link)
        back.mkdir()
        took = timed(up, copy, prefix), timed(down, back, prefix)
        for path in source.iterdir():
            if (back / path.name).stat().st_size != path.stat().st_size:
                raise RuntimeError(f"{name}: {path.name} did not come back")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.rmtree(back)
        bucket.remove(prefix)
        return took

    found = take_turns({name: partial(there_and_back, name) for name in tools}, rounds + 1)
    print(f"{machine('google-cloud-storage', 'gcsfs', 'requests')}; {rounds} rounds")
    print(f"{sum(megabytes.values())} MB in {len(entries)} files")
    units = ("s", "times of Lyceum's", "CPU s")
    heading("", *(f"{way}, {unit}" for way in ("up", "down") for unit in units))
    for name, each in found.items():
        cells = []
        for way in (0, 1):
            times, ours = ([one[way][0] for one in every[1:]] for every in (each, found[OURS]))
            cells += [spread(times, ".2f"), spread(ratios(times, ours), ".2f")]
            cells += [spread([one[way][1] for one in each[1:]], ".2f")]
        row(name, *cells)


def timed(transfer: Transfer, directory: Path, prefix: str) -> Took:
    began, used = time.perf_counter(), processor_seconds()
    transfer(directory, prefix)
    return time.perf_counter() - began, processor_seconds() - used


def processor_seconds() -> float:
    """Of this process and the processes that it waited for, user and system."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def verify(root: Path, megabytes: int) -> None:
    """Print how long it takes to verify an artifact in the bucket, and a copy in the cache."""
    bucket, each = Bucket(BUCKET, "", root / "cache", Settings()), megabytes // 8
    entries = make_files(root / "large", {f"shard-{number}": each for number in range(8)})
    bucket.put_tree(root / "large", "large", entries)
    began = time.perf_counter()
    problems = bucket.check_tree("large", entries)
    seconds = time.perf_counter() - began
    print(f"\n{8 * each} MB in 8 files verified in the bucket: {seconds:.3f} s", end="")
    print(f", {len(problems)} problems")
    bucket.get_tree("large", entries)
    began = time.perf_counter()
    bucket.get_tree("large", entries)
    print(f"the same in the cache read and compared: {time.perf_counter() - began:.3f} s")


def make_files(directory: Path, megabytes: dict[str, int]) -> list[FileEntry]:
    directory.mkdir()
    for name, size in megabytes.items():
        with (directory / name).open("wb") as out:
            for _ in range(size):
                out.write(os.urandom(MB))
    return [file_entry(directory, name) for name in megabytes]


def manager_up(directory: Path, prefix: str) -> None:
    from google.cloud import storage
    from google.cloud.storage import transfer_manager

    names, bucket = [path.name for path in directory.iterdir()], storage.Client().bucket(BUCKET)
    how = {"worker_type": transfer_manager.THREAD, "raise_exception": True}
    where = (str(directory), f"{prefix}/")
    transfer_manager.upload_many_from_filenames(bucket, names, *where, **how)


def manager_down(names: Sequence[str], directory: Path, prefix: str) -> None:
    from google.cloud import storage
    from google.cloud.storage import transfer_manager

    bucket, (large, *rest) = storage.Client().bucket(BUCKET), names
    threads = {"worker_type": transfer_manager.THREAD}
    blob, path = bucket.blob(f"{prefix}/{large}"), str(directory / large)
    transfer_manager.download_chunks_concurrently(blob, path, **threads)
    where = (str(directory), f"{prefix}/")
    transfer_manager.download_many_to_path(bucket, rest, *where, raise_exception=True, **threads)


def gcsfs(verb: str, directory: Path, prefix: str) -> None:
    from gcsfs import GCSFileSystem

    both = [f"{directory}/", f"{BUCKET}/{prefix}/"]
    source, target = both if verb == "put" else both[::-1]
    getattr(GCSFileSystem(token="anon"), verb)(source, target, recursive=True)


def upload_url(url: str, prefix: str, name: str) -> str:
    place = quote(f"{prefix}/{name}", safe="")
    return f"{url}/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={place}"


def download_url(url: str, prefix: str, name: str) -> str:
    place = quote(f"{prefix}/{name}", safe="")
    return f"{url}/download/storage/v1/b/{BUCKET}/o/{place}?alt=media"


def requests_up(url: str, directory: Path, prefix: str) -> None:
    import requests

    with requests.Session() as session:
        for path in directory.iterdir():
            with path.open("rb") as file:
                session.post(upload_url(url, prefix, path.name), data=file).raise_for_status()


def requests_down(url: str, names: Sequence[str], directory: Path, prefix: str) -> None:
    import requests

    with requests.Session() as session:
        for name in names:
            answer = session.get(download_url(url, prefix, name), stream=True)
            with answer, (directory / name).open("wb") as out:
                answer.raise_for_status()
                for piece in answer.iter_content(MB):
                    out.write(piece)


def curl_up(url: str, directory: Path, prefix: str) -> None:
    """One process and one connection for all files."""
    command: list[str] = []
    for path in directory.iterdir():
        command += ["--next"] if command else []
        command += [*CURL[bool(command) :], "--request", "POST", "--header", "Expect:"]
        command += ["--upload-file", str(path), upload_url(url, prefix, path.name)]
        command += ["--output", "/dev/null"]
    subprocess.run(command, check=True)


def curl_down(url: str, names: Sequence[str], directory: Path, prefix: str) -> None:
    command = [*CURL]
    for name in names:
        command += ["--output", str(directory / name), download_url(url, prefix, name)]
    subprocess.run(command, check=True)


def curl_and_compare(url: str, entries: Sequence[FileEntry], directory: Path, prefix: str) -> None:
    curl_down(url, [entry.path for entry in entries], directory, prefix)
    lines = "".join(f"{entry.sha256}  {entry.path}\n" for entry in entries)
    check = ["sha256sum", "--check", "--quiet"]
    subprocess.run(check, cwd=directory, input=lines, text=True, check=True)


if __name__ == "__main__":
    main()

"""A fake of Cloud Storage for tests: a process that speaks the JSON API over HTTP, and the handle
tests hold on it.

By hand: `python -m tests.fakes.gcs_emulator --bucket lyceum-test` prints its URL and runs
until SIGTERM, SIGINT or its parent's end. Clients find it through `STORAGE_EMULATOR_HOST` and need
no credentials (gcsfs: `token="anon"`). Objects live in memory.

`gcs_http.py` is the wire, `gcs_api.py` the calls, `gcs_buckets.py` and `gcs_uploads.py` what is
kept, `gcs_faults.py` what can go wrong. Packaged emulators ignore preconditions on some verbs, so
leases and commits cannot be tested on them.
"""

import argparse
import http.client
import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from tests.fakes.faults import Faults
from tests.fakes.process import FakeProcess, wait_for_the_end


class Emulator(FakeProcess):
    """The process, as a context manager. `url` is where it listens.

    Attributes:
        faults: what shall go wrong.
        environment: variables with which a client process finds it; set them before the process
            imports a client library.
    """

    def __init__(self, *buckets: str) -> None:
        super().__init__("tests.fakes.gcs_emulator", *(f"--bucket={name}" for name in buckets))

    def started(self, *places: str) -> None:
        (self.url,) = places
        self.environment = environment(self.url)
        self.faults = GcsFaults(lambda verb, **wish: json.loads(self.control(verb, **wish)))

    def create_bucket(self, name: str, **resource: Any) -> str:
        """Create a bucket, in US-CENTRAL1 if `resource` does not say otherwise; returns its
        name."""
        self._post("/storage/v1/b", {"name": name, "location": "US-CENTRAL1", **resource})
        return name

    def objects(self, bucket: str) -> dict[str, int]:
        """Name -> size in bytes, by name."""
        return json.loads(self.control("objects", bucket=bucket))

    def read(self, bucket: str, name: str) -> bytes:
        """An object's bytes."""
        return self.control("read", bucket=bucket, name=name)

    def delete(self, bucket: str, name: str) -> None:
        """Remove an object."""
        self.control("delete", bucket=bucket, name=name)

    def corrupt(self, bucket: str, name: str, recompute: bool = False) -> None:
        """Flip a bit in the middle of an object, whose generation stays.

        Args:
            recompute: let the checksum in the metadata tell; False is rot behind the service's
                back.
        """
        self.control("corrupt", bucket=bucket, name=name, recompute=recompute)

    def requests(self) -> dict[str, int]:
        """API requests since the start or `forget_requests`, by method and kind: {"GET download":
        3, ...}. Kinds are `gcs_api.KINDS`."""
        return json.loads(self.control("requests"))

    def forget_requests(self) -> None:
        self.control("forget_requests")

    def control(self, verb: str, **wish: Any) -> bytes:
        """One wish by the control path, which no fault strikes and no count counts."""
        return self._post(f"/_control/{verb}", wish)

    def _post(self, path: str, value: Any) -> bytes:
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=60)
        try:
            kind = {"Content-Type": "application/json"}
            connection.request("POST", path, json.dumps(value), kind)
            answer = connection.getresponse()
            body = answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            said = f"{answer.status} to {path} {value}: {body.decode()}"
            raise RuntimeError(f"the fake of Cloud Storage answered {said}")
        return body


WORST: dict[str, dict[str, Any]] = {
    "status": {"code": 503, "probability": 0.15},
    "reset_before": {"probability": 0.05},
    "reset_after": {"probability": 0.05},
    "truncate": {"kind": "download", "probability": 0.1},
    "flip": {"kind": "download", "probability": 0.1},
    "stale": {"kind": "list", "probability": 0.2, "changes": 3},
    "duplicate": {"probability": 0.05},
    "slow": {"probability": 0.05, "delay": 0.3},
}
"""The faults of `add_all`, and what each strikes."""


class GcsFaults(Faults):
    """What shall go wrong with the process's requests: see `tests.fakes.gcs_faults`."""

    def add_all(self, seed: int = 0) -> dict[str, int]:
        """Add every fault that a client should overcome by itself, at random: a bucket at its
        worst. Returns action -> number."""
        return {
            action: self.add(action, seed=seed + index, **parameters)
            for index, (action, parameters) in enumerate(WORST.items())
        }


def environment(url: str) -> dict[str, str]:
    """Variables that point both client libraries at the URL, and only there."""
    return {
        "STORAGE_EMULATOR_HOST": url,
        "GOOGLE_CLOUD_PROJECT": "lyceum-test",
        "NO_GCE_CHECK": "true",  # no search for a metadata server
        # else a thread asks for each bucket, and may be struck by faults
        "DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA": ("true"),
        # else gcsfs asks a gRPC endpoint for about 60 s per bucket
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": ("false"),
        "FSSPEC_GCS_USE_LISTINGS_CACHE": "false",
        "FSSPEC_GS_USE_LISTINGS_CACHE": "false",
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="A fake of Cloud Storage. Prints its URL.")
    begin = "a bucket to begin with; may be repeated"
    parser.add_argument("--bucket", action="append", default=[], help=begin)
    options = parser.parse_args(arguments)
    from tests.fakes.gcs_http import Server

    with Server() as server:
        for name in options.bucket:
            server.api.buckets.create_bucket({"name": name, "location": "US-CENTRAL1"})
        wait_for_the_end(server.url)


if __name__ == "__main__":
    main()

"""A fake of the Hugging Face hub and of Kaggle's model service, in a thread: what `huggingface_hub`
and `kagglehub` ask for a download, and the former for an upload (`tests.fakes.hub_uploads`).

Hub: https://huggingface.co/docs/hub/api; Kaggle: `kagglesdk.models.services.model_api_service`.
"""

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from huggingface_hub import constants

from tests.fakes.http import HttpServer
from tests.fakes.hub_uploads import UploadHandler

PARQUET = "refs/convert/parquet"
"""The revision that the hub itself makes of a data set; here it has the same files."""


class FakeHub(HttpServer):
    """The server, as a context manager. While it runs, `huggingface_hub` is not offline, which it
    is in all other tests (`tests/conftest.py`).

    Attributes:
        repositories: ORGANISATION/NAME, `datasets/ORGANISATION/NAME`, or
            OWNER/MODEL/FRAMEWORK/VARIATION of Kaggle, -> directory with its files.
        gated: names that ask for a token; `token` opens them, any other does not.
        requests: what was asked: (method, path).
        tokens: what may upload: token -> `write` or `read`.
        namespaces: accounts and organisations that there are; `writable`: those that a token may
            write to.
        private: names of repositories that were made so.
        objects: contents of large files by their sha256, whether a commit names them or not;
            `largest`: bytes that one may have; `received`: bytes that came.
        commits: of uploads: (repository, title).
        refusals: a pattern of `METHOD PATH` -> (status, message) of every answer to that.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, Path] = {}
        self.gated: set[str] = set()
        self.token = "hf_good"
        self.requests: list[tuple[str, str]] = []
        self.tokens = {"hf_writes": "write", "hf_reads": "read"}
        self.namespaces, self.writable = {"me", "us", "others"}, {"me", "us"}
        self.private: set[str] = set()
        self.objects: dict[str, bytes] = {}
        self.parts: dict[tuple[str, int], bytes] = {}
        self.largest, self.received = 1 << 30, 0
        self.commits: list[tuple[str, str]] = []
        self.refusals: dict[str, tuple[int, str]] = {}
        self._made = tempfile.TemporaryDirectory()
        super().__init__(_Handler)
        self._online = pytest.MonkeyPatch()
        self._online.setenv("HF_HUB_OFFLINE", "0")
        self._online.setattr(constants, "HF_HUB_OFFLINE", False)

    def stop(self) -> None:
        self._online.undo()
        super().stop()
        self._made.cleanup()

    def add(self, name: str, *, private: bool) -> Path:
        """Make an empty repository; returns its directory."""
        self.repositories[name] = Path(self._made.name) / name
        self.repositories[name].mkdir(parents=True)
        if private:
            self.private.add(name)
        return self.repositories[name]

    def commit(self, name: str) -> str:
        """The revision of a repository: it changes with its files."""
        paths = [path for path in self.repositories[name].rglob("*") if path.is_file()]
        files = sorted((path.name, hashlib.sha1(path.read_bytes()).hexdigest()) for path in paths)
        return hashlib.sha1(json.dumps([name, files]).encode()).hexdigest()

    def downloads(self) -> list[str]:
        """Names of the files that were sent, from either hub."""
        return [
            path.rpartition("/")[2]
            for method, path in self.requests
            if method in ("GET", "FILE") and ("/resolve/" in path or method == "FILE")
        ]


class _Handler(UploadHandler):
    def do_PUT(self) -> None:
        assert self.uploads(), self.path

    def do_GET(self) -> None:
        if self.uploads():
            return
        path = urlsplit(self.path).path
        self.server.requests.append((self.command, unquote(path)))
        parts = [unquote(part) for part in path.strip("/").split("/")]  # a revision may have a "/"
        if parts[:2] == ["api", "models"]:
            self._about("/".join(parts[2:4]), parts[4:])
        elif parts[:2] == ["api", "datasets"]:
            self._about("/".join(parts[1:4]), parts[4:])
        elif parts[0] == "datasets" and "resolve" in parts:
            self._file("/".join(parts[:3]), parts[4], "/".join(parts[5:]))
        elif "resolve" not in parts:
            self.answer(404, b"{}")  # the library asks for more than files
        else:
            self._file("/".join(parts[:2]), parts[3], "/".join(parts[4:]))

    do_HEAD = do_GET

    def _about(self, name: str, what: list[str]) -> None:
        directory = self.server.repositories.get(name)
        if directory is None:
            return self.answer(401, b"{}", {"X-Error-Message": "Invalid username or password."})
        commit = self.server.commit(name)
        revision = what[1] if len(what) > 1 else "main"
        if revision not in ("main", PARQUET, commit):
            return self.answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        if what and what[0] == "tree":
            asked = parse_qs(urlsplit(self.path).query).get("recursive", [""])[0]
            below = "/".join(what[2:])
            if not (directory / below).is_dir():
                return self.answer(404, b"{}", {"X-Error-Code": "EntryNotFound"})
            return self.answer(200, _tree(directory, below, asked.lower() == "true"))
        siblings = [{"rfilename": path} for path, _ in _files(directory)]
        who = {"gated": name in self.server.gated, "private": name in self.server.private}
        return self.answer(200, {"id": name, "sha": commit, "siblings": siblings, **who})

    def _file(self, name: str, revision: str, path: str) -> None:
        if name in self.server.gated and (refusal := self._refusal()):
            said = f"Access to model {name} is restricted."
            why = {"X-Error-Code": "GatedRepo", "X-Error-Message": said}
            return self.answer(refusal, b"", why)
        file = self.server.repositories[name] / path
        if not file.is_file():
            return self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        data = file.read_bytes()
        headers = {"X-Repo-Commit": self.server.commit(name), "Accept-Ranges": "bytes"}
        headers["ETag"] = f'"{hashlib.sha256(data).hexdigest()}"'
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0])
        return self.answer(206 if start else 200, data[start:], headers)

    def _paths(self, name: str) -> None:
        raw = self.rfile.read(int(self.headers["Content-Length"])).decode()
        asked = json.loads(raw)["paths"] if raw.startswith("{") else parse_qs(raw)["paths"]
        self.server.requests.append((self.command, f"paths-info {name}"))
        directory = self.server.repositories.get(name)
        if directory is None:
            return self.answer(401, b"{}", {"X-Error-Message": "Invalid username or password."})
        wanted = [asked] if isinstance(asked, str) else asked
        every = _tree(directory, "", recursive=True)
        return self.answer(200, [one for one in every if one["path"] in wanted])

    def _refusal(self) -> int:
        said = self.headers.get("Authorization")
        return 0 if said == f"Bearer {self.server.token}" else 403 if said else 401

    def do_POST(self) -> None:
        """Uploads; Kaggle; and of the hub what some paths are."""
        if self.uploads():
            return
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        if parts[:2] == ["api", "datasets"]:
            return self._paths("/".join(parts[1:4]))
        call = self.path.rpartition("/")[2]
        wish = self.body()
        framework = str(wish["framework"]).removeprefix("MODEL_FRAMEWORK_").lower()
        name = "/".join([wish["ownerSlug"], wish["modelSlug"], framework, wish["instanceSlug"]])
        self.server.requests.append((self.command, f"{call} {name}"))
        directory = self.server.repositories.get(name)
        if directory is None:
            return self.answer(404, {"code": 404, "message": "Not found"})
        files = [{"name": path, "size": size} for path, size in _files(directory)]
        if call == "GetModelInstance":
            about = {"slug": wish["instanceSlug"], "versionNumber": 3}
            about["totalUncompressedBytes"] = sum(one["size"] for one in files)
            return self.answer(200, about)
        if name in self.server.gated and (refusal := self._refusal()):
            return self.answer(refusal, {"code": refusal, "message": "Permission denied"})
        if call == "ListModelInstanceVersionFiles":
            return self.answer(200, {"files": files, "nextPageToken": ""})
        self.server.requests.append(("FILE", wish["path"]))
        binary = {"Content-Type": "application/octet-stream"}
        return self.answer(200, (directory / wish["path"]).read_bytes(), binary)


def _tree(directory: Path, below: str, recursive: bool = False) -> list[dict[str, Any]]:
    """What lies in a directory of a repository, itself left out."""
    found: list[dict[str, Any]] = []
    inside = directory / below
    for path in sorted(inside.rglob("*") if recursive else inside.iterdir()):
        name = path.relative_to(directory).as_posix()
        if path.is_dir():
            found.append({"type": "directory", "path": name, "oid": name, "size": 0})
        else:
            digest = hashlib.sha1(path.read_bytes()).hexdigest()
            found.append({"type": "file", "path": name, "size": path.stat().st_size, "oid": digest})
    return found


def _files(directory: Path) -> list[tuple[str, int]]:
    return sorted(
        (path.relative_to(directory).as_posix(), path.stat().st_size)
        for path in directory.rglob("*")
        if path.is_file()
    )

"""What the Hugging Face hub does with uploads, for `tests.fakes.fake_hub`: repositories are made,
files are asked about, large ones come by git-LFS's batch protocol, and a commit of NDJSON names all
of them. What `huggingface_hub.HfApi` sends is answered, and nothing is taken on trust: sizes and
digests are checked, and so is the card's metadata.
"""

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import yaml

from tests.fakes.http import Handler

if TYPE_CHECKING:
    from tests.fakes.fake_hub import FakeHub

PART = 64 << 10
"""Bytes of a part of a large file: more come in several."""

LARGE = (".safetensors", ".png", ".model", ".parquet")


def object_id(data: bytes, large: bool) -> str:
    """What the hub calls a file's content: sha256 of a large one, else git's."""
    if large:
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class UploadHandler(Handler):
    server: "FakeHub"

    def uploads(self) -> bool:
        """Answer a request of an upload; False: it is none."""
        path = unquote(urlsplit(self.path).path)
        for pattern, (status, said) in self.server.refusals.items():
            if re.search(pattern, f"{self.command} {path}"):
                self._drain()
                self.answer(status, {"error": said}, {"X-Error-Message": said})
                return True
        for pattern, answer in _ROUTES.items():
            if found := re.fullmatch(pattern, f"{self.command} {path}"):
                self.server.requests.append((self.command, path))
                if "lfs-store" not in path and self._token() not in self.server.tokens:
                    self._drain()
                    self.answer(401, {"error": "Invalid username or password."})
                else:
                    answer(self, *found.groups())
                return True
        return False

    def _token(self) -> str:
        return self.headers.get("Authorization", "").removeprefix("Bearer ")

    def _drain(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _whoami(self) -> None:
        role = self.server.tokens[self._token()]
        token = {"displayName": "test", "role": role}
        orgs = [{"name": name} for name in sorted(self.server.writable)]
        about = {"type": "user", "name": "me", "orgs": orgs, "auth": {"accessToken": token}}
        self.answer(200, about)

    def _create(self) -> None:
        wish = self.body()
        owner = wish["organization"] or "me"
        name = f"{'datasets/' if wish.get('type') == 'dataset' else ''}{owner}/{wish['name']}"
        if owner not in self.server.namespaces:
            return self.answer(404, {"error": "Organization not found"})
        if owner not in self.server.writable:
            said = f"You don't have the rights to create a model under the namespace {owner!r}"
            return self.answer(403, {"error": said}, {"X-Error-Message": said})
        where = {"url": f"{self.server.url}/{name}", "name": name}
        if name in self.server.repositories:
            return self.answer(409, {"error": "You already created this model repo", **where})
        self.server.add(name, private=wish["visibility"] == "private")
        self.answer(200, where)

    def _auth_check(self, kind: str, name: str, write: str | None) -> None:
        name = f"{'datasets/' if kind == 'dataset' else ''}{name}"
        if name not in self.server.repositories:
            return self.answer(404, {"error": "none"}, {"X-Error-Code": "RepoNotFound"})
        if name in self.server.gated:
            said = "Access to this model is restricted; you are not in the authorized list."
            codes = {"X-Error-Code": "GatedRepo", "X-Error-Message": said}
            return self.answer(403, {"error": said}, codes)
        owner = name.removeprefix("datasets/").split("/")[0]
        if write and owner not in self.server.writable:
            return self.answer(403, {"error": "no"}, {"X-Error-Message": "no right to write"})
        self.answer(200, {})

    def _validate(self) -> None:
        asked = self.body()
        problems = card_problems(asked["content"], asked["repoType"])
        self.answer(400 if problems else 200, {"errors": problems, "warnings": []})

    def _preupload(self, kind: str, name: str, revision: str) -> None:
        directory = self._directory(kind, name)
        told = []
        for file in self.body()["files"]:
            path, there = file["path"], directory / file["path"]
            large = path.endswith(LARGE)
            try:
                base64.b64decode(file["sample"]).decode()
            except UnicodeDecodeError:
                large = True
            mode = {"uploadMode": "lfs" if large else "regular", "shouldIgnore": False}
            oid = {"oid": object_id(there.read_bytes(), large)} if there.is_file() else {}
            told.append({"path": path, **mode, **oid})
        self.answer(200, {"files": told})

    def _batch(self, dataset: str | None, name: str) -> None:
        asked = self.body()
        assert asked["operation"] == "upload"
        objects = [self._upload_of(one) for one in asked["objects"]]
        self.answer(200, {"transfer": "basic", "objects": objects})

    def _upload_of(self, wanted: dict[str, Any]) -> dict[str, Any]:
        oid, size = wanted["oid"], wanted["size"]
        if size > self.server.largest:
            return {**wanted, "error": {"code": 422, "message": "the file is too large"}}
        if oid in self.server.objects:
            return wanted
        upload: dict[str, Any] = {"href": f"{self.server.url}/lfs-store/{oid}"}
        if size > PART:
            parts = range(1, -(-size // PART) + 1)
            urls = {str(part): f"{self.server.url}/lfs-store/{oid}/{part}" for part in parts}
            upload["header"] = {"chunk_size": str(PART), **urls}
        verify = {"href": f"{self.server.url}/lfs-verify"}
        return {**wanted, "actions": {"upload": upload, "verify": verify}}

    def _store(self, oid: str, part: str | None) -> None:
        data = self._drain() if "Content-Length" in self.headers else self._chunks()
        self.server.received += len(data)
        if part is None:
            if hashlib.sha256(data).hexdigest() != oid:
                return self.answer(400, {"error": "another content"})
            self.server.objects[oid] = data
        else:
            self.server.parts[oid, int(part)] = data
        self.answer(200, b"", {"ETag": hashlib.md5(data).hexdigest()})

    def _chunks(self) -> bytes:
        """A body in chunks, of a client that does not know how long it is."""
        data = b""
        while size := int(self.rfile.readline(), 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return data

    def _complete(self, oid: str) -> None:
        asked = self.body()
        parts = [self.server.parts.pop((oid, one["partNumber"])) for one in asked["parts"]]
        for part, told in zip(parts, asked["parts"], strict=True):
            assert hashlib.md5(part).hexdigest() == told["etag"]
        data = b"".join(parts)
        if hashlib.sha256(data).hexdigest() != oid:
            return self.answer(400, {"error": "another content"})
        self.server.objects[oid] = data
        self.answer(200, {})

    def _verify(self) -> None:
        asked = self.body()
        found = self.server.objects.get(asked["oid"])
        well = found is not None and len(found) == asked["size"]
        self.answer(200 if well else 404, {})

    def _commit(self, kind: str, name: str, revision: str) -> None:
        directory = self._directory(kind, name)
        lines = [json.loads(line) for line in self._drain().splitlines()]
        head, *operations = lines
        assert head["key"] == "header"
        assert head["value"]["summary"]
        for one in operations:
            path, value = directory / one["value"]["path"], one["value"]
            if one["key"] == "deletedFile":
                path.unlink()
                continue
            if one["key"] == "lfsFile":
                data = self.server.objects[value["oid"]]
                assert len(data) == value["size"]
            else:
                data = base64.b64decode(value["content"])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        full = f"{'datasets/' if kind == 'dataset' else ''}{name}"
        self.server.commits.append((full, head["value"]["summary"]))
        oid = self.server.commit(full)
        self.answer(200, {"commitUrl": f"{self.server.url}/{full}/commit/{oid}", "commitOid": oid})

    def _directory(self, kind: str, name: str) -> Path:
        return self.server.repositories[f"{'datasets/' if kind == 'dataset' else ''}{name}"]


_REPOSITORY = r"(model|dataset)s/([\w.-]+/[\w.-]+)"
_ROUTES: dict[str, Any] = {
    "GET /api/whoami-v2": UploadHandler._whoami,
    "POST /api/repos/create": UploadHandler._create,
    f"GET /api/{_REPOSITORY}/auth-check(/write)?": UploadHandler._auth_check,
    "POST /api/validate-yaml": UploadHandler._validate,
    f"POST /api/{_REPOSITORY}/preupload/(.+)": UploadHandler._preupload,
    r"POST /(datasets/)?([\w.-]+/[\w.-]+)\.git/info/lfs/objects/batch": UploadHandler._batch,
    r"PUT /lfs-store/(\w+)(?:/(\d+))?": UploadHandler._store,
    r"POST /lfs-store/(\w+)": UploadHandler._complete,
    "POST /lfs-verify": UploadHandler._verify,
    f"POST /api/{_REPOSITORY}/commit/(.+)": UploadHandler._commit,
}


def card_problems(text: str, kind: str) -> list[dict[str, str]]:
    """What is wrong with a card's metadata, by the hub's rules for what we write
    (https://github.com/huggingface/hub-docs/blob/main/modelcard.md)."""
    try:
        _, front, _ = text.split("---\n", 2)
        about = yaml.safe_load(front)
    except (ValueError, yaml.YAMLError) as error:
        return [{"message": f"no metadata: {error}"}]
    problems = [] if isinstance(about.get("tags", []), list) else ["tags must be a list"]
    for model in about.get("model-index", ()) if kind == "model" else ():
        if not model.get("name"):
            problems.append("model-index[0].name is required")
        for result in model["results"]:
            told = {"task.type": result["task"].get("type")}
            told |= {f"dataset.{key}": result["dataset"].get(key) for key in ("name", "type")}
            told["metrics"] = all(one.get("type") and "value" in one for one in result["metrics"])
            problems += [f"results.{name}" for name, well in told.items() if not well]
    return [{"message": one} for one in problems]

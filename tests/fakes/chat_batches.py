"""The batch files of `tests.fakes.chat_server`: /v1/files and /v1/batches as OpenAI documents them,
finished when a test says so."""

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.fakes.chat_server import ChatServer, Request, _Connection


class Batches:
    """Files and batches.

    Attributes:
        created: the batches in the order in which they were made, as JSON.
        ready: whether batches are completed when they are looked at; else they stay in progress.
        fail: custom_id -> the line of the error file instead of an answer.
        unanswered: custom_ids that expire: they are in neither file.
        ending: the status of a batch that is over: completed, expired, failed.
    """

    def __init__(self, server: "ChatServer") -> None:
        self.created: list[dict[str, Any]] = []
        self.ready = True
        self.fail: dict[str, dict[str, Any]] = {}
        self.unanswered: set[str] = set()
        self.ending = "completed"
        self.polls = 0
        self._server = server
        self._files: dict[str, bytes] = {}

    async def handle(self, request: "Request", connection: "_Connection") -> None:
        path = request.path.split("?")[0]
        parts = path.removeprefix("/v1/").split("/")
        if parts == ["files"] and request.method == "POST":
            name = self._keep(_file_in(request))
            connection.send(200, json.dumps(_file(name, len(self._files[name]))).encode())
        elif parts == ["batches"] and request.method == "POST":
            connection.send(200, json.dumps(self._create(request.body)).encode())
        elif parts == ["batches"]:
            data = list(reversed(self.created))
            connection.send(
                200, json.dumps({"object": "list", "data": data, "has_more": False}).encode()
            )
        elif parts[0] == "batches" and (
            batch := next((batch for batch in self.created if batch["id"] == parts[1]), None)
        ):
            self.polls += 1
            if self.ready and batch["status"] == "in_progress":
                self.finish(batch)
            connection.send(200, json.dumps(batch).encode())
        elif parts[0] == "files" and parts[-1] == "content" and parts[1] in self._files:
            connection.send(
                200, self._files[parts[1]], {"content-type": "application/octet-stream"}
            )
        else:
            connection.send(
                404, json.dumps({"error": {"message": f"no {path}", "code": "not_found"}}).encode()
            )

    def _keep(self, content: bytes) -> str:
        name = f"file-{len(self._files)}"
        self._files[name] = content
        return name

    def _create(self, body: dict[str, Any]) -> dict[str, Any]:
        lines = self._files[body["input_file_id"]].splitlines()
        batch = {
            "id": f"batch_{len(self.created)}",
            "object": "batch",
            "endpoint": body["endpoint"],
            "errors": None,
            "input_file_id": body["input_file_id"],
            "completion_window": body["completion_window"],
            "status": "in_progress",
            "output_file_id": None,
            "error_file_id": None,
            "created_at": 1,
            "metadata": body.get("metadata"),
            "request_counts": {"total": len(lines), "completed": 0, "failed": 0},
        }
        self.created.append(batch)
        return batch

    def finish(self, batch: dict[str, Any]) -> None:
        """Work the batch off."""
        from tests.fakes.chat_server import completion

        batch["status"] = self.ending
        if self.ending == "failed":
            problem = {
                "code": "invalid",
                "message": "the model has no batches",
                "line": 1,
                "param": None,
            }
            batch["errors"] = {"object": "list", "data": [problem]}
            return
        output, errors = [], []
        for line in self._files[batch["input_file_id"]].splitlines():
            asked = json.loads(line)
            name, body = asked["custom_id"], asked["body"]
            if name in self.unanswered:
                continue
            if name in self.fail:
                errors.append({"id": "x", "custom_id": name, **self.fail[name]})
                continue
            self._server.billed[body["messages"][-1]["content"]] += 1
            answer = completion(body, self._server.reply(body))
            response = {"status_code": 200, "request_id": "r", "body": answer}
            output.append({"id": "x", "custom_id": name, "response": response, "error": None})
        if output:
            batch["output_file_id"] = self._keep(
                b"".join(json.dumps(line).encode() + b"\n" for line in reversed(output))
            )
        if errors:
            batch["error_file_id"] = self._keep(
                b"".join(json.dumps(line).encode() + b"\n" for line in errors)
            )
        batch["request_counts"] = {
            "total": len(output) + len(errors),
            "completed": len(output),
            "failed": len(errors),
        }


def _file(name: str, size: int) -> dict[str, Any]:
    return {
        "id": name,
        "object": "file",
        "bytes": size,
        "created_at": 1,
        "filename": "x.jsonl",
        "purpose": "batch",
        "status": "processed",
    }


def _file_in(request: "Request") -> bytes:
    """The part called `file` of a multipart body."""
    boundary = re.search(r"boundary=\"?([^\";]+)", request.headers["content-type"])
    for part in request.raw.split(b"--" + boundary[1].encode()):
        head, _, content = part.partition(b"\r\n\r\n")
        if b'name="file"' in head:
            return content.removesuffix(b"\r\n")
    raise AssertionError("no file in the upload")

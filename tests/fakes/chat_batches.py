"""The batch files of `tests.fakes.chat_server`: /v1/files and /v1/batches as OpenAI documents them,
finished when a test says so."""

import json
from typing import TYPE_CHECKING, Any

from tasks.rehearsal.batch_desk import uploaded

if TYPE_CHECKING:
    from tests.fakes.chat_server import ChatServer, Request, _Connection


class Batches:
    """Files and batches.

    Attributes:
        created: the batches in the order in which they were made, as JSON.
        ready: whether batches are completed when they are looked at; else they stay in progress.
        fail: custom_id -> the line of the error file instead of an answer.
        unanswered: custom_ids that expire: they are in neither file. So are longer ones than
            OpenRouter takes.
        files: their bytes by id.
        ending: the status of a batch that is over: completed, expired, failed.
    """

    def __init__(self, server: "ChatServer") -> None:
        self.created: list[dict[str, Any]] = []
        self.ready = True
        self.fail: dict[str, dict[str, Any]] = {}
        self.unanswered: set[str] = set()
        self.ending = "completed"
        self._server = server
        self.files: dict[str, bytes] = {}

    async def handle(self, request: "Request", connection: "_Connection") -> None:
        path = request.path.split("?")[0]
        parts = path.removeprefix("/v1/").split("/")
        if parts[0] == "files" and parts[-1] == "content" and parts[1] in self.files:
            binary = {"content-type": "application/octet-stream"}
            return connection.send(200, self.files[parts[1]], binary)
        found = self._answer(request, parts)
        missing = {"error": {"message": f"no {path}", "code": "not_found"}}
        connection.send(200 if found else 404, json.dumps(found or missing).encode())

    def _answer(self, request: "Request", parts: list[str]) -> dict[str, Any] | None:
        if parts == ["files"] and request.method == "POST":
            name = self._keep(uploaded(request.raw, request.headers["content-type"]))
            return _file(name, len(self.files[name]))
        if parts == ["batches"] and request.method == "POST":
            return self._create(request.body)
        if parts == ["batches"]:
            return {"object": "list", "data": self.created[::-1], "has_more": False}
        for batch in self.created:
            if parts == ["batches", batch["id"]]:
                if self.ready and batch["status"] == "in_progress":
                    self.finish(batch)
                return batch
        return None

    def _keep(self, content: bytes) -> str:
        name = f"file-{len(self.files)}"
        self.files[name] = content
        return name

    def _create(self, body: dict[str, Any]) -> dict[str, Any]:
        lines = self.files[body["input_file_id"]].splitlines()
        asked = {key: body[key] for key in ("endpoint", "input_file_id", "completion_window")}
        asked |= {"id": f"batch_{len(self.created)}", "metadata": body.get("metadata")}
        counts = {"total": len(lines), "completed": 0, "failed": 0}
        batch = {**asked, "object": "batch", "status": "in_progress", "request_counts": counts}
        batch |= {"errors": None, "output_file_id": None, "error_file_id": None, "created_at": 1}
        self.created.append(batch)
        return batch

    def finish(self, batch: dict[str, Any]) -> None:
        """Work the batch off."""
        from tests.fakes.chat_server import completion

        batch["status"] = self.ending
        if self.ending == "failed":
            problem = {"code": "invalid", "message": "the model has no batches", "line": 1}
            problem["param"] = None
            batch["errors"] = {"object": "list", "data": [problem]}
            return
        output, errors = [], []
        for line in self.files[batch["input_file_id"]].splitlines():
            asked = json.loads(line)
            name, body = asked["custom_id"], asked["body"]
            if name in self.unanswered or len(name) > 64:
                continue
            if name in self.fail:
                errors.append({"id": "x", "custom_id": name, **self.fail[name]})
                continue
            self._server.billed[body["messages"][-1]["content"]] += 1
            answer = completion(body, self._server.reply(body))
            response = {"status_code": 200, "request_id": "r", "body": answer}
            output.append({"id": "x", "custom_id": name, "response": response, "error": None})
        for name, lines in (("output_file_id", output[::-1]), ("error_file_id", errors)):
            if lines:
                text = "".join(json.dumps(line) + "\n" for line in lines)
                batch[name] = self._keep(text.encode())
        counts = {"completed": len(output), "failed": len(errors)}
        batch["request_counts"] = {"total": sum(counts.values()), **counts}


def _file(name: str, size: int) -> dict[str, Any]:
    about = {"object": "file", "created_at": 1, "filename": "x.jsonl", "purpose": "batch"}
    return {"id": name, "bytes": size, "status": "processed", **about}

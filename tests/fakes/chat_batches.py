"""The batch files of `tests.fakes.chat_server`: a stand-in's, whose batches are in progress until
they are looked at, and end as a test says."""

import json
from collections.abc import Mapping
from threading import Lock
from typing import TYPE_CHECKING, Any

from aiohttp import web

from tasks.rehearsal.batch_desk import BatchDesk, completion

if TYPE_CHECKING:
    from tests.fakes.chat_server import ChatServer, Request


class Batches(BatchDesk):
    """Files and batches.

    Attributes:
        fail: custom_id -> the line of the error file instead of an answer.
        unanswered: custom_ids that expire: they are in neither file. So are longer ones than
            OpenRouter takes.
        ending: the status of a batch that is over: completed, expired, failed.
    """

    def __init__(self, server: "ChatServer") -> None:
        super().__init__(self._billed)
        self.fail: dict[str, dict[str, Any]] = {}
        self.unanswered: set[str] = set()
        self.ending = "completed"
        self._server, self._lock = server, Lock()

    async def handle(self, request: "Request") -> web.Response:
        path = request.path.removeprefix("/v1")
        if request.method != "POST":
            found = self.get(path)
        else:
            found = self.post(path, request.raw, request.headers["content-type"])
        if isinstance(found, bytes):
            return web.Response(body=found)
        missing = {"error": {"message": f"no {path}", "code": "not_found"}}
        return web.json_response(found or missing, status=200 if found else 404)

    def finish(self, batch: dict[str, Any]) -> None:
        """Of what was answered, leave what is to come."""
        lines = map(json.loads, self.files.pop(batch["output_file_id"]).splitlines())
        told = [line for line in lines if line][::-1]
        for file, failed in (("output_file_id", False), ("error_file_id", True)):
            kept = [json.dumps(one) for one in told if (one["custom_id"] in self.fail) == failed]
            batch[file] = self._keep("\n".join(kept).encode()) if kept else None
        batch["status"] = self.ending
        if self.ending == "failed":
            problem = {"code": "invalid", "message": "the model has no batches", "line": 1}
            batch["errors"] = {"object": "list", "data": [{**problem, "param": None}]}

    def _batch(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        batch = super()._batch(asked)
        self.finish(batch)
        return batch | {"status": "in_progress"}

    def _line(self, line: Mapping[str, Any]) -> dict[str, Any]:
        name = line["custom_id"]
        if self.ending == "failed" or name in self.unanswered or len(name) > 64:
            return {}
        if name in self.fail:
            return {"id": "x", "custom_id": name, **self.fail[name]}
        return super()._line(line)

    def _billed(self, body: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        with self._lock:
            self._server.billed[body["messages"][-1]["content"]] += 1
            return 200, completion(body, self._server.reply(dict(body)))

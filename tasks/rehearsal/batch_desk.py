"""Batch files as a stand-in has them: OpenAI's /files and /batches, each batch worked off as soon
as it is made. So a teacher that answers through batch files (`tasks.chat.batch_files`) is rehearsed
as it will run.

Names are drawn: a batch that an earlier rehearsal noted in the store is not found here.
"""

import json
import secrets
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from email import message_from_bytes
from typing import Any

Answer = Callable[[Mapping[str, Any]], tuple[int, dict[str, Any]]]
"""Status and JSON for a chat request's body."""

_AT_A_TIME = 8
_PER_TOKEN = 4
"""Characters of a token, for the usage that a rule reports."""


class BatchDesk:
    """Files and batches, in memory.

    Attributes:
        batches: those that were made, by id, the newest last.
        files: their bytes, by id.
    """

    def __init__(self, answer: Answer) -> None:
        self.batches: dict[str, dict[str, Any]] = {}
        self.files: dict[str, bytes] = {}
        self._answer = answer

    def get(self, path: str) -> bytes | dict[str, Any] | None:
        """What lies at a path behind the stand-in's own; None: nothing."""
        match path.partition("?")[0].strip("/").split("/"):
            case ["batches"]:
                newest = [*self.batches.values()][::-1]
                return {"object": "list", "data": newest, "has_more": False}
            case ["batches", name]:
                return self.batches.get(name)
            case ["files", name, "content"]:
                return self.files.get(name)
        return None

    def post(self, path: str, body: bytes, content_type: str) -> dict[str, Any] | None:
        """Take a file, or work off a batch; None: the path is of neither."""
        match path.strip("/"):
            case "files":
                return self._file(uploaded(body, content_type))
            case "batches":
                return self._batch(json.loads(body))
        return None

    def _file(self, content: bytes) -> dict[str, Any]:
        name = self._keep(content)
        about = {"object": "file", "purpose": "batch", "status": "processed", "created_at": 1}
        return {"id": name, "bytes": len(content), "filename": "requests.jsonl", **about}

    def _batch(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        lines = [json.loads(line) for line in self.files[asked["input_file_id"]].splitlines()]
        with ThreadPoolExecutor(_AT_A_TIME) as pool:
            answered = [json.dumps(line) + "\n" for line in pool.map(self._line, lines)]
        name = f"batch_{secrets.token_hex(8)}"
        self.batches[name] = {
            "id": name,
            "object": "batch",
            "status": "completed",
            "created_at": 1,
            "output_file_id": self._keep("".join(answered).encode()),
            "error_file_id": None,
            "errors": None,
            "request_counts": {"total": len(lines), "completed": len(lines), "failed": 0},
            "metadata": None,
            **asked,
        }
        return self.batches[name]

    def _keep(self, content: bytes) -> str:
        name = f"file-{secrets.token_hex(8)}"
        self.files[name] = content
        return name

    def _line(self, line: Mapping[str, Any]) -> dict[str, Any]:
        status, value = self._answer(line["body"])
        response = {"status_code": status, "request_id": "stand-in", "body": value}
        return {"id": "x", "custom_id": line["custom_id"], "response": response, "error": None}


def uploaded(body: bytes, content_type: str) -> bytes:
    """The file in a multipart form."""
    message = message_from_bytes(b"Content-Type: " + content_type.encode() + b"\r\n\r\n" + body)
    for part in message.walk():
        if part.get_filename() is not None:
            content = part.get_payload(decode=True)
            assert isinstance(content, bytes)
            return content
    raise ValueError("there is no file in the form")


def completion(body: Mapping[str, Any], text: str) -> dict[str, Any]:
    """The chat completion that answers a request's body with a text."""
    inputs, outputs = (max(1, len(one) // _PER_TOKEN) for one in (json.dumps(body), text))
    message = {"role": "assistant", "content": text}
    return {
        "id": "stand-in",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": inputs,
            "completion_tokens": outputs,
            "total_tokens": inputs + outputs,
        },
    }

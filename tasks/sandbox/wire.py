"""A pair of pipes between two sandboxed processes, and frames on it. Runs inside the sandbox.

A frame is 8 bytes of length and a JSON list. The examiner asks, the candidate answers, each frame
with the number of the request that it belongs to. While a request is under way the candidate may
ask back for what the tests passed to it:

examiner   [number, "do", operation, object, arguments, named]
candidate  [number, "value", value, changed arguments] | [number, "end"] | [number, "raise", names,
           text, arguments, attributes, object] [number, "back", operation, object, arguments,
           named]
examiner   [number, "value", value] | [number, "end"] | [number, "raise", names, text, arguments]

`tasks.sandbox.plain` says what a value is. Objects that stay where they are cross as numbers:
{"object": number} is one of the candidate's, {"lent": number} one of the examiner's.
"""

import json
import os
from typing import Any

LARGEST = 64 * 2**20  # bytes of a frame


class Pipe:
    """One end of the pair."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        self._incoming, self._outgoing = incoming, outgoing

    def send(self, frame: list[Any]) -> None:
        """Raises OSError when the other end is gone, ValueError for a frame that is too large."""
        data = json.dumps(frame).encode()
        if len(data) > LARGEST:
            raise ValueError(
                f"a value of {len(data)} bytes is too large; at most {LARGEST} can cross"
            )
        view = memoryview(len(data).to_bytes(8, "big") + data)
        while view:
            view = view[os.write(self._outgoing, view[: 2**20]) :]

    def receive(self) -> Any:
        """Receive what the other end sent. Raises EOFError when it is gone, and any Exception for
        bytes that are no frame."""
        size = int.from_bytes(self._exactly(8), "big")
        if size > LARGEST:
            raise ValueError(f"a frame of {size} bytes; at most {LARGEST} can be handed over")
        return json.loads(self._exactly(size))

    def _exactly(self, size: int) -> bytes:
        parts = []
        while size:
            part = os.read(self._incoming, min(size, 2**20))
            if not part:
                raise EOFError
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

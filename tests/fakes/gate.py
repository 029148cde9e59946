"""A TCP gate in front of a server: it forwards, refuses connections, or hangs (accepts and passes
nothing on), as a test says."""

import socket
import threading
import time
from contextlib import suppress
from typing import Literal, Self
from urllib.parse import urlsplit

Mode = Literal["forward", "refuse", "hang"]


class Gate:
    """A context manager. `url` is the upstream's with the gate's own port, which stays the same.

    `connections` counts those that were accepted.

    Args:
        upstream: a URL of 127.0.0.1.
        when: the gate turns by itself, once, as soon as a client has sent these bytes.
        then: what it turns to.
    """

    def __init__(self, upstream: str, when: bytes = b"", then: Mode = "refuse") -> None:
        parts = urlsplit(upstream)
        self._upstream, self._when, self._then = parts.port, when, then
        self._mode: Mode = "forward"
        self._open: list[socket.socket] = []
        self._listener = self._listen(0)
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}{parts.path}"
        self.turned = threading.Event()
        self.connections = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.turn("refuse")

    def turn(self, mode: Mode) -> None:
        """Change what happens to connections, also to open ones."""
        before, self._mode = self._mode, mode
        if mode == "refuse" and before != "refuse":
            for one in [self._listener, *self._open]:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                one.close()
            self._open.clear()
        elif before == "refuse" and mode != "refuse":
            self._listener = self._listen(self.port)
        self.turned.set()

    def _listen(self, port: int) -> socket.socket:
        listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return listener

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = listener.accept()
                self.connections += 1
                server = socket.create_connection(("127.0.0.1", self._upstream))
                self._open += [client, server]
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(
                        target=self._pump, args=(source, sink, source is client), daemon=True
                    ).start()

    def _pump(self, source: socket.socket, sink: socket.socket, watched: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if watched and self._when and self._when in data:
                    self._when = b""
                    self.turn(self._then)
                while self._mode == "hang":
                    time.sleep(0.02)
                sink.sendall(data)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

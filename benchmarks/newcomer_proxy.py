"""A proxy on 127.0.0.1 that counts what comes through it, by host. It sees no content, only tunnels
(HTTP CONNECT, RFC 9110, 9.3.6)."""

import collections
import contextlib
import socket
import socketserver
import threading
from collections.abc import Iterator


class Counts(socketserver.ThreadingTCPServer):
    """The proxy. `down` are bytes by host, TLS and HTTP headers included."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Tunnel)
        self.down: collections.Counter[str] = collections.Counter()
        self.lock = threading.Lock()

    def count(self, host: str, amount: int) -> None:
        with self.lock:
            self.down[host] += amount

    @property
    def environment(self) -> dict[str, str]:
        """What makes a child and its children go through here."""
        address = f"http://127.0.0.1:{self.server_address[1]}"
        through = {
            "HTTPS_PROXY": address,
            "HTTP_PROXY": address,
            "ALL_PROXY": address,
            "NO_PROXY": "127.0.0.1,localhost,::1",
        }
        return through | {name.lower(): value for name, value in through.items()}


class _Tunnel(socketserver.BaseRequestHandler):
    server: Counts

    def handle(self) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            if not (more := self.request.recv(4096)):
                return
            head += more
        method, target, *_ = head.split(b" ", 2)
        host, _, port = target.decode("ascii").rpartition(":")
        if method != b"CONNECT":
            self.request.sendall(b"HTTP/1.1 405 Only CONNECT\r\nContent-Length: 0\r\n\r\n")
            return
        try:
            remote = socket.create_connection((host, int(port)), timeout=30)
        except OSError:
            self.request.sendall(b"HTTP/1.1 502 Not reached\r\nContent-Length: 0\r\n\r\n")
            return
        remote.settimeout(None)
        self.request.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
        send = {"target": self._pump, "args": (self.request, remote), "daemon": True}
        upward = threading.Thread(**send)
        upward.start()
        self._pump(remote, self.request, host)
        upward.join()
        remote.close()

    def _pump(self, source: socket.socket, sink: socket.socket, host: str = "") -> None:
        """Copy until one of the two ends is closed, then close the other's direction; count what
        comes from a host."""
        with contextlib.suppress(OSError):  # a client that hangs up is no error of the proxy's
            while data := source.recv(1 << 18):
                if host:
                    self.server.count(host, len(data))
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def counting() -> Iterator[Counts]:
    """A running proxy."""
    with Counts() as proxy:
        thread = threading.Thread(
            target=proxy.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()

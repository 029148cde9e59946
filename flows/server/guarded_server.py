"""`python -m flows.server.guarded_server HOST PORT [ORIGIN]`: Prefect's server behind
the guard (`flows.server.guard`). It reads the key from PREFECT_SERVER_API_AUTH_STRING, and starts
what `prefect server start` starts (`prefect.cli._server_utils`, 3.8.8).
"""

import sys
from urllib.parse import urlsplit

import uvicorn

from flows.server.guard import Guard
from flows.server.key import in_url
from flows.server.port import bound
from infra.importing import importing


def origins(host: str, port: int, front: str | None) -> dict[str, str]:
    """The valid values of `Host`, each with the origin of its pages.

    Args:
        host: the address that the server listens on.
        front: the origin of a TLS proxy in front of it, `https://NAME[:PORT]`.
    """
    names = dict.fromkeys(["127.0.0.1", "localhost", "[::1]", in_url(host)])
    own = [name if port == 80 else f"{name}:{port}" for name in names]
    return {name: f"http://{name}" for name in own} | (
        {urlsplit(front).netloc: front} if front else {}
    )


def guarded(host: str, port: int, front: str | None) -> Guard:
    """Prefect's application behind the guard. Raises RuntimeError when there is no key."""
    from prefect.server.api.server import create_app
    from prefect.settings import get_current_settings

    key = get_current_settings().server.api.auth_string
    if key is None:
        raise RuntimeError(
            "PREFECT_SERVER_API_AUTH_STRING is not set: a server of ours asks for a key"
        )
    return Guard(create_app(final=True), key.get_secret_value(), port, origins(host, port, front))


def main(host: str, port: str, front: str | None = None) -> None:
    """Serve until SIGTERM."""
    from prefect.settings import get_current_settings

    settings = get_current_settings().server
    with importing():
        application = guarded(host, int(port), front)
    config = uvicorn.Config(
        application,
        timeout_keep_alive=settings.api.keepalive_timeout,
        ws_ping_interval=settings.api.websocket_ping_interval,
        ws_ping_timeout=settings.api.websocket_ping_timeout,
        log_level=settings.logging_level.lower(),
        proxy_headers=False,
    )
    uvicorn.Server(config).run([bound(host, int(port))])


if __name__ == "__main__":
    main(*sys.argv[1:])

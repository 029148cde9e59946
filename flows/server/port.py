"""Holds the port of a server of ours: the starter of the server holds it, too, so that nobody
else's server gets it when ours dies.

Our processes send the key to that port. With SO_REUSEPORT several sockets may have one port, and
only the one that listens gets connections; but all must belong to the same user. SO_REUSEADDR stays
unset: with it, anybody's socket could have a port on which nobody listens just now.
"""

import errno
import os
import socket

from schemas.base import InputError


def check_port(port: int, any_port: bool = False) -> None:
    """Raise InputError if there is no such TCP port; `any_port`: 0 asks for whichever is free."""
    if not (0 if any_port else 1) <= port < 65536:
        free = ", or 0 for any" if any_port else ""
        raise InputError(f"--port {port} is not a TCP port; give one from 1 to 65535{free}.")


def bound(host: str, port: int) -> socket.socket:
    """A socket that is bound to the port and does not listen. Raises OSError when somebody listens
    there, another user has it, or no host has such a name."""
    try:
        host.encode("idna")
    except UnicodeError as error:
        raise OSError(errno.EINVAL, "no host has such a name") from error
    try:  # sockets of one user would share it, and connections would go to either
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        pass
    else:
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind((host, port))
    except OSError:
        made.close()
        raise
    return made

"""Takes the port before anything slow happens, so that a clash is known at once. Never serves what arrives there."""

from __future__ import annotations

import errno
import socket

from sojourn.errors import StartupError

BACKLOG = 2048  # connections the kernel holds while the model is loading; they are answered when it is ready


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises StartupError that says what to do."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, OverflowError) as error:
        raise StartupError(f"--host {host} --port {port} is no address to listen on: {error}") from error
    listener = socket.socket(family, kind, protocol)
    try:
        # A server restarted at once must not wait for old connections to leave TIME_WAIT. Linux still refuses a port
        # that another process listens on; and we listen here, so nobody can slip in while the model loads.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise StartupError(_explain(error, host, port)) from error
    listener.setblocking(False)
    return listener


def url(listener: socket.socket) -> str:
    """Address to call, with the real port."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _explain(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"Port {port} on {host} is already in use. "
            f"Choose another with --port (0 takes a free one), or stop what listens there: ss -ltnp 'sport = :{port}'."
        )
    if error.errno == errno.EACCES:
        return f"Port {port} needs more rights than this user has. Choose one above 1023 with --port."
    if error.errno == errno.EADDRNOTAVAIL:
        return f"This machine has no address {host}. Use --host 127.0.0.1 for local clients only, 0.0.0.0 for all."
    return f"Can't listen on {host}:{port}: {error.strerror}"

"""The socket that listens on the service's port, and the check of who can reach it."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterable

from service.core.errors import ConfigError
from service.core.settings import CoreSettings

BACKLOG = 2048
SETTLE_SECONDS = 0.02


def listen(settings: CoreSettings) -> socket.socket:
    """Return a socket that listens at the address of the settings. The caller closes it.

    Raises:
        ConfigError: if the port, or one that a feature opens, cannot be used, or if others could
            reach it without a key.
    """
    if not (settings.identifies_callers() or settings.insecure or _is_loopback(settings.host)):
        raise ConfigError(
            f"{settings.host}:{settings.port} can be reached by others, and the service has no "
            "keys: name a file of keys in GRADCAM_KEYS (`gradcam key NAME` writes an entry), or "
            "say --insecure (GRADCAM_INSECURE=1)"
        )
    for port in settings.other_ports():
        # Each process that serves such a port opens it by itself.
        _listening(settings.host, port).close()
    return _listening(settings.host, settings.port)


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address.

    Raises:
        ConfigError: if the port cannot be used.
    """
    listening: socket.socket | None = None
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = addresses[0]
        # asyncio sets TCP_NODELAY only on sockets whose protocol is given as TCP.
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError as error:
        if listening:
            listening.close()
        raise ConfigError(
            f"cannot listen on {host}:{port}: {(error.strerror or str(error)).lower()}"
        ) from None
    return listening


async def accept_no_more(sockets: Iterable[socket.socket]) -> None:
    """Stop accepting connections before the sockets' server is closed. asyncio would drop a
    connection that is accepted at the moment at which the server is closed."""
    loop = asyncio.get_running_loop()
    for listening in sockets:
        loop.remove_reader(listening.fileno())
    await asyncio.sleep(SETTLE_SECONDS)


def url(listening: socket.socket) -> str:
    """Return the address to open on this machine."""
    host, port = listening.getsockname()[:2]
    shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

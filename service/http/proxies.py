"""The public address of the service behind a proxy: its host, its scheme and its path."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final

from pydantic import IPvAnyNetwork
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.core.settings import path_prefix
from service.http.origins import HOST

SCHEMES: Final = ("http", "https")


class Forwarded:
    """Middleware that takes the public address of a request from the headers of a trusted proxy,
    `X-Forwarded-Host`, `-Proto` and `-Prefix`. A value that is not a single host, scheme or path is
    ignored, and so are these headers of all other clients.

    Inside of it, `Host` and the scheme are the public ones, and `root_path` is the public path that
    the proxy has removed. `path` does not begin with it until `Prefixed`.

    Args:
        root_path: the removed path, where no trusted proxy says another one.
        trusted: networks of the trusted proxies.
    """

    def __init__(self, app: ASGIApp, *, root_path: str, trusted: Sequence[IPvAnyNetwork]) -> None:
        self._app = app
        self._root_path = root_path
        self._trusted = trusted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            mounted = scope.get("root_path", "")  # Ray Serve's route
            scope = {**scope, "root_path": self._root_path}
            if self._trusts(scope):
                _believe(scope)
            scope["root_path"] += mounted
        await self._app(scope, receive, send)

    def _trusts(self, scope: Scope) -> bool:
        if not self._trusted or not scope.get("client"):
            return False
        try:
            address = ipaddress.ip_address(scope["client"][0])
        except ValueError:  # the client of a Unix socket has none
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
            address = address.ipv4_mapped
        return any(address in network for network in self._trusted)


class Prefixed:
    """Innermost middleware, which puts the path that a proxy has removed in front of the path
    again, as ASGI requires of applications below a root path, and in front of `Location`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        prefix: str = scope.get("root_path", "")
        if scope["type"] != "http" or not prefix:
            await self._app(scope, receive, send)
            return
        inside: Scope = {**scope, "path": prefix + scope["path"]}
        if "raw_path" in scope:
            inside["raw_path"] = prefix.encode() + scope["raw_path"]

        async def send_prefixed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if headers.get("location", "").startswith("/"):
                    headers["Location"] = prefix + headers["location"]
            await send(message)

        try:
            await self._app(inside, receive, send_prefixed)
        finally:
            if "route" in inside:  # for the log
                scope["route"] = inside["route"]


def _believe(scope: Scope) -> None:
    """Replace the address of a request by what the headers of its proxy say."""
    headers = Headers(scope=scope)

    def told(name: str) -> str:
        values = headers.getlist(f"x-forwarded-{name}")
        return values[0] if len(values) == 1 else ""

    if HOST.fullmatch(host := told("host")):
        others = [pair for pair in scope["headers"] if pair[0] != b"host"]
        scope["headers"] = [(b"host", host.encode()), *others]
    if (scheme := told("proto")) in SCHEMES:
        scope["scheme"] = scheme
    if told("prefix") and (prefix := path_prefix(told("prefix"))) is not None:
        scope["root_path"] = prefix

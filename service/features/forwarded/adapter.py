"""The public address of the service behind a proxy: its host, its scheme and its path."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final

from pydantic import IPvAnyNetwork
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from service.features.forwarded.settings import ForwardedSettings, path_prefix
from service.http.adapter import Added, AppParts
from service.http.middleware import HOST

SCHEMES: Final = ("http", "https")


def forwarded(parts: AppParts) -> Added | None:
    """Give requests their public address, if the settings name a proxy or a path."""
    settings = parts.settings_of(ForwardedSettings)
    if not settings.root_path and not settings.trusted_proxies:
        return None
    options = {"root_path": settings.root_path, "trusted": settings.trusted_proxies}
    return Added(middleware=[(Forwarded, options)])


class Forwarded:
    """Middleware that takes the public address of a request from the headers of a trusted proxy,
    `X-Forwarded-Host`, `-Proto` and `-Prefix`. A value that is not a single host, scheme or path is
    ignored, and so are these headers of all other clients.

    Inside of it, `Host` and the scheme are the public ones, and `root_path` is the public path that
    the proxy has removed. `path` does not begin with it until `service.http.middleware.Prefixed`.

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

"""The hosts and the web pages through which requests may come.

A browser sends requests to this service for every page that is open in it, whoever wrote the page.
Two checks keep a page of another origin from using the browser of somebody who may use the service:

- The name in `Host` has to be one of the service. Otherwise, the owner of a name could first serve
  a page under it, and then let it point to the address of this service (DNS rebinding).
- A request that changes or computes something must not come from a page of another origin, unless
  the operator has named that origin.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from service.core.errors import Forbidden, Misdirected
from service.core.metrics import Metrics
from service.http.middleware import HOST

READING: Final = ("GET", "HEAD", "OPTIONS")
OWN: Final = ("same-origin", "none")
"""Values of `Sec-Fetch-Site` if a page of the service, or the user, sends the request."""


class Origins:
    """Middleware that refuses requests through foreign names and from foreign pages.

    Args:
        hosts: names by which the service may be reached, beside localhost and literal addresses;
            `*.example.org` stands for all names below example.org, and `*` for all names.
        pages: origins of the pages that may call the service; `*`: all.
    """

    def __init__(
        self, app: ASGIApp, *, hosts: Sequence[str], pages: Sequence[str], metrics: Metrics
    ) -> None:
        self._app = app
        self._hosts = hosts
        self._pages = pages
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            if not scope["state"]["is_probe"]:  # monitoring asks them under any name of the machine
                for host in headers.getlist("host"):
                    self._judge_host(host)
            if scope["method"] not in READING:
                self._judge_page(headers)
        await self._app(scope, receive, send)

    def _judge_host(self, host: str) -> None:
        parts = HOST.fullmatch(host)
        if "*" in self._hosts or (parts and is_own(parts[1], self._hosts)):
            return
        self._metrics.rejected.labels(reason="host").inc()
        raise Misdirected(
            f"the service is not known by the name {host[:120]!r}: only by localhost, by its "
            "address and by the names in GRADCAM_HOSTS"
        )

    def _judge_page(self, headers: Headers) -> None:
        """Raise Forbidden if a page of another origin sends the request."""
        origin = headers.get("origin")
        if "*" in self._pages or origin in self._pages or has_explicit_key(headers):
            return
        site = headers.get("sec-fetch-site")
        if site is None:  # a browser sends it only to localhost and over TLS
            if (
                origin is None
                or origin.partition("://")[2].lower() == headers.get("host", "").lower()
            ):
                return
        elif site in OWN:
            return
        self._metrics.rejected.labels(reason="origin").inc()
        named = "another origin" if origin is None else f"the origin {origin[:120]!r}"
        raise Forbidden(
            f"the request comes from a web page of {named}, and only pages of the service itself "
            "and of the origins in GRADCAM_CORS_ORIGINS may send it"
        )


def is_own(name: str, hosts: Sequence[str]) -> bool:
    """Return whether a name or literal address in `Host` is one of the service."""
    name = name.lower().removesuffix(".")
    try:
        ipaddress.ip_address(name.strip("[]"))
        return True
    except ValueError:
        return name == "localhost" or any(
            name == host or (host.startswith("*.") and name.endswith(host[1:])) for host in hosts
        )


def has_explicit_key(headers: Headers) -> bool:
    """Return whether a request has a header with a key that a browser does not add by itself. Pages
    of other origins may send such headers only if a preflight allows it (RFC 6454, section 7, and
    the Fetch standard), so that they need not be judged again."""
    return "x-api-key" in headers or headers.get("authorization", "").lower().startswith("bearer ")

"""Fetching of images by https address, only from hosts that the operator allows.

A name is resolved once, its addresses are checked, and the connection uses one of them. There is no
second look-up that could return another address (DNS rebinding). Each request has a connection of
its own from httpcore2, the part of httpx2 that uses no proxy, follows no redirect, keeps no cookie
and decompresses nothing.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from ipaddress import IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

import anyio.lowlevel
import httpcore2
from httpx2 import URL, Headers, InvalidURL

from service.core.errors import BodyTooLarge, Forbidden, UnfetchableImage
from service.http.reception import Allowance

MAX_REDIRECTS: Final = 3
AT_ONCE: Final = 4
SECONDS: Final = 10.0
NEXT_ADDRESS_SECONDS: Final = 0.25
"""Time after which the next address of a host is tried, too, as RFC 8305 recommends."""
HEADERS = [
    ("User-Agent", "python-httpx2"),
    ("Accept", "*/*"),
    ("Accept-Encoding", "identity"),
    ("Connection", "close"),
]
FAILURES = (
    httpcore2.NetworkError,
    httpcore2.ProtocolError,
    httpcore2.TimeoutException,
    InvalidURL,
    OSError,
    ValueError,
)
NAT64 = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))
COMPATIBLE = IPv6Network("::/96")
"""IPv4-compatible IPv6 addresses, a deprecated form."""
SIX_TO_FOUR = IPv6Network("2002::/16")
TEREDO = IPv6Network("2001::/32")
UNICAST = IPv6Network("2000::/3")
"""All global unicast addresses of IPv6 that are in use."""
RESERVED = [
    ip_network(network)
    for network in ("192.0.0.0/24", "192.88.99.0/24", "198.18.0.0/15", "3fff::/20", "5f00::/16")
]
"""Reserved networks that some versions of Python regard as public."""


Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Returns the addresses of a host, for a connection to a port."""


async def resolve(host: str, port: int) -> list[str]:
    """Return the addresses that the system's resolver has for a host."""
    found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return [address for *_, (address, _) in found]


class Fetcher:
    """Fetches images. Use with `async with`: leaving the block closes the connections.

    Args:
        hosts: hosts from which images may be fetched, as `name` or `name:port`.
        max_bytes: maximum bytes of all images of a request.
        resolver: resolver of names, by default the system's.
    """

    def __init__(
        self, *, hosts: Sequence[str], max_bytes: int, resolver: Resolve | None = None
    ) -> None:
        self._hosts = frozenset(host.lower().removesuffix(":443") for host in hosts)
        self._max_bytes = max_bytes
        self._resolve = resolver or resolve
        self._network = httpcore2.AnyIOBackend()
        self._slots = anyio.Semaphore(AT_ONCE)
        self._open: set[httpcore2.AsyncNetworkStream] = set()

    async def __aenter__(self) -> Fetcher:
        self._closed = False
        self._trust = ssl.create_default_context()
        self._trust.set_alpn_protocols(["http/1.1"])
        return self

    async def __aexit__(self, *raised: object) -> None:
        self._closed = True
        for stream in list(self._open):
            await stream.aclose()

    async def fetch(self, url: str, allowance: Allowance) -> bytes:
        """Return the bytes of the image at an address, and subtract them from the allowance.

        Raises:
            Forbidden: if images may not be fetched from that address.
            UnfetchableImage: if no image can be fetched from it.
            BodyTooLarge: if the image has more bytes than the allowance has left.
        """

        def spend(count: int) -> None:
            allowance.left -= count
            if allowance.left < 0:
                raise BodyTooLarge(
                    f"the images of the request have more than the {self._max_bytes} bytes allowed"
                )

        try:
            async with asyncio.timeout(SECONDS), self._slots:
                return await self._follow(URL(url), spend)
        except TimeoutError:
            raise UnfetchableImage(f"the image had not arrived after {SECONDS:g} s") from None
        except FAILURES as error:
            untrusted = isinstance(error.__cause__, ssl.CertificateError)
            reason = "CertificateError" if untrusted else type(error).__name__
            raise UnfetchableImage(f"the image cannot be fetched: {reason}") from None

    async def _follow(self, where: URL, spend: Callable[[int], None]) -> bytes:
        for _ in range(MAX_REDIRECTS + 1):
            self._check(where)
            async with self._answer(where) as response:
                if response.status in (301, 302, 303, 307, 308):
                    where = where.join(Headers(response.headers).get("Location", ""))
                    continue
                if response.status != 200:
                    raise UnfetchableImage(f"{_shown(where)} answers {response.status}")
                data = bytearray()
                async with aclosing(response.aiter_stream()) as chunks:
                    async for chunk in chunks:
                        spend(len(chunk))
                        data += chunk
                        # A site may send a chunk of one byte after another, and no other task of
                        # the process would run before all that one read returned are parsed.
                        await anyio.lowlevel.checkpoint()
                return bytes(data)
        raise UnfetchableImage(f"{_shown(where)}: more than {MAX_REDIRECTS} redirects")

    def _check(self, where: URL) -> None:
        if where.scheme != "https":
            raise Forbidden(f"an image's address begins with https, not {where.scheme[:20]!r}")
        if where.userinfo:
            raise Forbidden("an image's address may hold no user and no password")
        host = where.host
        port = 443 if where.port is None else where.port
        if port not in range(1, 65_536):
            raise InvalidURL(f"there is no port {port}")
        named = host if port == 443 else f"{host}:{port}"
        if named not in self._hosts or host.replace(".", "").isdecimal() or ":" in host:
            raise Forbidden(
                f"images may not come from {named[:80]!r}, only from {', '.join(self._hosts)}"
            )

    @asynccontextmanager
    async def _answer(self, where: URL) -> AsyncIterator[httpcore2.Response]:
        """Yield the response of an address, on a connection that is closed at the end."""
        if self._closed:
            raise UnfetchableImage("the service is shutting down")
        url = httpcore2.URL(
            scheme="https", host=where.raw_host, port=where.port, target=where.raw_path
        )
        request = httpcore2.Request("GET", url, headers=[("Host", where.netloc), *HEADERS])
        host = where.raw_host.decode()
        async with AsyncExitStack() as closing:
            stream = await self._connect(host, where.port or 443, closing)
            self._open.add(stream)
            closing.callback(self._open.discard, stream)
            secure = await stream.start_tls(self._trust, host)
            connection = httpcore2.AsyncHTTP11Connection(url.origin, secure)
            yield await connection.handle_async_request(request)

    async def _connect(
        self, host: str, port: int, closing: AsyncExitStack
    ) -> httpcore2.AsyncNetworkStream:
        """Return the first connection to one of a host's addresses, if all of them are public."""
        addresses = await self._resolve(host, port)
        if not addresses or not all(is_public(address) for address in addresses):
            raise UnfetchableImage(f"{host[:80]!r} has an address that is not public")
        streams: list[httpcore2.AsyncNetworkStream] = []
        errors: list[httpcore2.ConnectError] = []

        async def attempt(address: str, failed: anyio.Event) -> None:
            try:
                stream = await self._network.connect_tcp(address, port)
            except httpcore2.ConnectError as error:
                errors.append(error)
                failed.set()
            else:
                closing.push_async_callback(stream.aclose)
                streams.append(stream)
                attempts.cancel_scope.cancel()

        async with anyio.create_task_group() as attempts:
            for address in addresses:
                attempts.start_soon(attempt, address, failed := anyio.Event())
                with anyio.move_on_after(NEXT_ADDRESS_SECONDS):
                    await failed.wait()
        if not streams:
            raise errors[0]
        return streams[0]


def _shown(where: URL) -> str:
    """Return an address without its query and fragment, which may be secret."""
    return str(where.copy_with(query=None, fragment=None))[:120]


def is_public(text: str) -> bool:
    """Return whether an address, in the form that a resolver returns, is public.

    An IPv6 address that contains an IPv4 address is never public, whatever the latter is, because
    no public server needs to be reached that way.
    """
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and (address not in UNICAST or _carries_ipv4(address)):
        return False
    if any(address in network for network in RESERVED):
        return False
    return address.is_global and not (
        address.is_multicast or address.is_reserved or address.is_unspecified
    )


def _carries_ipv4(address: IPv6Address) -> bool:
    wrapped = (*NAT64, COMPATIBLE, SIX_TO_FOUR, TEREDO)
    return address.ipv4_mapped is not None or any(address in network for network in wrapped)

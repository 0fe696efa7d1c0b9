"""Fetching of images by https address, only from hosts that the operator allows.

A name is resolved once, its addresses are checked, and the connection uses one of them. There is no
second look-up that could return another address (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Sequence
from ipaddress import IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from service.core.errors import BodyTooLarge, Forbidden, UnfetchableImage
from service.http.reception import Allowance

MAX_REDIRECTS: Final = 3
AT_ONCE: Final = 4
SECONDS: Final = 10.0
GOODBYE_SECONDS: Final = 0.5
CHUNK: Final = 65_536
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


class PublicOnly(AbstractResolver):
    """Resolves names to public addresses, and refuses a name that has any other address."""

    def __init__(self, resolver: AbstractResolver) -> None:
        self._resolver = resolver

    async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[ResolveResult]:
        addresses = await self._resolver.resolve(host, port, family)  # type: ignore[arg-type]
        if not addresses or not all(is_public(address["host"]) for address in addresses):
            raise UnfetchableImage(f"{host[:80]!r} has an address that is not public")
        return addresses

    async def close(self) -> None:
        await self._resolver.close()


class Fetcher:
    """Fetches images. Use with `async with`: leaving the block closes the connections.

    Args:
        hosts: hosts from which images may be fetched, as `name` or `name:port`.
        max_bytes: maximum bytes of all images of a request.
        resolver: resolver of names, by default the system's.
    """

    def __init__(
        self, *, hosts: Sequence[str], max_bytes: int, resolver: AbstractResolver | None = None
    ) -> None:
        self._hosts = frozenset(host.lower().removesuffix(":443") for host in hosts)
        self._max_bytes = max_bytes
        self._resolver = resolver

    async def __aenter__(self) -> Fetcher:
        self._session = aiohttp.ClientSession(
            connector=_connector(PublicOnly(self._resolver or aiohttp.ThreadedResolver())),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept-Encoding": "identity"},
            trust_env=False,  # use no proxy and no .netrc
            auto_decompress=False,
        )
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._session.close()

    async def fetch(self, url: str, allowance: Allowance) -> bytes:
        """Return the bytes of the image at an address, and subtract them from the allowance.

        Raises:
            Forbidden: if images may not be fetched from that address.
            UnfetchableImage: if no image can be fetched from it.
            BodyTooLarge: if the image has more bytes than the allowance has left.
        """
        if self._session.closed:
            raise UnfetchableImage("the service is shutting down")

        def spend(count: int) -> None:
            allowance.left -= count
            if allowance.left < 0:
                raise BodyTooLarge(
                    f"the images of the request have more than the {self._max_bytes} bytes allowed"
                )

        try:
            async with asyncio.timeout(SECONDS):
                return await self._follow(URL(url), spend)
        except TimeoutError:
            raise UnfetchableImage(f"the image had not arrived after {SECONDS:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            reason = type(error).__name__
            raise UnfetchableImage(f"the image cannot be fetched: {reason}") from None

    async def _follow(self, where: URL, spend: Callable[[int], None]) -> bytes:
        for _ in range(MAX_REDIRECTS + 1):
            self._check(where)
            async with self._session.get(where, allow_redirects=False) as response:
                if response.status in (301, 302, 303, 307, 308):
                    where = where.join(URL(response.headers.get("Location", "")))
                    continue
                if response.status != 200:
                    raise UnfetchableImage(f"{_shown(where)} answers {response.status}")
                return await _read(response, spend)
        raise UnfetchableImage(f"{_shown(where)}: more than {MAX_REDIRECTS} redirects")

    def _check(self, where: URL) -> None:
        if where.scheme != "https":
            raise Forbidden(f"an image's address begins with https, not {where.scheme[:20]!r}")
        if where.user is not None or where.password is not None:
            raise Forbidden("an image's address may hold no user and no password")
        host = (where.host or "").lower()
        named = host if where.port == 443 else f"{host}:{where.port}"
        if named not in self._hosts or host.replace(".", "").isdecimal() or ":" in host:
            raise Forbidden(
                f"images may not come from {named[:80]!r}, only from {', '.join(self._hosts)}"
            )


async def _read(response: aiohttp.ClientResponse, spend: Callable[[int], None]) -> bytes:
    data = bytearray()
    async for chunk in response.content.iter_chunked(CHUNK):
        spend(len(chunk))
        data += chunk
    return bytes(data)


def _connector(resolver: AbstractResolver) -> aiohttp.TCPConnector:
    with warnings.catch_warnings():
        # aiohttp waits half a minute for a site that does not end TLS. Only this deprecated
        # parameter shortens that wait; aiohttp 3 keeps it.
        warnings.simplefilter("ignore", DeprecationWarning)
        return aiohttp.TCPConnector(
            resolver=resolver, limit=AT_ONCE, force_close=True, ssl_shutdown_timeout=GOODBYE_SECONDS
        )


def _shown(where: URL) -> str:
    """Return an address without its query and fragment, which may be secret."""
    return str(where.with_query(None).with_fragment(None))[:120]


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

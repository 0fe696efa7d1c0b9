"""Images by their https address, from hosts that the operator allows, and from nowhere else.

A name is resolved once, its addresses are checked, and the connection goes to one of those: there
is no second look-up in which a name could mean something else (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address, IPv6Network, ip_address, ip_network
from types import TracebackType
from typing import Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from service.core.errors import BodyTooLarge, Forbidden, UnfetchableImage

MAX_REDIRECTS: Final = 3
AT_ONCE: Final = 4
SECONDS: Final = 10.0
GOODBYE_SECONDS: Final = 0.5
CHUNK: Final = 65_536
NAT64 = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))
COMPATIBLE = IPv6Network("::/96")
"""IPv4 addresses in IPv6 ones, as of old."""
SIX_TO_FOUR = IPv6Network("2002::/16")
TEREDO = IPv6Network("2001::/32")
UNICAST = IPv6Network("2000::/3")
"""All of IPv6 that is in use."""
RESERVED = [
    ip_network(each)
    for each in ("192.0.0.0/24", "192.88.99.0/24", "198.18.0.0/15", "3fff::/20", "5f00::/16")
]
"""What one or the other version of Python takes for public."""


class PublicOnly(AbstractResolver):
    """Resolves names to public addresses; a name with any other is refused."""

    def __init__(self, resolver: AbstractResolver) -> None:
        self._resolver = resolver

    async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)  # type: ignore[arg-type]
        if not found or not all(is_public(each["host"]) for each in found):
            raise UnfetchableImage(f"{host[:80]!r} has an address that is not public")
        return found

    async def close(self) -> None:
        await self._resolver.close()


@dataclass
class Allowance:
    """Bytes that the images of one request may still have."""

    left: int


class Fetcher:
    """Use with `async with`: leaving it closes its connections.

    Args:
        hosts: from which images may come, as `name` or `name:port`; none: no image is fetched.
        max_bytes: of all images of a request.
        resolver: of names, in place of the system's.
    """

    def __init__(
        self, *, hosts: Sequence[str], max_bytes: int, resolver: AbstractResolver | None = None
    ) -> None:
        self._hosts = frozenset(host.lower().removesuffix(":443") for host in hosts)
        self._max_bytes = max_bytes
        self._resolver = resolver
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Fetcher:
        if self._hosts:
            self._session = aiohttp.ClientSession(
                connector=_connector(PublicOnly(self._resolver or aiohttp.ThreadedResolver())),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"Accept-Encoding": "identity"},
                trust_env=False,  # no proxy, and nobody's .netrc
                auto_decompress=False,
            )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session:
            await self._session.close()
            self._session = None

    async def fetch(self, url: str, allowance: Allowance) -> bytes:
        """
        Raises:
            Forbidden: if images may not come from there.
            UnfetchableImage: if there is none to be had.
            BodyTooLarge: if it is too large.
        """
        if not self._session:
            raise Forbidden("this service fetches no images; send the image's bytes as b64")
        try:
            async with asyncio.timeout(SECONDS):
                return await self._follow(self._session, URL(url), allowance)
        except TimeoutError:
            raise UnfetchableImage(f"the image was not here after {SECONDS:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            reason = type(error).__name__
            raise UnfetchableImage(f"the image cannot be fetched: {reason}") from None

    async def _follow(
        self, session: aiohttp.ClientSession, where: URL, allowance: Allowance
    ) -> bytes:
        for _ in range(MAX_REDIRECTS + 1):
            self._check(where)
            async with session.get(where, allow_redirects=False) as response:
                if response.status in (301, 302, 303, 307, 308):
                    where = where.join(URL(response.headers.get("Location", "")))
                    continue
                if response.status != 200:
                    raise UnfetchableImage(f"{_shown(where)} answers {response.status}")
                return await self._read(response, allowance)
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

    async def _read(self, response: aiohttp.ClientResponse, allowance: Allowance) -> bytes:
        data = bytearray()
        async for chunk in response.content.iter_chunked(CHUNK):
            data += chunk
            allowance.left -= len(chunk)
            if allowance.left < 0:
                raise BodyTooLarge(
                    f"the images of the request have more than the {self._max_bytes} bytes allowed"
                )
        return bytes(data)


def _connector(resolver: AbstractResolver) -> aiohttp.TCPConnector:
    with warnings.catch_warnings():
        # That a site which does not say goodbye is waited for, half a minute, can be told in no
        # other way; aiohttp 3 keeps this one.
        warnings.simplefilter("ignore", DeprecationWarning)
        return aiohttp.TCPConnector(
            resolver=resolver, limit=AT_ONCE, force_close=True, ssl_shutdown_timeout=GOODBYE_SECONDS
        )


def _shown(where: URL) -> str:
    """Without what may be secret."""
    return str(where.with_query(None).with_fragment(None))[:120]


def is_public(text: str) -> bool:
    """Whether an address, in the form that a resolver gives it, is a public one; an IPv6 address
    that carries an IPv4 one is none, whatever that is: no public server needs to be reached so."""
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

"""Fetching of images by https address, if the operator allows any hosts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from service.core.errors import BodyTooLarge, Forbidden

if TYPE_CHECKING:
    from aiohttp.abc import AbstractResolver

    from service.limits.download import Downloads


@dataclass
class Allowance:
    """Number of bytes that the images of one request may still have."""

    left: int


class Fetcher:
    """Fetches images. Use it with `async with`: leaving the block closes its connections.

    The HTTP client is imported only if there are hosts, because a process starts a fifth of a
    second earlier without it.

    Args:
        hosts: hosts from which images may be fetched, as `name` or `name:port`; without any, no
            image is fetched.
        max_bytes: maximum bytes of all images of a request.
        resolver: resolver of names, by default the system's.
    """

    def __init__(
        self, *, hosts: Sequence[str], max_bytes: int, resolver: AbstractResolver | None = None
    ) -> None:
        self._hosts = hosts
        self._max_bytes = max_bytes
        self._resolver = resolver
        self._scope = AsyncExitStack()
        self._downloads: Downloads | None = None

    async def __aenter__(self) -> Fetcher:
        if self._hosts:
            from service.limits.download import Downloads

            downloads = Downloads(hosts=self._hosts, resolver=self._resolver)
            self._downloads = await self._scope.enter_async_context(downloads)
        return self

    async def __aexit__(self, *raised: object) -> None:
        self._downloads = None
        await self._scope.aclose()

    async def fetch(self, url: str, allowance: Allowance) -> bytes:
        """Return the bytes of the image at an address, and subtract them from the allowance.

        Raises:
            Forbidden: if images may not be fetched from that address.
            UnfetchableImage: if no image can be fetched from it.
            BodyTooLarge: if the image has more bytes than the allowance has left.
        """
        if self._downloads is None:
            raise Forbidden("this service fetches no images; send the image's bytes as b64")

        def spend(count: int) -> None:
            allowance.left -= count
            if allowance.left < 0:
                raise BodyTooLarge(
                    f"the images of the request have more than the {self._max_bytes} bytes allowed"
                )

        return await self._downloads.download(url, spend)

"""Reading a job's images from their sources: the job itself, a folder, an object store or a URL."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import partial
from pathlib import PurePosixPath
from typing import Any, Final
from urllib.parse import unquote

import fsspec

from service.core.errors import (
    Forbidden,
    ImageTooLarge,
    Problem,
    UndecodableImage,
    UnfetchableImage,
    one_line,
)
from service.core.pool import Pool
from service.features.jobs.job_files import Folder
from service.features.jobs.records import Leased
from service.features.jobs.settings import JobSettings
from service.http.reception import Allowance, Reception

READ_SECONDS: Final = 60.0
"""Longest duration of one read, including the wait for a free slot, in seconds."""
AT_ONCE: Final = 16


class ItemReader:
    """Reads the bytes of items, up to the settings' `max_body_bytes` per image."""

    def __init__(
        self, folder: Folder, reception: Reception, settings: JobSettings, pool: Pool
    ) -> None:
        self._folder = folder
        self._reception = reception
        self._root = settings.inputs
        self._uris = settings.input_uris
        self._most = settings.max_body_bytes
        self._pool = pool
        self._reads = Reads()

    async def read(self, item: Leased) -> bytes:
        """Return the bytes of an item's image.

        Raises:
            FolderAway: if the files of jobs cannot be read.
            Problem: if the image of this item cannot be read.
        """
        source = item.source
        if "problem" in source:
            raise Retold(source["problem"])
        if "url" in source:
            return await self._reception.fetch(source["url"], Allowance(self._most))
        if "path" in source:
            path = source["path"]
            return await self._reads.run(lambda: self._of_path(path), path[:200])
        if "uri" in source:
            uri = source["uri"]
            return await self._reads.run(lambda: self._of_uri(uri), uri[:200])
        offset, length = source["blob"]
        return await self._pool.run(lambda: self._folder.read_blob(item.job, offset, length))

    def _of_path(self, path: str) -> bytes:
        if self._root is None:
            raise Forbidden(
                "this service reads no images from a folder; send their bytes, or see "
                "GRADCAM_INPUTS"
            )
        named = PurePosixPath(path.replace("\\", "/"))
        if named.is_absolute() or ".." in named.parts or "\x00" in path:
            raise Forbidden(f"{path[:200]!r} is not a path below the folder of inputs")
        root = self._root.resolve()
        try:
            file = (root / named).resolve(strict=True)
            if not file.is_relative_to(root):
                raise Forbidden(f"{path[:200]!r} leads out of the folder of inputs")
            if not file.is_file():  # reading a pipe might block for ever
                raise UndecodableImage(f"{path[:200]} cannot be read: it is not a file")
            with file.open("rb") as opened:
                return self._bounded(opened.read(self._most + 1))
        except (OSError, RuntimeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is a circle of links"
            raise UndecodableImage(f"{path[:200]} cannot be read: {reason}") from None

    def _of_uri(self, uri: str) -> bytes:
        if _leads_away(uri) or not any(fnmatchcase(uri, pattern) for pattern in self._uris):
            known = ", ".join(self._uris) or "none; see GRADCAM_INPUT_URIS"
            raise Forbidden(f"images may not come from {uri[:200]!r}; allowed are {known}")
        if uri.lower().startswith(("http:", "https:")):  # redirects could lead to any host
            raise Forbidden(
                f"{uri[:200]!r} is an address: name it as 'url', of a host in GRADCAM_IMAGE_HOSTS"
            )
        try:
            with fsspec.open(uri, "rb") as opened:
                return self._bounded(opened.read(self._most + 1))
        except Problem:
            raise
        except Exception as error:  # each kind of store raises its own errors
            raise UnfetchableImage(f"{uri[:200]} cannot be read: {one_line(error)}") from None

    def _bounded(self, data: bytes) -> bytes:
        if len(data) > self._most:
            raise ImageTooLarge(f"the image has more than the {self._most} bytes allowed")
        return data


def _leads_away(uri: str) -> bool:
    """Return whether a URI could bypass the allowed patterns, by chained protocols ("::"), parent
    folders (".."), also percent-encoded, or unprintable characters."""
    while (plain := unquote(uri)) != uri:
        uri = plain
    return "::" in uri or not uri.isprintable() or ".." in re.split(r"[/\\]", uri)


class Retold(Problem):
    """A problem that was found when the job was received."""

    def __init__(self, body: dict[str, Any]) -> None:
        super().__init__(str(body.get("detail", "")))
        self._body = body

    def body(self) -> dict[str, Any]:
        return self._body


class Reads:
    """Runs blocking reads, each in a daemon thread of its own. A read that takes too long, or whose
    caller was cancelled, delays neither its caller nor the end of the process; it occupies one of
    `AT_ONCE` slots until it ends."""

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(AT_ONCE)

    async def run(self, work: Callable[[], bytes], what: str) -> bytes:
        """Run `work` in a thread and return its result.

        Args:
            what: name of the source, for the error message.

        Raises:
            UnfetchableImage: if the read takes longer than `READ_SECONDS`.
        """
        try:
            async with asyncio.timeout(READ_SECONDS):
                await self._room.acquire()
                future = asyncio.get_running_loop().create_future()
                read = threading.Thread(
                    target=self._read, args=(work, future), name=f"read {what}", daemon=True
                )
                try:
                    read.start()
                except BaseException:
                    self._room.release()
                    raise
                data: bytes = await future
                return data
        except TimeoutError:
            raise UnfetchableImage(
                f"{what} cannot be read: it has not come within {READ_SECONDS:.0f} s"
            ) from None

    def _read(self, work: Callable[[], bytes], future: asyncio.Future[bytes]) -> None:
        settle: Callable[[], None]
        try:
            settle = partial(future.set_result, work())
        except BaseException as error:
            settle = partial(future.set_exception, error)

        def end() -> None:
            self._room.release()
            if not future.done():
                settle()

        with suppress(RuntimeError):  # raised if the loop is closed
            future.get_loop().call_soon_threadsafe(end)

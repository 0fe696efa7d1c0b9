"""The collector, which writes the items of an incoming job to the disk and into the tables."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from cam.counts import counted
from service.core.errors import (
    ImageTooLarge,
    InvalidParameter,
    MalformedRequest,
    Problem,
    TooManyInstances,
)
from service.features.jobs.database_tables import CHUNK
from service.features.jobs.job_files import Blob
from service.features.jobs.records import LONGEST_ID, MOST_ID_BYTES, NewItem, Source, storable
from service.features.jobs.submission import Submissions

CHUNK_BYTES: Final = 4_000_000
"""Size of the items that are written in one transaction, unless CHUNK items are reached first."""


class Collector:
    """Collects the items of one job and writes them in chunks, so that at most one chunk is in
    memory.

    Args:
        blob: file for the images that are part of the request.
        max_items: largest number of items in the job.
        max_image_bytes: largest size of one image. If an image is larger, only its item fails.
        shared: name of a parameter that is the same for all items, so that no item may have its
            own → the reason.
    """

    def __init__(
        self,
        job: str,
        blob: Blob,
        submissions: Submissions,
        *,
        max_items: int,
        max_image_bytes: int,
        shared: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._job = job
        self._blob = blob
        self._submissions = submissions
        self._max_items = max_items
        self.max_image_bytes = max_image_bytes
        self._shared = shared
        self._waiting: list[NewItem] = []
        self.held = 0
        """Bytes of the items that are not written yet, without their images."""
        self.told = 0
        """Bytes that all items take in the tables."""
        self._written = 0
        self._digest = hashlib.sha256()
        self._skipped: Counter[str] = Counter()
        self._start = 0
        self._image = hashlib.sha256()

    @property
    def count(self) -> int:
        return self._written + len(self._waiting)

    @property
    def warnings(self) -> list[str]:
        return [f"{count} {what} left out" for what, count in self._skipped.items()]

    def digest(self, *asked: object) -> str:
        """Return a digest that is equal for the same items in the same order and the same
        `asked`."""
        whole = self._digest.copy()
        whole.update(repr(asked).encode())
        return whole.hexdigest()

    def begin(self) -> None:
        """Begin an image that arrives in pieces."""
        self._start = self._blob.size
        self._image = hashlib.sha256()

    def piece(self, data: bytes) -> None:
        if self._blob.size - self._start <= self.max_image_bytes:
            self._blob.write(data)
            self._image.update(data)

    def end(self, name: str | None, own: dict[str, Any] | None = None) -> None:
        """End an image that arrived in pieces and add it as an item."""
        size = self._blob.size - self._start
        if size > self.max_image_bytes:
            self._blob.truncate(self._start)
            problem = ImageTooLarge(
                f"the image has more than the {self.max_image_bytes} bytes allowed"
            )
            self.fail(name, problem, own)
            return
        self._digest.update(self._image.digest())
        self._add(name, {"blob": [self._start, size]}, own, known=b"")

    def image(self, name: str | None, data: bytes, own: dict[str, Any] | None = None) -> None:
        """Add an item whose image is complete."""
        self.begin()
        self.piece(data)
        self.end(name, own)

    def reference(self, name: str | None, source: Source, own: dict[str, Any] | None) -> None:
        """Add an item whose image is read later from `source`."""
        self._add(name, source, own, known=json.dumps(source).encode())

    def fail(self, name: str | None, problem: Problem, own: dict[str, Any] | None = None) -> None:
        """Add an item that has failed already."""
        body = problem.body()
        self._add(name, {"problem": body}, own, known=json.dumps(body).encode())

    def skip(self, what: str) -> None:
        """Count something that is not an item, for the warnings."""
        self._skipped[what] += 1

    def close(self) -> None:
        """Write the remaining items and wait until everything is on the disk.

        Raises:
            MalformedRequest: if there are no items.
        """
        if not self.count:
            raise MalformedRequest("the job has no images; send at least one")
        self._flush()
        self._blob.sync()

    def _add(
        self, name: str | None, source: Source, own: dict[str, Any] | None, *, known: bytes
    ) -> None:
        if self.count >= self._max_items:
            raise TooManyInstances(
                f"the job has more than {counted(self._max_items, 'instance')}, as many as are "
                "allowed; send several jobs"
            )
        for parameter in own or ():
            if parameter in self._shared:
                raise InvalidParameter(
                    f"instance {self.count} names its own {parameter}; {self._shared[parameter]}"
                )
        name = str(self.count) if name is None else name
        if not name or len(name) > LONGEST_ID:
            raise MalformedRequest(
                f"instance {self.count} has an id of {len(name)} characters; 1 to {LONGEST_ID} are "
                "allowed"
            )
        kept, said = storable(name), json.dumps(own)
        if len(kept.encode()) > MOST_ID_BYTES:
            raise MalformedRequest(
                f"instance {self.count} has an id of {len(kept.encode())} bytes in UTF-8; at most "
                f"{MOST_ID_BYTES} are allowed"
            )
        self._digest.update(f"|{name!r}|{said}|".encode("utf-8", "replace") + known)
        size = len(kept) + len(said) + len(json.dumps(source))
        self._blob.reserve(size)
        self.told += size
        self.held += size
        self._waiting.append(NewItem(kept, source, own or {}))
        if len(self._waiting) >= CHUNK or self.held >= CHUNK_BYTES:
            self._flush()

    def _flush(self) -> None:
        self._submissions.add(self._job, self._written, self._waiting)
        self._written += len(self._waiting)
        self._waiting = []
        self.held = 0

"""Readers for the formats of a job's body, which read it piece by piece as it streams in.

Every reader gets the pieces of the body by `feed`, then a call of `end`, and passes what it finds
to a `Collector`. No reader holds more than one image in memory, except for JSON, whose size is
limited.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import BinaryIO

from pydantic import ValidationError

from service.core.errors import BodyTooLarge, MalformedRequest, Problem
from service.core.json_text import validate_json
from service.features.jobs.collector import Collector
from service.features.jobs.manifest import JobInstance, JobRequest, manifest_problem
from service.features.jobs.unpack import collect_tar, collect_zip
from service.pipeline.multipart import FormParser
from service.pipeline.parameters import Parameters


class Reader(ABC):
    """Reads a body, and passes the instances that it finds to the collector."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self.model: str | None = None
        """Name of the model, if the body names one."""
        self.fields: dict[str, list[str]] = {}
        """Parameters that the body gives as text."""
        self.parameters: Parameters | None = None
        """Parameters that the body gives as JSON."""

    @property
    @abstractmethod
    def held(self) -> int:
        """Number of bytes of the body that are in memory."""

    @abstractmethod
    def feed(self, data: bytes) -> None:
        """Take the next piece of the body."""

    @abstractmethod
    def end(self) -> None:
        """Take the end of the body."""


class JsonReader(Reader):
    """Reads JSON: `{"model": …, "instances": […], "parameters": {…}}`.

    Args:
        max_bytes: largest size of the body, which is held in memory as a whole.
    """

    def __init__(self, collector: Collector, max_bytes: int) -> None:
        super().__init__(collector)
        self._max_bytes = max_bytes
        self._body = bytearray()

    @property
    def held(self) -> int:
        return len(self._body)

    def feed(self, data: bytes) -> None:
        self._body += data
        if len(self._body) > self._max_bytes:
            raise BodyTooLarge(
                f"a job in JSON may have {self._max_bytes} bytes; send a larger one as "
                "application/x-ndjson, a form or an archive"
            )

    def end(self) -> None:
        try:
            sent = validate_json(JobRequest, bytes(self._body), strict=True)
        except ValidationError as error:
            raise manifest_problem(error) from None
        self._body.clear()
        self.model, self.parameters = sent.model, sent.parameters
        for instance in sent.instances:
            collect_instance(instance, self._collector)


class LinesReader(Reader):
    """Reads NDJSON, with one instance on each line.

    Args:
        longest: largest length of a line, in bytes.
    """

    def __init__(self, collector: Collector, longest: int) -> None:
        super().__init__(collector)
        self._longest = longest
        self._rest = bytearray()
        self._number = 0

    @property
    def held(self) -> int:
        return len(self._rest)

    def feed(self, data: bytes) -> None:
        first, *others = data.split(b"\n")
        self._rest += first
        for line in others:
            self._line()
            self._rest += line
        self._bound()

    def end(self) -> None:
        self._line()

    def _bound(self) -> None:
        if len(self._rest) > self._longest:
            raise BodyTooLarge(
                f"line {self._number + 1} has more than the {self._longest} bytes allowed"
            )

    def _line(self) -> None:
        self._bound()
        line = bytes(self._rest)
        self._rest.clear()
        self._number += 1
        if not line.strip():
            return
        try:
            instance = validate_json(JobInstance, line, strict=True)
        except MalformedRequest as problem:
            raise problem.at(f"/{self._number}") from None
        except ValidationError as error:
            raise manifest_problem(error, f"/{self._number}") from None
        collect_instance(instance, self._collector)


class ArchiveReader(Reader):
    """Reads a zip or a tar. The archive is stored in a file until it is complete, because a zip's
    list of contents is at its end."""

    def __init__(self, collector: Collector, file: BinaryIO, kind: str, max_bytes: int) -> None:
        super().__init__(collector)
        self._file = file
        self._kind = kind
        self._max_bytes = max_bytes

    @property
    def held(self) -> int:
        return 0  # the archive is on the disk

    def feed(self, data: bytes) -> None:
        self._file.write(data)

    def end(self) -> None:
        self._file.seek(0)
        collect = collect_zip if self._kind == "zip" else collect_tar
        collect(self._file, self._collector, max_bytes=self._max_bytes)


class FormReader(Reader):
    """Reads multipart/form-data. Each part `image` is a file; any other part is a parameter or
    `model`."""

    def __init__(self, collector: Collector, boundary: bytes | None) -> None:
        super().__init__(collector)
        hint = ", an archive is sent as the body"
        self._parser = FormParser(collector, boundary, hint=hint)

    @property
    def held(self) -> int:
        return self._parser.held

    def feed(self, data: bytes) -> None:
        self._parser.feed(data)

    def end(self) -> None:
        self._parser.end()
        for name, value in self._parser.fields:
            if name == "model":
                self.model = value
            else:
                self.fields.setdefault(name, []).append(value)


def collect_instance(instance: JobInstance, collector: Collector) -> None:
    source = instance.image.source
    if source is not None:
        collector.reference(instance.id, source, instance.own)
        return
    data = instance.image.data()
    if isinstance(data, Problem):
        collector.fail(instance.id, data, instance.own)
    else:
        collector.image(instance.id, data, instance.own)

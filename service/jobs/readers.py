"""The forms in which a job may come, read piece by piece as they stream in.

Every reader is fed the body's pieces and then told that it has ended; what it finds goes to a
`Collector`. None holds more than one image in memory, but for JSON, which has to be small.
"""

from __future__ import annotations

from typing import Any, BinaryIO, Final, Protocol

from pydantic import ValidationError
from python_multipart.exceptions import FormParserError, MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from service.core.errors import BodyTooLarge, MalformedRequest, Problem, UnknownParameter
from service.jobs.collector import Collector
from service.jobs.manifest import JobInstance, JobRequest, manifest_problem
from service.jobs.unpack import collect_tar, collect_zip
from service.pipeline.parameters import Parameters

LONGEST_TEXT: Final = 1_000_000
"""Bytes of all fields of a form that are no files."""
LONGEST_HEAD: Final = 10_000


class Reader(Protocol):
    model: str | None
    """Which the body names."""
    fields: dict[str, list[str]]
    """Parameters as text."""
    parameters: Parameters | None
    """Parameters as JSON."""

    @property
    def held(self) -> int:
        """Bytes of the body that are in memory."""
        ...

    def feed(self, data: bytes) -> None: ...

    def end(self) -> None: ...


class JsonReader:
    """`{"model": …, "instances": […], "parameters": {…}}`.

    Args:
        max_bytes: of the body, which is in memory whole.
    """

    def __init__(self, collector: Collector, max_bytes: int) -> None:
        self._collector = collector
        self._max_bytes = max_bytes
        self._body = bytearray()
        self.model: str | None = None
        self.fields: dict[str, list[str]] = {}
        self.parameters: Parameters | None = None

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
            sent = JobRequest.model_validate_json(bytes(self._body), strict=True)
        except ValidationError as error:
            raise manifest_problem(error) from None
        self._body.clear()
        self.model, self.parameters = sent.model, sent.parameters
        for instance in sent.instances:
            collect_instance(instance, self._collector)


class LinesReader:
    """NDJSON: an instance a line."""

    def __init__(self, collector: Collector, longest: int) -> None:
        self._collector = collector
        self._longest = longest
        self._rest = bytearray()
        self._number = 0
        self.model: str | None = None
        self.fields: dict[str, list[str]] = {}
        self.parameters: Parameters | None = None

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
            instance = JobInstance.model_validate_json(line, strict=True)
        except ValidationError as error:
            raise manifest_problem(error, f"/{self._number}") from None
        collect_instance(instance, self._collector)


class ArchiveReader:
    """A zip or a tar, kept in a file until it is here: a zip's list of contents comes last."""

    def __init__(self, collector: Collector, file: BinaryIO, kind: str, max_bytes: int) -> None:
        self._collector = collector
        self._file = file
        self._kind = kind
        self._max_bytes = max_bytes
        self.model: str | None = None
        self.fields: dict[str, list[str]] = {}
        self.parameters: Parameters | None = None

    @property
    def held(self) -> int:
        return 0  # it is on the disk

    def feed(self, data: bytes) -> None:
        self._file.write(data)

    def end(self) -> None:
        self._file.seek(0)
        collect = collect_zip if self._kind == "zip" else collect_tar
        collect(self._file, self._collector, max_bytes=self._max_bytes)


class FormReader:
    """multipart/form-data: parts `image`, each a file; all else is a parameter, or `model`."""

    def __init__(self, collector: Collector, boundary: bytes) -> None:
        self._collector = collector
        self._head = bytearray()
        self._header: list[bytes] = [b"", b""]
        self._headers: dict[bytes, bytes] = {}
        self._name = ""
        self._file: str | None = None
        self._value = bytearray()
        self._text = 0
        self._ended = False
        self.model: str | None = None
        self.fields: dict[str, list[str]] = {}
        self.parameters: Parameters | None = None
        callbacks: Any = {
            "on_part_begin": self._part_begins,
            "on_header_field": lambda data, start, end: self._grow(0, data[start:end]),
            "on_header_value": lambda data, start, end: self._grow(1, data[start:end]),
            "on_header_end": self._header_ends,
            "on_headers_finished": self._body_begins,
            "on_part_data": lambda data, start, end: self._data(data[start:end]),
            "on_part_end": self._part_ends,
            "on_end": self._end,
        }
        try:
            self._parser = MultipartParser(boundary, callbacks)
        except FormParserError as error:
            raise MalformedRequest(f"the form cannot be read: {error}") from None

    @property
    def held(self) -> int:
        return self._text

    def feed(self, data: bytes) -> None:
        try:
            self._parser.write(data)
        except MultipartParseError as error:
            raise MalformedRequest(f"the form cannot be read: {error}") from None

    def end(self) -> None:
        if not self._ended:
            raise MalformedRequest("the form ends in the middle of a part")

    def _end(self) -> None:
        self._ended = True

    def _part_begins(self) -> None:
        self._headers = {}
        self._value = bytearray()
        self._header = [b"", b""]

    def _grow(self, turn: int, data: bytes) -> None:
        self._header[turn] += data
        if len(self._header[turn]) > LONGEST_HEAD:
            raise MalformedRequest("a header of a part is too long")

    def _header_ends(self) -> None:
        self._headers[self._header[0].lower()] = self._header[1]
        self._header = [b"", b""]

    def _body_begins(self) -> None:
        kind, options = parse_options_header(self._headers.get(b"content-disposition"))
        if kind != b"form-data" or b"name" not in options:
            raise MalformedRequest("a part of the form has no name")
        self._name = options[b"name"].decode("utf-8", "replace")
        filename = options.get(b"filename")
        self._file = None if filename is None else filename.decode("utf-8", "replace")
        where = f"/form/{self._name[:80]}"
        if self._name == "image" and self._file is None:
            raise MalformedRequest(
                "a part named 'image' has no filename, so it is no file", pointer=where
            )
        if self._name != "image" and self._file is not None:
            raise UnknownParameter(
                f"the form has a file {self._name[:80]!r}; images are in parts named 'image', an "
                "archive is sent as the body",
                pointer=where,
            )
        if self._file is not None:
            self._collector.begin()
        else:
            self._count(len(self._name))

    def _data(self, data: bytes) -> None:
        if self._file is not None:
            self._collector.piece(data)
            return
        self._value += data
        self._count(len(data))

    def _count(self, size: int) -> None:
        self._text += size
        if self._text > LONGEST_TEXT:
            raise MalformedRequest(
                f"the fields of the form, up to {self._name[:80]!r}, have more than the "
                f"{LONGEST_TEXT} bytes allowed"
            )

    def _part_ends(self) -> None:
        if self._file is not None:
            self._collector.end(self._file or None)
        elif self._name == "model":
            self.model = self._value.decode("utf-8", "replace")
        else:
            value = self._value.decode("utf-8", "replace")
            self.fields.setdefault(self._name, []).append(value)


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

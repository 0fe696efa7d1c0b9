"""multipart/form-data, read piece by piece: files go on as they come, fields are kept as text."""

from __future__ import annotations

from typing import Any, Final, Protocol

from python_multipart.exceptions import FormParserError, MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from service.core.errors import MalformedRequest, UnknownParameter, step

LONGEST_TEXT: Final = 1_000_000
"""Bytes of all fields of a form that are not files."""
MOST_FIELDS: Final = 1000
"""Parts of a form that are not files."""
LONGEST_HEAD: Final = 10_000
"""Bytes of the name or the value of a part's header."""


class Images(Protocol):
    """Takes the files of a form, one after the other."""

    def begin(self) -> None:
        """Another file begins."""

    def piece(self, data: bytes) -> None:
        """Some more bytes of it."""

    def end(self, name: str | None) -> None:
        """It has ended; its name is None where it has none."""


class FormParser:
    """The one parser of forms: parts named `image` are files, all other parts are fields.

    Args:
        images: gets the files.
        boundary: of the Content-Type; None where there is none.
        hint: what else a caller could do who sends a file under another name.

    Raises:
        MalformedRequest: if the boundary is missing or not valid.
    """

    def __init__(self, images: Images, boundary: bytes | None, *, hint: str = "") -> None:
        self._images = images
        self._hint = hint
        self._count = 0
        self._header: list[bytes] = [b"", b""]
        self._headers: dict[bytes, bytes] = {}
        self._name = ""
        self._file: str | None = None
        self._value = bytearray()
        self._text = 0
        self._ended = False
        self.fields: list[tuple[str, str]] = []
        """Names and values, in their order."""
        if boundary is None:
            raise MalformedRequest("the form cannot be read: its Content-Type has no boundary")
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
        """Bytes of fields that are in memory."""
        return self._text

    def feed(self, data: bytes) -> None:
        """Read some more of the form.

        Raises:
            MalformedRequest, UnknownParameter, and what `images` raises.
        """
        try:
            self._parser.write(data)
        except MultipartParseError as error:
            raise MalformedRequest(f"the form cannot be read: {error}") from None

    def end(self) -> None:
        """
        Raises:
            MalformedRequest: if the form has not ended.
        """
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
        if self._name == "image" and self._file is None:
            raise MalformedRequest(
                "a part named 'image' has no filename, so it is not a file",
                pointer=f"/form/image/{self._count}",
            )
        if self._name != "image" and self._file is not None:
            raise UnknownParameter(
                f"the form has a file {self._name[:80]!r}; images are in parts named 'image'"
                f"{self._hint}",
                pointer=f"/form/{step(self._name)}",
            )
        if self._file is not None:
            self._count += 1
            self._images.begin()
        else:
            if len(self.fields) >= MOST_FIELDS:
                raise MalformedRequest(
                    f"the form has more than the {MOST_FIELDS} fields allowed, up to "
                    f"{self._name[:80]!r}"
                )
            self._note(len(self._name))

    def _data(self, data: bytes) -> None:
        if self._file is not None:
            self._images.piece(data)
            return
        self._value += data
        self._note(len(data))

    def _note(self, size: int) -> None:
        self._text += size
        if self._text > LONGEST_TEXT:
            raise MalformedRequest(
                f"the fields of the form, up to {self._name[:80]!r}, have more than the "
                f"{LONGEST_TEXT} bytes allowed"
            )

    def _part_ends(self) -> None:
        if self._file is not None:
            self._images.end(self._file or None)
        else:
            self.fields.append((self._name, self._value.decode("utf-8", "replace")))

"""Tensors of the Open Inference Protocol, in JSON and as raw bytes.

Raw bytes are those of the protocol's binary extension: numbers are little-endian, row by row; an
element of type BYTES has its length before it, as 4 bytes.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic_core import to_json

from cam.counts import counted
from service.core.errors import MalformedRequest

NUMBERS: Final[Mapping[str, np.dtype[Any]]] = {
    "BOOL": np.dtype("?"),
    "UINT8": np.dtype("u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
"""Datatype of the protocol → NumPy's. BYTES is the only other one."""
LENGTH: Final = struct.Struct("<I")
PIECE: Final = 16_384
"""Number of numbers that are written as JSON at a time."""


@dataclass(frozen=True, eq=False)
class Tensor:
    """A named array of numbers, or of byte strings."""

    name: str
    shape: tuple[int, ...]
    numbers: NDArray[Any] | None = None
    """The array, of one of the dtypes of `NUMBERS`; None if the tensor holds byte strings."""
    strings: Sequence[bytes] = ()
    """The elements of a tensor of type BYTES, row by row."""
    is_text: bool = False
    """Whether the byte strings are text in UTF-8; otherwise JSON has them in base64."""

    @property
    def datatype(self) -> str:
        if self.numbers is None:
            return "BYTES"
        return next(name for name, dtype in NUMBERS.items() if dtype == self.numbers.dtype)

    def raw(self) -> bytes:
        """Return the tensor as raw bytes."""
        if self.numbers is not None:
            return self.numbers.tobytes()
        return b"".join(LENGTH.pack(len(one)) + one for one in self.strings)

    @property
    def parameters(self) -> dict[str, str]:
        """The tensor's parameters where its elements are in JSON."""
        is_base64 = self.numbers is None and not self.is_text
        return {"content_type": "base64"} if is_base64 else {}

    def json_data(self) -> Iterator[bytes]:
        """Yield the elements as a JSON list, in pieces. Each piece takes a thread a few
        milliseconds, because a thread that writes JSON keeps all others waiting."""
        if self.numbers is None:
            texts = [
                (one if self.is_text else base64.b64encode(one)).decode() for one in self.strings
            ]
            yield to_json(texts)
            return
        yield b"["
        flat = self.numbers.ravel()
        for start in range(0, flat.size, PIECE):
            yield (b"," if start else b"") + to_json(flat[start : start + PIECE].tolist())[1:-1]
        yield b"]"


def from_raw(name: str, datatype: str, shape: Sequence[int], data: bytes) -> Tensor:
    """Read a tensor from raw bytes.

    Raises:
        MalformedRequest: if the datatype is unknown, or the bytes do not fit it and the shape.
    """
    count = _count(name, datatype, shape)
    if datatype != "BYTES":
        dtype = NUMBERS[datatype]
        if len(data) != count * dtype.itemsize:
            raise MalformedRequest(
                f"input {name!r} has {counted(len(data), 'byte')}; {datatype} of shape "
                f"{list(shape)} has {count * dtype.itemsize}"
            )
        return Tensor(name, tuple(shape), np.frombuffer(data, dtype).reshape(shape))
    strings: list[bytes] = []
    at = 0
    while at < len(data) and len(strings) <= count:
        (length,) = LENGTH.unpack(data[at : at + 4]) if at + 4 <= len(data) else (len(data),)
        if at + 4 + length > len(data):
            raise MalformedRequest(
                f"input {name!r}: element {len(strings)} of BYTES is cut off; each element is its "
                "length, 4 bytes little-endian, and then its bytes"
            )
        strings.append(data[at + 4 : at + 4 + length])
        at += 4 + length
    return Tensor(name, tuple(shape), strings=_all(name, strings, shape, count))


def from_list(name: str, datatype: str, shape: Sequence[int], data: Any) -> Tensor:
    """Read a tensor from a list, flat or nested. Elements of type BYTES are byte strings or text.

    Raises:
        MalformedRequest: if the datatype is unknown, or the list does not fit it and the shape.
    """
    count = _count(name, datatype, shape)
    if not isinstance(data, list):
        raise MalformedRequest(f"input {name!r} has no data; send a list, or raw bytes")
    # An array is made only of elements whose number and types are known to be right: of texts,
    # NumPy would give each the size of the longest.
    elements = _all(name, _flat(name, datatype, shape, data), shape, count)
    if datatype == "BYTES":
        if not all(isinstance(one, str | bytes) for one in elements):
            raise MalformedRequest(f"input {name!r}: BYTES in JSON are strings, in base64")
        strings = [one.encode() if isinstance(one, str) else one for one in elements]
        return Tensor(name, tuple(shape), strings=strings)
    if not all(isinstance(one, int | float) for one in elements):
        raise MalformedRequest(f"input {name!r}: an element is not a number of type {datatype}")
    dtype, given = NUMBERS[datatype], np.asarray(elements)
    is_right = given.dtype.kind in "biuf"  # it is objects if a number has more than 64 bits
    if is_right and dtype.kind != "f":  # of floats, the nearest one is taken
        with np.errstate(invalid="ignore"):
            is_right = np.array_equal(given.astype(dtype), given)
    if not is_right:
        raise MalformedRequest(f"input {name!r}: a number is not of type {datatype}")
    with np.errstate(over="ignore"):
        numbers = given.astype(dtype)
    return Tensor(name, tuple(shape), numbers.reshape(shape))


def _count(name: str, datatype: str, shape: Sequence[int]) -> int:
    """Return the number of elements of a shape."""
    if datatype != "BYTES" and datatype not in NUMBERS:
        known = ", ".join((*NUMBERS, "BYTES"))
        raise MalformedRequest(
            f"input {name!r}: datatype {datatype[:40]!r} is not one of the protocol's: {known}"
        )
    if len(shape) > 8 or any(not 0 <= side < 2**31 for side in shape):
        raise MalformedRequest(f"input {name!r} has the shape {str(list(shape))[:80]}")
    return prod(shape)


def _all(name: str, elements: list[Any], shape: Sequence[int], count: int) -> list[Any]:
    """Return the elements if they are as many as the shape says."""
    if len(elements) != count:
        raise MalformedRequest(
            f"input {name!r} has {counted(len(elements), 'element')}; its shape {list(shape)} has "
            f"{count}"
        )
    return elements


def _flat(name: str, datatype: str, shape: Sequence[int], data: list[Any]) -> list[Any]:
    """Return the elements of a list that is flat, or nested as the shape says."""
    if not data or not isinstance(data[0], list):
        return data
    level: list[Any] = [data]
    for side in shape:
        if not all(isinstance(one, list) and len(one) == side for one in level):
            raise MalformedRequest(
                f"input {name!r}: the data are not {datatype} in lists of equal lengths, as the "
                f"shape {list(shape)} says"
            )
        level = [part for one in level for part in one]
    return level

"""Tensors of the Open Inference Protocol, in JSON and as raw bytes.

Raw bytes are those of the protocol's binary extension: numbers are little-endian, row by row; an
element of type BYTES has its length before it, as 4 bytes.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

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

    def listed(self) -> tuple[list[Any], dict[str, str]]:
        """Return the elements as JSON has them, and the tensor's parameters."""
        if self.numbers is not None:
            return self.numbers.ravel().tolist(), {}
        if self.is_text:
            return [one.decode() for one in self.strings], {}
        return [base64.b64encode(one).decode() for one in self.strings], {"content_type": "base64"}


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
                f"input {name!r} has {len(data)} bytes; {datatype} of shape {list(shape)} has "
                f"{count * dtype.itemsize}"
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
    if datatype == "BYTES":
        strings = [one.encode() if isinstance(one, str) else one for one in _flat(data)]
        if not all(isinstance(one, bytes) for one in strings):
            raise MalformedRequest(f"input {name!r}: BYTES in JSON are strings, in base64")
        return Tensor(name, tuple(shape), strings=_all(name, strings, shape, count))
    try:
        given = np.asarray(data)  # of nested lists of unequal length it raises a ValueError
        numbers = given.astype(NUMBERS[datatype])
    except (ValueError, TypeError, OverflowError):
        raise MalformedRequest(
            f"input {name!r}: the data are not {datatype} in lists of equal lengths"
        ) from None
    if given.dtype.kind not in "biuf" or not np.array_equal(numbers, given):
        raise MalformedRequest(f"input {name!r}: a number is not of type {datatype}")
    if numbers.size != count:
        raise MalformedRequest(
            f"input {name!r} has {numbers.size} numbers; its shape {list(shape)} has {count}"
        )
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


def _all(name: str, strings: list[Any], shape: Sequence[int], count: int) -> list[bytes]:
    if len(strings) != count:
        raise MalformedRequest(
            f"input {name!r} has {len(strings)} elements; its shape {list(shape)} has {count}"
        )
    return strings


def _flat(data: list[Any]) -> list[Any]:
    """Return the elements of lists nested at most twice."""
    for _ in range(2):
        if any(isinstance(one, list) for one in data):
            data = [part for one in data for part in (one if isinstance(one, list) else [one])]
    return data

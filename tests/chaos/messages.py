"""Messages of gRPC that cost little to send and much to read, as `bodies` are.

They are made by hand: a client's library would take longer for millions of elements than the
service.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tritonclient.grpc import service_pb2

from service.features.open_inference.tensors import Tensor
from tests.chaos.bodies import (
    DEEP,
    DEPTH,
    HUGE,
    LONG,
    MANY,
    NAMES,
    NUMBER,
    PHOTO,
    SMALLEST,
    Form,
    Message,
    depths,
    elements,
    names,
)

GROUP: Final = b"\x0b"
"""A group of protobuf that begins within the one before."""


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def part(number: int, data: bytes) -> bytes:
    """A field of protobuf with a length."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def _many_parts(number: int, size: int) -> bytes:
    return part(number, b"") * (size // len(part(number, b"")))


def _parameter(field: int, name: str, value: bytes) -> bytes:
    """An entry of a map of parameters, whose value is a message."""
    return part(field, part(1, name.encode()) + part(2, value))


CALM = part(1, b"calm")
NUMBER_CHOICE, TEXT_CHOICE = 2, 3
"""Fields of a parameter."""


def _whole(number: int) -> bytes:
    return varint(NUMBER_CHOICE << 3) + varint(number % 2**64)


def _text(value: str) -> bytes:
    return part(TEXT_CHOICE, value.encode())


def infer() -> Form:
    """A ModelInferRequest."""
    given = service_pb2.ModelInferRequest(model_name="calm")
    given.inputs.add(name="image", datatype="BYTES", shape=[1])
    given.raw_input_contents.append(Tensor("image", (1,), strings=[PHOTO]).raw())
    given.outputs.add(name="labels")
    right = Message(given.SerializeToString())

    def tensor(datatype: str, contents: bytes, shape: bytes = b"\x01") -> bytes:
        named = part(1, b"image") + part(2, datatype.encode())
        return CALM + part(5, named + part(3, shape) + part(5, contents))

    def smallest(size: int) -> Iterator[Message]:
        for field in (5, 4, 6, 7):
            yield Message(CALM + _many_parts(field, size))
        yield Message(tensor("BYTES", _many_parts(8, size)))
        yield Message(tensor("UINT8", part(4, bytes(size))))
        yield Message(tensor("FP64", part(3, bytes(size))))
        yield Message(tensor("UINT8", part(4, b"\0"), shape=bytes(size)))
        for given in (60_000, size):
            texts = part(8, b"a" * LONG) + part(8, b"") * (given // 4)
            yield Message(tensor("FP16", texts))

    def deep(size: int) -> Iterator[Message]:
        yield Message(GROUP * DEPTH)
        yield Message(right.body + GROUP * DEPTH)
        for depth in depths():
            yield Message(right.body + _parameter(4, "explain_parameters", _text(depth)))

    def huge(size: int) -> Iterator[Message]:
        for name in ("timeout", "top_k", "target"):
            for number in (2**63 - 1, -(2**63), -1, 0):
                yield Message(right.body + _parameter(4, name, _whole(number)))
            for text in HUGE:
                yield Message(right.body + _parameter(4, name, _text(text)))
        for text in HUGE:
            nested = f'{{"top_k":{text}}}'
            yield Message(right.body + _parameter(4, "explain_parameters", _text(nested)))
        for side in (2**63 - 1, 2**64 - 1, 2**31 - 1):
            yield Message(tensor("UINT8", part(4, b"\0"), varint(side) * 4))

    def many(size: int) -> Iterator[Message]:
        turns = [f"name{turn}" for turn in range(NAMES)]
        yield Message(right.body + b"".join(_parameter(4, name, _whole(1)) for name in turns))
        yield Message(right.body + b"".join(part(5, part(1, name.encode())) for name in turns))
        yield Message(right.body + b"".join(part(6, part(1, name.encode())) for name in turns))
        yield Message(right.body, headers=tuple((name, "0") for name in turns))

    return Form(right, {SMALLEST: smallest, DEEP: deep, NUMBER: huge, MANY: many})


def load() -> Form:
    """A RepositoryModelLoadRequest."""
    right = Message(CALM)

    def config(value: str) -> Message:
        return Message(part(1, b"new") + _parameter(3, "config", _text(value)))

    def smallest(size: int) -> Iterator[Message]:
        yield Message(CALM + _many_parts(3, size))
        for value in elements(size):
            yield config(value)

    def deep(size: int) -> Iterator[Message]:
        yield Message(CALM + GROUP * DEPTH)
        yield from map(config, depths())

    def huge(size: int) -> Iterator[Message]:
        for number in HUGE:
            yield config(f'{{"source":"timm:test_resnet","input_size":{number}}}')

    def many(size: int) -> Iterator[Message]:
        turns = range(NAMES)
        yield Message(CALM + b"".join(_parameter(3, f"n{turn}", _whole(1)) for turn in turns))
        yield config(names())

    return Form(right, {SMALLEST: smallest, DEEP: deep, NUMBER: huge, MANY: many})


def empty() -> Form:
    """A message whose fields nobody knows."""

    def smallest(size: int) -> Iterator[Message]:
        yield Message(_many_parts(9, size))

    def deep(size: int) -> Iterator[Message]:
        yield Message(GROUP * DEPTH)

    def huge(size: int) -> Iterator[Message]:
        yield Message(varint(9 << 3) + varint(2**64 - 1))
        yield Message(varint(9 << 3) + b"\xff" * 400)

    def many(size: int) -> Iterator[Message]:
        yield Message(b"".join(part(turn + 9, b"") for turn in range(NAMES)))

    return Form(Message(b""), {SMALLEST: smallest, DEEP: deep, NUMBER: huge, MANY: many})

"""Bodies that cost little to send and much to read, in the form of each way in.

A form says where in its bodies a hostile value may stand. `Form.hostile` puts each value of an
attack at each of these places.
"""

from __future__ import annotations

import base64
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from itertools import product
from typing import Final

from service.features.open_inference.tensors import Tensor
from tests.chaos.corpus import png_chunk
from tests.chaos.stage import photo

JSON: Final = "application/json"
DEPTH: Final = 100_000
NAMES: Final = 5000
DIGITS: Final = 5000
LONG: Final = 30_000
"""Length of a string beside empty ones: an array of all has this width for each."""
HUGE: Final = (
    "1" + "0" * 400,
    "9" * DIGITS,
    "-" + "9" * DIGITS,
    "1e400",
    "1e-400",
    "0." + "1" * DIGITS,
)
PHOTO: Final = photo(0)
B64: Final = base64.b64encode(PHOTO).decode()
LENGTH: Final = "Inference-Header-Content-Length"
QUERY: Final = 30_000
"""Bytes of a query; a longer one is refused with the head."""
BOUNDARY: Final = "x"
FORM_KIND: Final = f"multipart/form-data; boundary={BOUNDARY}"


@dataclass(frozen=True)
class Message:
    """A request's body, with what of its head belongs to it. Over gRPC the headers are metadata."""

    body: bytes
    kind: str = JSON
    query: str = ""
    headers: tuple[tuple[str, str], ...] = ()


Messages = Callable[[int], Iterator[Message]]
"""Makes the messages of an attack, of so many bytes where it is one of size."""


@dataclass(frozen=True)
class Form:
    """What is sent by one way in: a message that is right, and those of each attack."""

    right: Message
    hostile: Mapping[str, Messages]


SMALLEST, DEEP, NUMBER, MANY = "smallest elements", "deep", "huge number", "5,000 names"


def elements(size: int) -> Iterator[str]:
    """Lists of the smallest elements that JSON has."""
    for one in ("[]", "0", '""', "{}"):
        yield "[" + f"{one}," * (size // (len(one) + 1)) + one + "]"


def uneven(size: int) -> str:
    """A list of empty strings behind a long one."""
    return json.dumps(["a" * LONG] + [""] * (size // 4))


def depths() -> Iterator[str]:
    yield "[" * DEPTH
    yield "[" * DEPTH + "]" * DEPTH
    yield '{"a":' * DEPTH + "0" + "}" * DEPTH


def names() -> str:
    """An object with so many fields."""
    return json.dumps({f"name{turn}": turn for turn in range(NAMES)})


def _in_the_head(right: Message) -> dict[str, list[Message]]:
    """What is hostile in the query and the headers."""
    query = "&".join(f"{turn}=" for turn in range(NAMES))
    headers = tuple((f"X-{turn}", "0") for turn in range(NAMES))
    return {
        DEEP: [Message(right.body, right.kind, "target=" + "[" * QUERY, right.headers)],
        NUMBER: [
            *(Message(right.body, right.kind, f"top_k={huge}", right.headers) for huge in HUGE),
            *(
                Message(right.body, right.kind, "", (*right.headers, ("X-Request-Timeout", huge)))
                for huge in HUGE
            ),
        ],
        MANY: [
            Message(right.body, right.kind, query[:QUERY], right.headers),
            Message(right.body, right.kind, "", (*right.headers, *headers)),
        ],
    }


def json_form(right: str, *places: str, kind: str = JSON, uneven_at: str = "") -> Form:
    """
    Args:
        right: a body that is right.
        places: bodies in which a hostile value stands for each `@`.
        uneven_at: such a body, for strings of unequal lengths.
    """
    head = _in_the_head(Message(right.encode(), kind))

    def put(values: Callable[[int], Iterator[str]]) -> Messages:
        def messages(size: int) -> Iterator[Message]:
            for place in ("@", *places):
                for value in values(size):
                    yield Message(place.replace("@", value).encode(), kind)

        return messages

    def smallest(size: int) -> Iterator[Message]:
        yield from put(elements)(size)
        if uneven_at:
            for given in (60_000, size):
                yield Message(uneven_at.replace("@", uneven(given)).encode(), kind)

    def followed(values: Callable[[int], Iterator[str]], attack: str) -> Messages:
        def messages(size: int) -> Iterator[Message]:
            yield from put(values)(size)
            yield from head[attack]

        return messages

    return Form(
        Message(right.encode(), kind),
        {
            SMALLEST: smallest,
            DEEP: followed(lambda size: depths(), DEEP),
            NUMBER: followed(lambda size: iter(HUGE), NUMBER),
            MANY: followed(lambda size: iter([names()]), MANY),
        },
    )


IMAGE = f'{{"image":{{"b64":"{B64}"}}}}'


def native(*parameters: str) -> Form:
    """Instances and parameters, of which these may have a hostile value."""
    return json_form(
        f'{{"instances":[{IMAGE}]}}',
        '{"instances":@}',
        '{"instances":[@]}',
        '{"instances":[{"image":@}]}',
        f'{{"instances":[{IMAGE}],"parameters":@}}',
        *(f'{{"instances":[{IMAGE}],"parameters":{{"{name}":@}}}}' for name in parameters),
    )


def job() -> Form:
    return json_form(
        f'{{"model":"calm","instances":[{IMAGE}]}}',
        '{"model":"calm","instances":@}',
        '{"model":"calm","instances":[{"image":@}]}',
        f'{{"model":"calm","instances":[{IMAGE}],"parameters":@}}',
        f'{{"model":"calm","instances":[{IMAGE}],"parameters":{{"target":@}}}}',
    )


def lines() -> Form:
    """NDJSON: the smallest elements are lines, too."""
    form = json_form(IMAGE, '{"image":@}', f'{IMAGE}\n{{"id":@}}', kind="application/x-ndjson")

    def smallest(size: int) -> Iterator[Message]:
        for line in (b"\n", b"0\n", b"{}\n"):
            yield Message(line * (size // len(line)), "application/x-ndjson")
        yield from form.hostile[SMALLEST](size)

    return Form(form.right, {**form.hostile, SMALLEST: smallest})


def archive() -> Form:
    """A zip of nothing but names. Its three other attacks are on the query and the headers."""

    def packed(files: Iterator[tuple[str, bytes]]) -> bytes:
        file = BytesIO()
        with zipfile.ZipFile(file, "w") as found:
            for name, data in files:
                found.writestr(name, data)
        return file.getvalue()

    right = Message(packed(iter([("a.png", PHOTO)])), "application/zip")
    each = len(packed(iter([("12345", b""), ("12346", b"")]))) - len(packed(iter([("1", b"")])))

    def smallest(size: int) -> Iterator[Message]:
        yield Message(packed((f"{n:x}", b"") for n in range(size // each)), right.kind)

    return Form(right, {SMALLEST: smallest, **_heads(right)})


def _heads(right: Message) -> dict[str, Messages]:
    head = _in_the_head(right)
    return {attack: lambda size, attack=attack: iter(head[attack]) for attack in head}  # type: ignore[misc]


def raw() -> Form:
    """An image whose smallest elements are chunks without data."""
    right = Message(PHOTO, "image/png")

    def smallest(size: int) -> Iterator[Message]:
        for name in (b"tEXt", b"IDAT", b"abCd"):
            chunk = png_chunk(name, b"")
            yield Message(PHOTO[:33] + chunk * (size // len(chunk)) + PHOTO[33:], right.kind)

    return Form(right, {SMALLEST: smallest, **_heads(right)})


def _part(name: str, value: bytes, file: bool = False) -> bytes:
    more = '; filename=""' if file else ""
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'
    return head.encode() + value + b"\r\n"


def multipart(*parameters: str) -> Form:
    """A form with these fields."""
    end, image = f"--{BOUNDARY}--\r\n".encode(), _part("image", PHOTO, file=True)
    right = Message(image + end, FORM_KIND)
    head = _in_the_head(right)

    def smallest(size: int) -> Iterator[Message]:
        for part in (_part("", b""), _part("image", b"", file=True), b"--x\r\n\r\n\r\n"):
            yield Message(part * (size // len(part)) + end, FORM_KIND)
        yield Message(image + b"\r\n" * (size // 2), FORM_KIND)

    def fields(values: Callable[[], Iterator[str]], attack: str) -> Messages:
        def messages(size: int) -> Iterator[Message]:
            for name, value in product(parameters, values()):
                yield Message(image + _part(name, value.encode()) + end, FORM_KIND)
            yield from head[attack]

        return messages

    def many(size: int) -> Iterator[Message]:
        for parts in (
            b"".join(_part(f"name{turn}", b"0") for turn in range(NAMES)),
            _part(parameters[0], b"0") * NAMES,
            b"".join(_part(f"{parameters[0]}{' ' * (turn % 9)}", b"0") for turn in range(NAMES)),
        ):
            yield Message(image + parts + end, FORM_KIND)
        yield from head[MANY]

    return Form(
        right,
        {
            SMALLEST: smallest,
            DEEP: fields(depths, DEEP),
            NUMBER: fields(lambda: iter(HUGE), NUMBER),
            MANY: many,
        },
    )


GIVEN = f'{{"name":"image","shape":[1],"datatype":"BYTES","data":["{B64}"]}}'


def inference() -> Form:
    """The Open Inference Protocol in JSON alone."""
    form = json_form(
        f'{{"inputs":[{GIVEN}],"outputs":[{{"name":"labels"}}]}}',
        '{"inputs":@}',
        '{"inputs":[{"name":"image","shape":@,"datatype":"UINT8","data":[0]}]}',
        '{"inputs":[{"name":"image","shape":[1],"datatype":"UINT8","data":@}]}',
        '{"inputs":[{"name":"image","shape":[1],"datatype":"FP64","data":[@]}]}',
        '{"inputs":[{"name":"image","shape":[1],"datatype":"BYTES","data":@}]}',
        f'{{"inputs":[{GIVEN},{{"name":"target","shape":[1],"datatype":"INT64","data":@}}]}}',
        f'{{"inputs":[{GIVEN}],"outputs":@}}',
        *(
            f'{{"inputs":[{GIVEN}],"outputs":[{{"name":"labels"}}],"parameters":{{"{name}":@}}}}'
            for name in ("timeout", "top_k", "explain_parameters")
        ),
        f'{{"inputs":[{GIVEN}],"outputs":[{{"name":"labels"}}],"parameters":@}}',
        uneven_at='{"inputs":[{"name":"image","shape":[1],"datatype":"UINT8","data":@}]}',
    )

    def deep(size: int) -> Iterator[Message]:
        yield from form.hostile[DEEP](size)
        for text in depths():  # a text of JSON within JSON
            yield Message(
                f'{{"inputs":[{GIVEN}],"parameters":{{"explain_parameters":'
                f"{json.dumps(text)}}}}}".encode()
            )

    return Form(form.right, {**form.hostile, DEEP: deep})


def binary() -> Form:
    """The Open Inference Protocol with bytes behind the JSON."""
    kind = "application/octet-stream"

    def message(head: str, data: bytes) -> Message:
        return Message(head.encode() + data, kind, headers=((LENGTH, str(len(head))),))

    def sent(shape: str, size: str, more: str = "") -> str:
        return (
            f'{{"inputs":[{{"name":"image","shape":[{shape}],"datatype":"BYTES","parameters":'
            f'{{"binary_data_size":{size}}}}}{more}],"outputs":[{{"name":"labels"}}]}}'
        )

    data = Tensor("image", (1,), strings=[PHOTO]).raw()
    right = message(sent("1", str(len(data))), data)
    head = _in_the_head(right)

    def smallest(size: int) -> Iterator[Message]:
        empty = bytes(size // 4 * 4)
        for count in (size // 4, 1):
            yield message(sent(str(count), str(len(empty))), empty)

    def deep(size: int) -> Iterator[Message]:
        for depth in depths():
            yield message(depth, data)
            yield message(sent("1", depth), data)
        yield from head[DEEP]

    def huge(size: int) -> Iterator[Message]:
        for number in HUGE:
            yield message(sent("1", number), data)
            yield message(sent(number, str(len(data))), data)
            yield Message(right.body, kind, headers=((LENGTH, number),))
        yield from head[NUMBER]

    def many(size: int) -> Iterator[Message]:
        none = '{"name":"n@","shape":[0],"datatype":"BYTES","parameters":{"binary_data_size":0}}'
        more = "".join("," + none.replace("@", str(turn)) for turn in range(NAMES))
        yield message(sent("1", str(len(data)), more), data)
        yield from head[MANY]

    return Form(right, {SMALLEST: smallest, DEEP: deep, NUMBER: huge, MANY: many})


def entry() -> Form:
    """The entry of a model to load, which is one that exists."""
    return json_form(
        '{"name":"calm","source":"timm:test_resnet"}',
        '{"name":@,"source":"timm:test_resnet"}',
        '{"name":"new","source":"timm:test_resnet","input_size":@}',
        '{"name":"new","source":"timm:test_resnet","mean":@}',
    )


def folder() -> Form:
    """A folder of a model, as SageMaker names it."""
    return json_form(
        '{"model_name":"new","url":"/nowhere"}',
        '{"model_name":@,"url":"/nowhere"}',
        '{"model_name":"new","url":@}',
    )

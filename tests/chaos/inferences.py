"""Requests for an inference that a grammar makes, then damaged: over V2 in JSON, with bytes behind
it, and over gRPC."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import grpc
import httpx2
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as some
from tritonclient.grpc import service_pb2

from service.features.open_inference.tensors import NUMBERS, Tensor
from tests.chaos import http2
from tests.chaos.finding import STUCK_SECONDS, Finding
from tests.chaos.stage import photo, plain, staged
from tests.chaos.watch import Watch
from tests.service.live import free_port

EXAMPLES: Final = 10_000
MOST_SECONDS: Final = 2.0
LENGTH: Final = "Inference-Header-Content-Length"
PHOTOS: Final = (photo(0), photo(1, 8, 40), plain(0), b"", b"GIF89a")
DATATYPES: Final = (*NUMBERS, "BYTES")
NAMES: Final = ("image", "target", "x", "")
OUTPUTS: Final = ("probabilities", "labels", "heatmap", "overlay", "explanation")
VALUES: Final = some.one_of(
    some.integers(-3, 5),
    some.integers(-(2**63), 2**64),
    some.booleans(),
    some.floats(),
    some.text(max_size=12),
    some.sampled_from(["gradcam", "layercam", "conv2", "squash", "model", "layer", "[1]", "{}"]),
)
PARAMETERS: Final = some.dictionaries(
    some.sampled_from(
        [
            *("method", "layer", "target", "top_k", "size", "fit", "output", "normalize"),
            *("opacity", "timeout", "priority", "colour", "sequence_id", "binary_data_output"),
            *("explain_parameters", "classification", "content_type", "shared_memory_region"),
        ]
    ),
    VALUES,
    max_size=3,
)
GOOD_PARAMETERS: Final = some.fixed_dictionaries(
    {},
    optional={
        "method": some.sampled_from(["gradcam", "layercam", "hirescam"]),
        "size": some.sampled_from(["model", "layer", "image"]),
        "fit": some.sampled_from(["squash", "pad", "crop"]),
        "top_k": some.integers(1, 3),
        "timeout": some.integers(10**6, 2**63 - 1),
        "binary_data_output": some.booleans(),
    },
)
SHAPES: Final = some.one_of(
    some.just([1]),
    some.lists(some.integers(0, 4), max_size=5),
    some.tuples(some.just(1), some.integers(1, 9), some.integers(1, 9), some.just(3)).map(list),
    some.lists(some.integers(-(2**31), 2**63 - 1), max_size=9),
)
FRACTIONS: Final = some.integers(0, 2**16)


@dataclass(frozen=True)
class Given:
    """An input, in whatever way it is sent."""

    name: str
    datatype: str
    shape: list[int]
    elements: list[Any]
    parameters: dict[str, Any]

    @property
    def raw(self) -> bytes:
        if self.datatype == "BYTES":
            texts = [
                each if isinstance(each, bytes) else str(each).encode() for each in self.elements
            ]
            return Tensor("", (1,), strings=texts).raw()
        return (
            bytes(each % 256 for each in self.elements if isinstance(each, int))
            * NUMBERS[self.datatype].itemsize
        )


@some.composite
def inputs(draw: some.DrawFn) -> Given:
    """Mostly an image as the protocol has it, else anything whose parts are of the protocol."""
    which = draw(some.integers(0, 3))
    if which == 0:
        photos = draw(some.lists(some.sampled_from(PHOTOS), min_size=1, max_size=3))
        return Given("image", "BYTES", [len(photos)], list(photos), {})
    if which == 1:
        height, width = draw(some.integers(1, 9)), draw(some.integers(1, 9))
        return Given("image", "UINT8", [1, height, width, 3], [7] * (height * width * 3), {})
    if which == 2:
        return Given("target", draw(some.sampled_from(DATATYPES)), [1], [draw(VALUES)], {})
    elements = draw(some.lists(VALUES | some.sampled_from(PHOTOS), max_size=6))
    datatype = draw(some.sampled_from(DATATYPES))
    name = draw(some.sampled_from(NAMES) | some.text(max_size=5))
    return Given(name, datatype, draw(SHAPES), elements, draw(PARAMETERS))


@dataclass(frozen=True)
class Asked:
    """A request, before it is written for one of the ways in."""

    inputs: list[Given]
    outputs: list[str]
    parameters: dict[str, Any]
    id: str
    version: str
    binary: list[bool]
    """Whether the bytes of each input stand behind the JSON."""
    damages: list[tuple[int, int, int]]


DAMAGES: Final[some.SearchStrategy[list[tuple[int, int, int]]]] = some.just([]) | some.lists(
    some.tuples(some.integers(0, 7), FRACTIONS, FRACTIONS), max_size=4
)
BINARY: Final = some.lists(some.booleans(), min_size=3, max_size=3)
ANY: Final = some.builds(
    Asked,
    inputs=some.lists(inputs(), min_size=0, max_size=3),
    outputs=some.lists(some.sampled_from(OUTPUTS) | some.text(max_size=4), max_size=3),
    parameters=PARAMETERS,
    id=some.text(max_size=6),
    version=some.sampled_from(["", "", "1", "2"]),
    binary=BINARY,
    damages=DAMAGES,
)
GOOD: Final = some.builds(
    Asked,
    inputs=some.one_of(
        some.lists(some.sampled_from(PHOTOS[:3]), min_size=1, max_size=2).map(
            lambda photos: [Given("image", "BYTES", [len(photos)], list(photos), {})]
        ),
        some.integers(1, 9).map(
            lambda side: [Given("image", "UINT8", [1, side, side, 3], [7] * (3 * side**2), {})]
        ),
    ),
    outputs=some.lists(some.sampled_from(OUTPUTS), max_size=3),
    parameters=GOOD_PARAMETERS,
    id=some.text(max_size=6),
    version=some.sampled_from(["", "1"]),
    binary=BINARY,
    damages=DAMAGES,
)
REQUESTS: Final = GOOD | ANY
PIECES: Final = (
    b"[" * 3000,
    b"{" * 3000,
    b"9" * 400,
    b"\0" * 9,
    b"\xff" * 9,
    b",",
    b"null",
    b"1e999",
)


def damaged(body: bytes, damages: list[tuple[int, int, int]]) -> bytes:
    """A body of which bytes are changed, cut, moved, doubled or put in."""
    found = bytearray(body)
    for kind, where, what in damages:
        at = where * (len(found) + 1) >> 16
        if kind == 0 and found:
            found[min(at, len(found) - 1)] = what & 255
        elif kind == 1:
            del found[at:]
        elif kind == 2:
            del found[at : at + 1 + (what & 15)]
        elif kind == 3:
            found[at:at] = PIECES[what % len(PIECES)]
        elif kind == 4:
            found[at:at] = found[: what & 255]
        elif kind == 5:
            found[at:] = found[at:][::-1]
        elif kind == 6 and found:
            found[min(at, len(found) - 1)] ^= 1 << (what & 7)
        else:
            found += found[at : at + 4000]
    return bytes(found)


def written(asked: Asked) -> tuple[bytes, dict[str, str]]:
    """The body for V2, and its headers."""
    tensors, behind = [], b""
    for one, is_binary in zip(asked.inputs, asked.binary, strict=False):
        tensor: dict[str, Any] = {"name": one.name, "datatype": one.datatype, "shape": one.shape}
        if is_binary:
            tensor["parameters"] = one.parameters | {"binary_data_size": len(one.raw)}
            behind += one.raw
        else:
            tensor["data"] = [
                base64.b64encode(each).decode() if isinstance(each, bytes) else each
                for each in one.elements
            ]
            tensor["parameters"] = one.parameters
        tensors.append(tensor)
    outputs = [{"name": name, "parameters": {"binary_data": True}} for name in asked.outputs]
    sent = {"id": asked.id, "inputs": tensors, "outputs": outputs, "parameters": asked.parameters}
    head = json.dumps(sent).encode()
    headers = {LENGTH: str(len(head))} if behind else {}
    return damaged(head + behind, asked.damages), headers


def message(asked: Asked) -> bytes:
    """The message for gRPC."""
    found = service_pb2.ModelInferRequest(
        model_name="calm", model_version=asked.version, id=asked.id
    )
    for one, is_raw in zip(asked.inputs, asked.binary, strict=False):
        sides = [side for side in one.shape if -(2**63) <= side < 2**63]
        tensor = found.inputs.add(name=one.name, datatype=one.datatype, shape=sides)
        if is_raw:
            found.raw_input_contents.append(one.raw)
            continue
        contents = tensor.contents
        for each in one.elements:
            if isinstance(each, bytes):
                contents.bytes_contents.append(each)
            elif isinstance(each, bool):
                contents.bool_contents.append(each)
            elif isinstance(each, int) and 0 <= each < 2**32:
                contents.uint_contents.append(each)
            elif isinstance(each, float):
                contents.fp64_contents.append(each)
    for name, value in asked.parameters.items():
        if isinstance(value, bool):
            found.parameters[name].bool_param = value
        elif isinstance(value, int):
            found.parameters[name].int64_param = max(min(value, 2**63 - 1), -(2**63))
        elif isinstance(value, str):
            found.parameters[name].string_param = value
    for name in asked.outputs:
        found.outputs.add(name=name)
    return damaged(found.SerializeToString(), asked.damages)


Ask = Callable[[Asked], tuple[str, str, bool]]
"""Sends a request, and returns the status or code, what is said, and whether that is wrong."""


async def inferences(scale: float) -> list[Finding]:
    """One half over V2, the other over gRPC."""
    return await asyncio.to_thread(_ask, max(int(EXAMPLES * scale), 200))


def _ask(count: int) -> list[Finding]:
    grpc_port = free_port()
    found = {"V2": Tally(), "gRPC": Tally()}
    with (
        staged("calm", grpc_port=str(grpc_port)) as stage,
        httpx2.Client(base_url=f"http://127.0.0.1:{stage.port}", timeout=60) as http,
        grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as channel,
    ):
        call = channel.unary_unary(f"/{http2.SERVICE}/ModelInfer")

        def over_http(asked: Asked) -> tuple[str, str, bool]:
            body, headers = written(asked)
            version = f"/versions/{asked.version}" if asked.version else ""
            reply = http.post(f"/v2/models/calm{version}/infer", content=body, headers=headers)
            bad = reply.status_code >= 500 and reply.status_code not in (503, 504)
            shapeless = 400 <= reply.status_code < 500 and "error" not in reply.json()
            return str(reply.status_code), reply.text[:200], bad or shapeless

        def over_grpc(asked: Asked) -> tuple[str, str, bool]:
            try:
                call(message(asked), timeout=60)
            except grpc.RpcError as error:
                code, said = error.code().name, str(error.details())[:200]
                return code, said, code in ("UNKNOWN", "INTERNAL", "CANCELLED", "UNAVAILABLE")
            return "OK", "", False

        right = Asked([Given("image", "BYTES", [1], [PHOTOS[0]], {})], [], {}, "", "", [True], [])
        for ask in (over_http, over_grpc):
            assert ask(right)[0] in ("200", "OK"), ask(right)
        watch = Watch(stage)
        for ask, tally in zip((over_http, over_grpc), found.values(), strict=True):
            _generate(count // 2, ask, tally)
            tally.afterwards = ask(right)[0]
        killed = watch.killed
    return [tally.finding(way, killed) for way, tally in found.items()]


def _generate(count: int, ask: Ask, tally: Tally) -> None:
    @settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(asked=REQUESTS)
    def run(asked: Asked) -> None:
        begun = time.monotonic()
        answer, said, is_bad = ask(asked)
        tally.note(asked, answer, said, is_bad, time.monotonic() - begun)

    run()


class Tally:
    """The answers by one way in."""

    def __init__(self) -> None:
        self._answers: Counter[str] = Counter()
        self._worst: list[str] = []
        self._slowest = 0.0, ""
        self.afterwards = ""
        """The answer to a request that is right, when all is over."""

    def note(self, asked: Asked, answer: str, said: str, is_bad: bool, seconds: float) -> None:
        self._answers[answer] += 1
        self._slowest = max(self._slowest, (seconds, str(asked)[:300]))
        if is_bad:
            self._worst.append(f"{answer} {said} to {str(asked)[:600]}")

    def finding(self, way: str, killed: int) -> Finding:
        seconds, slowest = self._slowest
        shown = ", ".join(f"{answer}: {n:,}" for answer, n in sorted(self._answers.items()))
        first = min(self._worst, key=len, default="")
        slow = "" if seconds <= MOST_SECONDS else f" ({slowest})"
        well = self.afterwards in ("200", "OK")
        return Finding(
            f"{self._answers.total():,} generated inferences over {way}, half of them damaged",
            f"2xx or 4xx with `error`, 503, 504; gRPC: neither UNKNOWN nor INTERNAL; each < "
            f"{MOST_SECONDS:.0f} s; a right one is answered afterwards",
            f"{len(self._worst)} other; {shown}; slowest {seconds:.2f} s{slow}; {killed} processes "
            f"killed; afterwards {self.afterwards}{'; ' + first if first else ''}",
            not self._worst and not killed and well and seconds <= STUCK_SECONDS,
            seconds <= MOST_SECONDS,
        )

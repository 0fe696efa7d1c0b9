"""Small requests with large answers, and callers who do not read theirs."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final

import grpc
from PIL import Image
from tritonclient.grpc import service_pb2

from service.features.open_inference.tensors import Tensor
from tests.chaos import http2, probing
from tests.chaos.finding import Finding, slack
from tests.chaos.matrix import MOST_FOR_A_BYTE, MOST_WITHOUT_A_KEY
from tests.chaos.stage import Client, NoReply, Stage, staged
from tests.chaos.watch import PROBES, Watch
from tests.service.live import free_port

SIDE, REHEARSED_SIDE, SMALL_SIDE = 4000, 2500, 1000
MANY: Final = 32
FOR_A_PIXEL: Final = 30
"""Bytes that a photo takes for each of its pixels: see GRADCAM_PIXEL_BUDGET."""
FOR_A_NUMBER: Final = 32
"""Bytes of a number of an answer, as a number of Python and as text."""
MOST_NUMBERS: Final = 4_000_000
"""Numbers of an answer in JSON."""
DEADLINE_SECONDS, SEND_SECONDS, LOOK_SECONDS = 5.0, 2.0, 0.2
LATE_SECONDS: Final = 3.0
MOST_AGE_SECONDS: Final = 70.0
"""How old a connection of gRPC may get, beside the deadline of its last calls."""
PATIENCE_SECONDS: Final = 180.0
INFER: Final = "/v2/models/calm/infer"
EXPLAIN: Final = "/v1/models/calm:explain"
JSON: Final = "application/json"


@dataclass(frozen=True)
class Question:
    """A request whose answer is large."""

    name: str
    path: str
    body: bytes
    pixels: int
    statuses: tuple[int, ...]
    words: tuple[str, ...] = ()
    """Words of a refusal."""
    kind: str = JSON
    accept: str = JSON


def grey(side: int) -> bytes:
    """A PNG of one grey: the answer's numbers are many, the file is small."""
    file = BytesIO()
    Image.new("L", (side, side), 128).save(file, "PNG")
    return file.getvalue()


def _inference(photo: bytes, count: int, **more: Any) -> bytes:
    data = [base64.b64encode(photo).decode()] * count
    tensor = {"name": "image", "shape": [count], "datatype": "BYTES", "data": data}
    return json.dumps({"inputs": [tensor], **more}).encode()


def _instances(photo: bytes, count: int, **parameters: Any) -> bytes:
    instance = {"image": {"b64": base64.b64encode(photo).decode()}}
    return json.dumps({"instances": [instance] * count, "parameters": parameters}).encode()


def _questions(side: int) -> list[Question]:
    large, small = grey(side), grey(SMALL_SIDE)
    one, several = side * side, MANY * SMALL_SIDE * SMALL_SIDE
    words = ("binary_data", "output", "size")
    binary = [{"name": "heatmap", "parameters": {"binary_data": True}}]
    return [
        Question(f"V2 of {side}²", INFER, _inference(large, 1), one, (422,), words),
        Question(
            f"V2 of 32 × {SMALL_SIDE}²", INFER, _inference(small, MANY), several, (422,), words
        ),
        Question(
            f"V2 of {side}², binary",
            INFER,
            _inference(large, 1, outputs=binary),
            one,
            (200, 422, 504),
        ),
        Question(
            f"`:explain` of {side}², numbers in JSON",
            EXPLAIN,
            _instances(large, 1, output="values"),
            one,
            (200, 422, 504),
        ),
        Question(
            f"`:explain` of 32 × {SMALL_SIDE}², numbers in JSON",
            EXPLAIN,
            _instances(small, MANY, output="values"),
            several,
            (200, 422, 504),
        ),
        Question(
            f"`:explain` of {side}² as .npy",
            EXPLAIN,
            large,
            one,
            (200, 422, 504),
            kind="image/png",
            accept="application/x-npy",
        ),
        Question("V2 of 1000²", INFER, _inference(small, 1), SMALL_SIDE * SMALL_SIDE, (200,)),
    ]


async def answers(scale: float) -> list[Finding]:
    """What is computed for a small request is bounded; an answer that nobody reads is dropped."""
    side = SIDE if scale >= 1 else REHEARSED_SIDE
    grpc_port, probe_port, deadline = (
        free_port(),
        free_port(),
        DEADLINE_SECONDS * slack(scale) ** 0.5,
    )
    findings = []
    with staged(
        "calm",
        grpc_port=str(grpc_port),
        probe_port=str(probe_port),
        send_seconds=str(SEND_SECONDS),
        deadline_seconds=str(deadline),
        cache_bytes="0",
    ) as stage:
        async with probing.probing(stage.port, probe_port) as probes, Client(stage.port) as client:

            async def judged(
                name: str, allowed: str, most: float, asking: Coroutine[Any, Any, tuple[str, bool]]
            ) -> None:
                watch = Watch(stage)
                said, kept = await asking
                seen = await watch.seen(probes, stage.port, probe_port)
                findings.append(
                    Finding(
                        name,
                        f"{allowed}; ≤ {most / 1e6:.0f} MB; {PROBES}",
                        f"{said}; {seen}",
                        kept and seen.is_within(most),
                        seen.timely,
                    )
                )

            warm = _inference(grey(SMALL_SIDE), 1, outputs=[{"name": "labels"}])
            await client.ask("POST", INFER, warm, JSON)
            for question in _questions(side):
                most = FOR_A_PIXEL * question.pixels + FOR_A_NUMBER * MOST_NUMBERS
                await judged(
                    f"{question.name}, {len(question.body) / 1000:.0f} kB",
                    " or ".join(map(str, question.statuses))
                    + (f" naming {', '.join(question.words)}" if question.words else ""),
                    most + max(MOST_WITHOUT_A_KEY, MOST_FOR_A_BYTE * len(question.body)),
                    _asked(client, question, deadline),
                )
            pixels = side * side
            await judged(
                f"gRPC ModelInfer of {side}²",
                "OK or INVALID_ARGUMENT",
                (FOR_A_PIXEL + 16) * pixels + MOST_WITHOUT_A_KEY,
                _call(grpc_port, grey(side)),
            )
            limit = deadline + SEND_SECONDS + LATE_SECONDS * slack(scale) ** 0.5
            most = (FOR_A_PIXEL + 16) * pixels + MOST_WITHOUT_A_KEY
            for name, sip in (("nothing", 0), ("a little at a time", 2000)):
                await judged(
                    f"a caller who reads {name} of {side}² as .npy",
                    f"is cut off within {limit:.0f} s",
                    most,
                    _unread(stage, grey(side), limit, sip=sip),
                )
            if scale >= 1:  # a call lives as long as its connection
                limit = MOST_AGE_SECONDS + deadline + LATE_SECONDS
                await judged(
                    f"a caller of gRPC who reads nothing of {side}²",
                    f"is cut off within {limit:.0f} s",
                    most,
                    _unread_call(grpc_port, grey(side), limit),
                )
    return findings


async def _asked(client: Client, question: Question, deadline: float) -> tuple[str, bool]:
    begun = time.monotonic()
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            reply = await client.ask(
                "POST", question.path, question.body, question.kind, question.accept
            )
    except (NoReply, ConnectionRefusedError, TimeoutError):
        return "no answer", False
    took = time.monotonic() - begun
    names = all(word in reply.body.decode("latin-1") for word in question.words)
    in_time = took <= deadline + LATE_SECONDS
    said = f"{reply.status}, {len(reply.body) / 1e6:.1f} MB{'' if in_time else ', late'}"
    if reply.status == 422 and not names:
        said += f", which does not name {', '.join(question.words)}"
    named = names or reply.status != 422
    return said, reply.status in question.statuses and named and in_time


async def _unread(stage: Stage, photo: bytes, limit: float, *, sip: int) -> tuple[str, bool]:
    """Wait until the service lets go of a connection from which so many bytes are read at a time.
    The kernel keeps what has been sent, so the caller does not see it."""
    loop, begun, one = asyncio.get_running_loop(), time.monotonic(), socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.setblocking(False)
    with one, suppress(ConnectionResetError, BrokenPipeError):
        await loop.sock_connect(one, ("127.0.0.1", stage.port))
        head = (
            f"POST {EXPLAIN} HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
            f"Accept: application/x-npy\r\nContent-Length: {len(photo)}\r\n\r\n"
        )
        await loop.sock_sendall(one, head.encode() + photo)
        door, own = stage.door, one.getsockname()
        while time.monotonic() - begun <= limit:
            await asyncio.sleep(LOOK_SECONDS)
            if sip:
                with suppress(BlockingIOError):
                    one.recv(sip)
            if all(each.raddr != own for each in door.net_connections("tcp")):
                break
    return _life(time.monotonic() - begun, limit)


def _life(seconds: float, limit: float) -> tuple[str, bool]:
    return (f"after {seconds:.1f} s" if seconds <= limit else "is not"), seconds <= limit


def _message(photo: bytes) -> bytes:
    message = service_pb2.ModelInferRequest(model_name="calm")
    message.inputs.add(name="image", datatype="BYTES", shape=[1])
    message.raw_input_contents.append(Tensor("image", (1,), strings=[photo]).raw())
    return bytes(message.SerializeToString())


async def _call(port: int, photo: bytes) -> tuple[str, bool]:
    options = [("grpc.max_receive_message_length", -1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options) as channel:
        call = channel.unary_unary(f"/{http2.SERVICE}/ModelInfer")
        try:
            await call(_message(photo), timeout=PATIENCE_SECONDS)
        except grpc.aio.AioRpcError as error:
            return str(error.code().name), error.code() is grpc.StatusCode.INVALID_ARGUMENT
    return "OK", True


async def _unread_call(port: int, photo: bytes, limit: float) -> tuple[str, bool]:
    """Wait until the service ends a call of whose answer no byte may be sent."""
    message = _message(photo)
    async with http2.connected(port, window=0) as connection:
        stream = connection.begin("ModelInfer", {})
        connection.send(stream, b"\0" + len(message).to_bytes(4, "big"))
        for at in range(0, len(message), 16_384):
            connection.send(stream, message[at : at + 16_384])
        connection.send(stream, b"", ends=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await connection.until_ended()
        return _life(max(connection.lives, default=limit + 1), limit)

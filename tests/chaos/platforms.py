"""Strangers' bytes by other platforms' doors: tensors of the Open Inference Protocol, over HTTP and
gRPC, and SageMaker's invocations."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import TypeVar

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from service.features.open_inference.tensors import Tensor
from tests.chaos import corpus
from tests.chaos.finding import STUCK_SECONDS, Finding
from tests.chaos.stage import Client, Reply, staged
from tests.service.live import free_port

INFER = "/v2/models/calm/infer"
LENGTH = "Inference-Header-Content-Length"
DATATYPES = ("BYTES", "UINT8", "FP32", "INT64", "BOOL", "nothing")
AT_ONCE = 8
T = TypeVar("T")
OURS = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}


async def strangers(scale: float) -> list[Finding]:
    """Each file as one of these, in turn; and requests for an inference that are damaged."""
    grpc_port = free_port()
    with staged("calm", platform="sagemaker", host="127.0.0.1", grpc_port=str(grpc_port)) as stage:
        files = [*corpus.nasties().items(), *corpus.mutations(int(3000 * scale), seed=3)]
        async with Client(stage.port) as client:
            serving = stage.serving
            replies = await _all(
                [_ask(client, turn, name, data) for turn, (name, data) in enumerate(files)]
                + [_damaged(client, seed) for seed in range(int(3000 * scale))]
            )
        async with grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            codes = await _all([_call(stub, data) for _, data in files])
        deaths = sum(not each.is_running() for each in serving)
    statuses = Counter(reply.status for _, reply in replies)
    failed = sum(count for status, count in statuses.items() if status >= 500)
    slowest, longest = max(replies, key=lambda each: each[1].seconds)
    shapeless = sum(
        "error" not in reply.json() for _, reply in replies if 400 <= reply.status < 500
    )
    said = Counter(code.name for code in codes)
    return [
        Finding(
            f"{len(files):,} hostile files by /v2, gRPC and /invocations, and "
            f"{int(3000 * scale):,} damaged requests",
            "0 5xx, 0 deaths, each < 2 s, every refusal with `error`; gRPC: our codes",
            f"{failed} 5xx, {deaths} deaths, slowest {longest.seconds:.2f} s ({slowest}), "
            f"{shapeless} without `error`; "
            f"{', '.join(f'{status}: {count:,}' for status, count in sorted(statuses.items()))}; "
            f"gRPC {', '.join(f'{name}: {count:,}' for name, count in sorted(said.items()))}",
            not failed
            and not deaths
            and not shapeless
            and longest.seconds < STUCK_SECONDS
            and {*codes} <= OURS,
            longest.seconds < 2,
        )
    ]


async def _all(work: list[Coroutine[None, None, T]]) -> list[T]:
    """The results of all, of which a few run at once."""
    places = asyncio.Semaphore(AT_ONCE)

    async def placed(one: Coroutine[None, None, T]) -> T:
        async with places:
            return await one

    return await asyncio.gather(*map(placed, work))


async def _ask(client: Client, turn: int, name: str, data: bytes) -> tuple[str, Reply]:
    if turn % 2:
        return name, await client.ask("POST", "/invocations", data, kind="application/x-image")
    return name, await _infer(client, *_request(data))


async def _infer(client: Client, head: bytes, raw: bytes) -> Reply:
    more = f"{LENGTH}: {len(head)}\r\n"
    return await client.ask("POST", INFER, head + raw, "application/octet-stream", more=more)


def _request(data: bytes) -> tuple[bytes, bytes]:
    raw = Tensor("image", (1,), strings=[data]).raw()
    sent = {
        "inputs": [
            {
                "name": "image",
                "shape": [1],
                "datatype": "BYTES",
                "parameters": {"binary_data_size": len(raw)},
            }
        ],
        "parameters": {"size": "model"},
    }
    return json.dumps(sent).encode(), raw


async def _damaged(client: Client, seed: int) -> tuple[str, Reply]:
    """A request whose tensor does not fit, or of which bytes are changed, cut or moved."""
    rng = random.Random(seed)
    sides = [rng.choice((-1, 0, 1, 3, 8, 2**31, 2**70)) for _ in range(rng.randrange(6))]
    size = rng.choice((None, -1, 0, 5, 2**40))
    tensor: dict[str, object] = {
        "name": rng.choice(("image", "target", "x")),
        "shape": rng.choice((sides, [1], [1, 8, 8, 3])),
        "datatype": rng.choice(DATATYPES),
        "data": rng.choice((None, [0] * 192, ["x"], [[1], [2, 3]], [1e300], "x", [None])),
        "parameters": {} if size is None else {"binary_data_size": size},
    }
    outputs = [{"name": name} for name in rng.choice(([], ["heatmap"], ["x"], ["overlay"]))]
    body = bytearray(json.dumps({"inputs": [tensor], "outputs": outputs}).encode())
    changes: tuple[Callable[[], object], ...] = (
        lambda: None,
        lambda: body.__setitem__(rng.randrange(len(body)), rng.randrange(256)),
        lambda: body.__delitem__(slice(rng.randrange(len(body)), None)),
        lambda: body.extend(b"[" * 5000),
    )
    rng.choice(changes)()
    return f"damaged {seed}", await _infer(client, bytes(body), rng.randbytes(rng.randrange(40)))


async def _call(stub: service_pb2_grpc.GRPCInferenceServiceStub, data: bytes) -> grpc.StatusCode:
    message = service_pb2.ModelInferRequest(model_name="calm")
    message.inputs.add(name="image", datatype="BYTES", shape=[1])
    message.raw_input_contents.append(Tensor("image", (1,), strings=[data]).raw())
    message.outputs.add(name="labels")
    try:
        await stub.ModelInfer(message)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK

"""A service with keys and every way in, and what asks it by them."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from service.features.keys.keys import new_key
from service.features.platforms.settings import EXPLAIN
from tests.chaos import bodies, http2, messages, probing
from tests.chaos.bodies import Message
from tests.chaos.stage import Client, NoReply, Stage, staged, until_ready
from tests.chaos.ways import Place, Way
from tests.service.live import free_port

PATIENCE_SECONDS: Final = 120.0
READY_SECONDS: Final = 90.0
CONNECTIONS: Final = 200
"""Most that the service may have."""
NO_ANSWER: Final = "no answer"
ENVIRONMENT: Final[Mapping[Place, Mapping[str, str]]] = {
    "service": {
        "platform": "sagemaker",
        "routes": f"/ping=/healthz,/invocations={EXPLAIN},/score={EXPLAIN}",
    },
    "vertex": {"platform": "vertex"},
    "several models": {"platform": "sagemaker", "starts_empty": "1"},
}


@dataclass(frozen=True)
class Scene:
    stage: Stage
    place: Place
    ports: tuple[int, int]
    """The service's own port, and that of its probes."""
    grpc_port: int
    keys: Mapping[str, str]
    """Scope → a key that has it alone."""
    probes: probing.Probes
    channel: Any
    client: Client
    scale: float
    receive_seconds: float
    """Longest time that a request may take to come."""

    async def send(self, way: Way, message: Message, scope: str) -> str:
        """The status or the code of the answer to a message with a key of that scope, if any."""
        if way.is_grpc:
            metadata = [*self.metadata(scope).items(), *message.headers]
            call = self.channel.unary_unary(f"/{http2.SERVICE}/{way.path}")
            try:
                await call(message.body, metadata=metadata, timeout=PATIENCE_SECONDS)
            except grpc.aio.AioRpcError as error:
                return str(error.code().name)
            return "OK"
        path = way.path
        if message.query:
            path += ("&" if "?" in path else "?") + message.query
        more = "".join(f"{name}: {value}\r\n" for name, value in message.headers)
        more += self.header(scope)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                reply = await self.client.ask("POST", path, message.body, message.kind, more=more)
                job = reply.headers.get("location", "")
                if reply.status == 202 and "/v1/jobs/" in job:  # it must not work beside the next
                    gone = f"{job}?purge=true"
                    await self.client.ask("DELETE", gone, more=self.header("explain"))
        except (NoReply, ConnectionRefusedError, TimeoutError):
            return NO_ANSWER
        return str(reply.status)

    async def honest(self, way: Way) -> str:
        """What is wrong with the answer to an honest caller beside this way; "" if nothing is."""
        if way.is_grpc:
            asked, message = Way("", "ModelInfer", way.form, is_grpc=True), messages.infer().right
        elif self.place == "several models":
            reply = await self.client.ask("GET", "/v1/models", more=self.header("explain"))
            return "" if reply.status == 200 else f"; an honest caller got {reply.status}"
        else:
            asked, message = Way("", "/v1/models/calm:predict", way.form), bodies.raw().right
        answer = await self.send(asked, message, "explain")
        return "" if answer in ("200", "OK") else f"; an honest caller got {answer}"

    def header(self, scope: str) -> str:
        return "".join(f"{name}: {key}\r\n" for name, key in self.metadata(scope).items())

    def metadata(self, scope: str) -> dict[str, str]:
        return {"x-api-key": self.keys[scope]} if scope in self.keys else {}


@asynccontextmanager
async def staged_scene(place: Place, scale: float) -> AsyncIterator[Scene]:
    """Serve the ways of a place while the block is open.

    Raises:
        AssertionError: if the service does not become ready.
    """
    made = {scope: new_key(scope, [scope], None) for scope in ("explain", "admin")}
    keys = {scope: secret for scope, (secret, _) in made.items()}
    keys["read"] = keys["explain"]
    grpc_port, probe_port, receive_seconds = free_port(), free_port(), 2.0 if scale >= 1 else 1.0
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "keys.toml")
        file.write_text("\n".join(entry for _, entry in made.values()))
        with staged(
            "calm",
            wait=False,
            host="127.0.0.1",
            keys=str(file),
            jobs=str(Path(folder, "jobs")),
            allowed_sources="timm:test_resnet",
            grpc_port=str(grpc_port),
            probe_port=str(probe_port),
            receive_seconds=str(receive_seconds),
            max_connections=str(CONNECTIONS),
            **ENVIRONMENT[place],
        ) as stage:
            await asyncio.to_thread(until_ready, stage, READY_SECONDS)
            options = [("grpc.max_send_message_length", -1), ("grpc.max_metadata_size", 1_000_000)]
            ports = (stage.port, probe_port)
            async with (
                probing.probing(*ports) as probes,
                grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}", options) as channel,
                Client(stage.port) as client,
            ):
                yield Scene(
                    *(stage, place, ports, grpc_port, keys, probes, channel, client),
                    *(scale, receive_seconds),
                )

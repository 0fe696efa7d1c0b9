"""The port for probes: what it answers, whatever becomes of the processes that serve."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from service.core.errors import ConfigError
from service.features.probes.server import MOST, Probes
from service.process.heartbeat import Readiness
from service.settings import Settings
from tests.service.live import free_port, serving, until_ready
from tests.service.process.test_supervisor import catalog, family
from tests.waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class House:
    """Probes of a service whose readiness the test sets."""

    readiness = Readiness(None, ("cat",))

    def __init__(self, port: int) -> None:
        self._port = port

    async def ask(self, head: str) -> tuple[int, dict[str, str], bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(f"{head} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        answered, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        start, *lines = answered.decode().split("\r\n")
        return int(start.split()[1]), dict(line.split(": ", 1) for line in lines), body


@asynccontextmanager
async def probed(metrics: Path | None = None) -> AsyncIterator[House]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        house = House(listening.getsockname()[1])
        async with Probes(listening, lambda: house.readiness, metrics):
            yield house


async def test_without_a_supervisor_nobody_would_answer_there() -> None:
    assert Settings(probe_port=9).other_ports() == ()
    with pytest.raises(ConfigError, match=r"9, needs a supervisor.*GRADCAM_PROBE_PORT=0"):
        Settings(probe_port=9, supervise=False).other_ports()


async def test_health_and_readiness_are_those_of_the_service() -> None:
    async with probed() as house:
        for path in ("/healthz", "/readyz", "/readyz?verbose=1"):
            status, headers, body = await house.ask(f"GET {path}")
            assert (status, json.loads(body)) == (200, {"status": "ok"})
            assert headers["content-length"] == str(len(body))
        assert (await house.ask("HEAD /readyz"))[::2] == (200, b"")
        house.readiness = Readiness("the engine is starting")
        assert (await house.ask("GET /healthz"))[0] == 200
        status, headers, body = await house.ask("GET /readyz")
        assert (status, headers["Retry-After"]) == (503, "1")
        assert json.loads(body)["detail"] == "the engine is starting"
        assert json.loads(body)["type"] == "urn:gradcam-service:unavailable"


@pytest.mark.parametrize(
    ("head", "status", "told"),
    [
        ("GET /v1/models", 404, "/healthz and /readyz only"),
        ("GET /metrics", 404, "/healthz and /readyz only"),
        ("POST /readyz", 405, "GET and HEAD only"),
        ("GET", 404, "/healthz"),
    ],
)
async def test_whatever_else_is_asked_is_a_problem(head: str, status: int, told: str) -> None:
    async with probed() as house:
        found, headers, body = await house.ask(head)
        assert (found, headers["content-type"]) == (status, "application/problem+json")
        assert told in json.loads(body)["detail"]


async def test_those_who_say_nothing_keep_out_nobody_but_each_other() -> None:
    async with probed() as house:
        silent = [await asyncio.open_connection("127.0.0.1", house._port) for _ in range(MOST)]
        assert (await house.ask("GET /healthz"))[0] == 503
        for _, writer in silent:
            writer.close()
        for _ in range(100):
            if (await house.ask("GET /healthz"))[0] == 200:
                break
        else:
            pytest.fail("connections that were closed are still counted as open")


@pytest.mark.slow
def test_the_supervisor_tells_whether_the_engine_is_there(tmp_path: Path) -> None:
    port = free_port()
    with (
        serving("--models", catalog(tmp_path, "tiny"), GRADCAM_PROBE_PORT=str(port)) as (
            process,
            http,
        ),
        httpx2.Client(base_url=f"http://127.0.0.1:{port}") as probes,
    ):
        until_ready(process, probes)
        assert http.get("/readyz").status_code == 200
        metrics = probes.get("/metrics").text
        assert 'gradcam_model_ready{model="m"} 1.0' in metrics
        assert "gradcam_connections" in metrics
        for number in (signal.SIGSTOP, signal.SIGKILL):
            engine = family(process)[-1]
            engine.send_signal(number)
            until_status(probes, 503)
            assert probes.get("/healthz").status_code == 200
            if number == signal.SIGSTOP:  # a frozen engine is not ready, and may come back
                engine.send_signal(signal.SIGCONT)
            until_ready(process, probes)


def until_status(probes: httpx2.Client, status: int, seconds: float = 15) -> None:
    until(lambda: probes.get("/readyz").status_code == status, seconds)

"""Whether a rolling update fails a request: two processes of the service behind nginx.

    python -m bench.rolling [--rolls 20]

A roll ends each process by SIGTERM and starts another one at its port, one after the other, while
clients send photos through nginx, which runs with deploy/nginx.conf. Every answer but 200 is a
failure.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2
import numpy as np
from PIL import Image

from bench.service import SERVE, ask_until_ready, free_port, started_at

NGINX = shutil.which("nginx", path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin")
CONFIGURATION = Path(__file__).parent.parent / "deploy" / "nginx.conf"
CLIENTS = 4
PAUSE_SECONDS = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rolls", type=int, default=20)
    rolls = parser.parse_args().rolls
    begun = time.monotonic()
    answers = asyncio.run(roll(rolls))
    print(
        f"{rolls} rolls in {time.monotonic() - begun:.0f} s: {answers.total()} requests, "
        f"{answers.total() - answers['200']} failures, {dict(answers)}"
    )


async def roll(times: int) -> Counter[str]:
    """Replace both processes so many times.

    Returns:
        Number of requests by status, or by the error in place of an answer.
    """
    answers: Counter[str] = Counter()
    with ExitStack() as scope:
        places = {free_port(): scope.enter_context(ExitStack()) for _ in range(2)}
        for port, place in places.items():
            place.enter_context(service(port))
        address = scope.enter_context(nginx([*places]))
        clients = [asyncio.create_task(ask(address, seed, answers)) for seed in range(CLIENTS)]
        for _ in range(times):
            for port, place in places.items():
                await asyncio.to_thread(place.close)
                await asyncio.to_thread(place.enter_context, service(port))
        for client in clients:
            client.cancel()
        await asyncio.wait(clients)
    return answers


@contextmanager
def service(port: int) -> Iterator[None]:
    """The embedded model, ready; at the end it has stopped cleanly. The limit by measured delay is
    off: it would refuse requests while another process starts on the same cores."""
    with started_at(port, [*SERVE, "--port"], GRADCAM_DELAY_TOLERANCE="0") as (_, process):
        yield
    if process.returncode:
        raise SystemExit(f"a process ended with exit code {process.returncode}")


@contextmanager
def nginx(
    ports: Sequence[int], configuration: Path = CONFIGURATION, below: str = ""
) -> Iterator[str]:
    """nginx before services at these ports instead of those that its configuration names; its
    address.

    Args:
        below: the path below which it publishes the service.
    """
    if NGINX is None:
        raise SystemExit("nginx is not installed")
    port = free_port()
    site = configuration.read_text(encoding="utf-8")
    for address, other in zip(("127.0.0.1:8000", "127.0.0.1:8010"), ports, strict=False):
        site = site.replace(address, f"127.0.0.1:{other}")
    site = site.replace("listen 8080", f"listen 127.0.0.1:{port}")
    with tempfile.TemporaryDirectory() as name:
        paths = "".join(
            f"{kind}_temp_path {name}/{kind};"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        file = Path(name) / "nginx.conf"
        file.write_text(
            f"daemon off; master_process off; pid {name}/pid; error_log stderr error; events {{}}\n"
            f"http {{ access_log off; {paths}\n{site} }}\n",
            encoding="utf-8",
        )
        process = subprocess.Popen(  # noqa: S603
            [NGINX, "-c", file, "-e", "stderr"], stderr=subprocess.DEVNULL
        )
        try:
            ask_until_ready(port, below=below)
            yield f"http://127.0.0.1:{port}{below}"
        finally:
            process.terminate()
            process.wait(10)


async def ask(address: str, seed: int, answers: Counter[str]) -> None:
    """Send photos, one after the other, and count the answers."""
    random = np.random.default_rng(seed)
    path = "/v1/models/efficientnet-lite0:explain"
    async with httpx2.AsyncClient(base_url=address, timeout=60) as client:
        while True:
            photo = io.BytesIO()
            Image.fromarray(random.integers(0, 256, (64, 64, 3), np.uint8)).save(photo, "PNG")
            try:
                answer = await client.post(
                    path, content=photo.getvalue(), headers={"Content-Type": "image/png"}
                )
                answers[str(answer.status_code)] += 1
            except httpx2.TransportError as error:
                answers[repr(error)] += 1
            await asyncio.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main()

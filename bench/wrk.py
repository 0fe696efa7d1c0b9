"""Photos sent by `wrk`, a client that takes little of the processor."""

from __future__ import annotations

import re
import shutil
import subprocess
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ACCEPT = {
    "jpeg": ("image/jpeg", ""),
    "png": ("image/png", ""),
    "mask": ("application/json", "?output=mask"),
}
"""Kind of answer → its `Accept` header, and the query of the request."""
WARM_SECONDS = 3
THREADS = 1
SCRIPT = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "image/jpeg"
wrk.headers["Accept"] = "{accept}"
local photos = {{}}
for turn = 1, {count} do
  local file = io.open("{folder}/" .. turn .. ".jpg", "rb")
  photos[turn] = file:read("*a")
  file:close()
end
local turn = 0
request = function()
  turn = turn % {count} + 1
  return wrk.format(nil, nil, nil, photos[turn])
end
"""


def require_wrk(parser: ArgumentParser) -> None:
    """End the command if `wrk` is not installed."""
    if not shutil.which("wrk"):
        parser.error("wrk is not installed: apt-get install wrk")


def write_photos(folder: Path, photos: Sequence[bytes]) -> None:
    """Write the JPEG files that are sent, all of a folder in turns."""
    for turn, photo in enumerate(photos, 1):
        Path(folder, f"{turn}.jpg").write_bytes(photo)


def send(
    folder: Path,
    kind: str,
    *,
    port: int,
    model: str,
    clients: int,
    seconds: float,
    spent: Callable[[], Sequence[float]],
) -> dict[str, Any]:
    """Send photos for some seconds, after a few that do not count.

    Args:
        folder: the folder of the photos.
        kind: a key of `ACCEPT`.
        spent: returns the CPU seconds that processes have taken.

    Returns:
        `per_second`, `p50_ms`, `p99_ms`, `failed`, and in `cpu_ms` the milliseconds of `spent` for
        each answer.
    """
    accept, query = ACCEPT[kind]
    script = folder / "script.lua"
    count = len(list(folder.glob("*.jpg")))
    script.write_text(SCRIPT.format(accept=accept, count=count, folder=folder))
    url = f"http://127.0.0.1:{port}/v1/models/{model}:explain{query}"
    command = ["wrk", "-t", str(THREADS), "-c", str(clients), "--latency", "-s", str(script)]
    warm = [*command, "-d", f"{WARM_SECONDS}s", url]
    subprocess.run(warm, check=True, capture_output=True)  # noqa: S603
    before = spent()
    done = subprocess.run(  # noqa: S603
        [*command, "-d", f"{seconds:g}s", url], check=True, capture_output=True, text=True
    )
    after, said = spent(), done.stdout
    answers = int(_found(r"(\d+) requests in", said))
    failed = re.search(r"Non-2xx or 3xx responses: (\d+)", said)
    return {
        "per_second": float(_found(r"Requests/sec:\s+([\d.]+)", said)),
        "p50_ms": _milliseconds(said, "50%"),
        "p99_ms": _milliseconds(said, "99%"),
        "cpu_ms": [
            (late - early) / max(answers, 1) * 1000
            for early, late in zip(before, after, strict=True)
        ],
        "failed": int(failed[1]) if failed else 0,
    }


def _found(pattern: str, said: str) -> str:
    found = re.search(pattern, said)
    assert found, said
    return found[1]


def _milliseconds(said: str, share: str) -> float:
    """Return a percentile of wrk's report."""
    found = re.search(rf"{share}\s+([\d.]+)(us|ms|s)\b", said)
    assert found, said
    return float(found[1]) * {"us": 0.001, "ms": 1.0, "s": 1000.0}[found[2]]

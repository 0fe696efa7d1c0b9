"""A batch on two nodes of a Ray cluster that loses a worker, and one that loses its driver.

    python -m tests.ray.losses FOLDER

runs in a network of its own (see `tests.ray.stage`) and says in JSON what came of it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq

from tests.service.conftest import encoded, noise
from tests.waiting import until

PHOTOS = 400
BAD = 7
WAIT_SECONDS = 240


def main(folder: Path) -> None:
    photos = folder / "photos"
    photos.mkdir()
    for number in range(PHOTOS):
        bad = number % (PHOTOS // BAD) == 3 and number // (PHOTOS // BAD) < BAD
        data = b"no photo" if bad else encoded(noise(40, 48, number))
        (photos / f"{number:04d}.png").write_bytes(data)
    with _cluster() as address:
        told = {
            "photos": PHOTOS,
            "bad": BAD,
            "worker": _lose_a_worker(photos, folder / "one", address),
            "driver": _lose_the_driver(photos, folder / "two", address),
        }
    print(json.dumps(told), flush=True)


@contextmanager
def _cluster() -> Iterator[str]:
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 3, "include_dashboard": False}
    )
    try:
        cluster.add_node(num_cpus=3)
        cluster.wait_for_nodes()
        yield cluster.address
    finally:
        cluster.shutdown()


def _lose_a_worker(photos: Path, output: Path, address: str) -> dict[str, Any]:
    driver = _started(photos, output, address)
    _until(lambda: _parts(output) >= 1, driver)
    killed = _workers()
    killed[-1].kill()
    said = driver.communicate(timeout=WAIT_SECONDS)[0]
    return {"explainers": len(killed), "code": driver.returncode, "said": said, **_found(output)}


def _lose_the_driver(photos: Path, output: Path, address: str) -> dict[str, Any]:
    driver = _started(photos, output, address)
    _until(lambda: _parts(output) >= 2, driver)
    driver.send_signal(signal.SIGKILL)
    driver.communicate()
    _until(lambda: not _workers())
    before = _found(output / "parts")
    written = {name: _when(output, name) for name in before["ids"]}
    again = _started(photos, output, address)
    said = again.communicate(timeout=WAIT_SECONDS)[0]
    anew = [name for name, when in written.items() if _when(output, name) != when]
    return {
        "before": len(before["ids"]),
        "anew": anew,
        "code": again.returncode,
        "said": said,
        **_found(output),
    }


def _started(photos: Path, output: Path, address: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "service", "batch", str(photos), "--output", str(output)]
    return subprocess.Popen(
        [*command, "--ray", address], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def _workers() -> list[psutil.Process]:
    """Actors that explain."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = " ".join(process.info["cmdline"] or [])
        if words.startswith("ray::") and "Explainers" in words:
            found.append(process)
    return found


def _parts(output: Path) -> int:
    return len(list((output / "parts").glob("*.parquet")))


def _found(folder: Path) -> dict[str, Any]:
    """The ids in a folder's tables: which, how often the commonest, and how many failed."""
    rows = [row for file in folder.glob("*.parquet") for row in pq.read_table(file).to_pylist()]
    count = Counter(row["id"] for row in rows)
    return {
        "ids": sorted(count),
        "most": max(count.values(), default=0),
        "failed": sum(row["error"] is not None for row in rows),
    }


def _when(output: Path, name: str) -> int | None:
    picture = output / "pictures" / f"{name}.jpg"
    return picture.stat().st_mtime_ns if picture.exists() else None


def _until(done: Any, driver: subprocess.Popen[str] | None = None) -> None:
    def is_done() -> bool:
        if done():
            return True
        if driver is not None and driver.poll() is not None:
            raise AssertionError(f"too early: {driver.communicate()[0]}")
        return False

    until(is_done, WAIT_SECONDS)


if __name__ == "__main__":
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    main(Path(sys.argv[1]))

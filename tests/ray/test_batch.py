"""`gradcam batch --ray` on a cluster of two nodes: a worker killed, the driver killed."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.ray.stage import LOOPBACK, alone, environment
from tests.service.live import ROOT

pytest.importorskip("ray", reason="Ray is an extra: pip install 'gradcam-service[ray]'")
pytestmark = pytest.mark.slow
SECONDS = 900


@pytest.fixture(scope="module")
def losses() -> dict[str, Any]:
    words = alone()
    if not words:
        pytest.skip("a cluster of two nodes needs a network of its own: unshare does not work here")
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        inside = [sys.executable, "-m", "tests.ray.losses", folder]
        done = subprocess.run(
            [*words, "bash", "-c", LOOPBACK + '"$@"', "-", *inside],
            cwd=ROOT,
            env=environment(Path(folder)),
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    (told,) = [line for line in done.stdout.splitlines() if line.startswith("{")] or [""]
    assert told, done.stdout[-4000:] + done.stderr[-4000:]
    found: dict[str, Any] = json.loads(told)
    return found


def test_a_killed_worker_costs_no_image_and_doubles_none(losses: dict[str, Any]) -> None:
    found = losses["worker"]
    assert found["explainers"] >= 1
    assert len(found["ids"]) == losses["photos"], found["said"]
    assert found["most"] == 1
    assert found["failed"] == losses["bad"]
    assert found["code"] == 1  # for there are bad ones


def test_after_the_driver_is_killed_what_is_finished_is_not_done_again(
    losses: dict[str, Any],
) -> None:
    found = losses["driver"]
    assert 0 < found["before"] < losses["photos"]
    assert found["anew"] == []
    assert len(found["ids"]) == losses["photos"], found["said"]
    assert found["most"] == 1
    assert found["failed"] == losses["bad"]
    assert "Traceback" not in found["said"]

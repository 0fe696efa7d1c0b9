"""What an actor of a batch on Ray makes of a block of photos."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.service.live import ROOT

pytest.importorskip("ray", reason="Ray is an extra: pip install 'gradcam-service[ray]'")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def actors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("actors")
    done = subprocess.run(
        [sys.executable, "-m", "tests.ray.actors", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=180,
    )
    (told,) = [line for line in done.stdout.splitlines() if line.startswith("{")] or [""]
    assert told, done.stdout[-4000:] + done.stderr[-4000:]
    found: dict[str, Any] = json.loads(told)
    return found


def test_each_row_says_what_the_table_asked_for(actors: dict[str, Any]) -> None:
    assert actors["targets"] == {
        "told": [{"images": 4, "failed": 2}],
        "failed": ["fake", "gray"],
        "otherwise": [],
    }


def test_a_model_that_stays_dead_ends_the_batch(actors: dict[str, Any]) -> None:
    assert actors["dead"] == {"raised": "Unavailable", "finished": ["black"]}

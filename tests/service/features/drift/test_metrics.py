"""Gauges that are cleared, where the metrics are in memory and where they are in files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from service.core.metrics import FOLDER

PROGRAM = """
from service.core.metrics import Metrics
from service.features.drift.metrics import DriftMetrics

metrics = Metrics()
drift = metrics.own(DriftMetrics)

def show():
    lines = metrics.render(["m"]).decode().splitlines()
    print(sorted(line for line in lines if line.startswith("gradcam_drift_")))

drift.tell("m", {("all", "border"): 0.5, ("cat", "border"): 1.5}, moved=1, unknown=0.25)
show()
drift.tell("m", {("all", "border"): 0.75}, moved=0, unknown=0)
show()
drift.tell("m", {}, moved=None, unknown=0.5)
show()
drift.clear("m")
show()
drift.tell("m", {("cat", "border"): 2.0}, moved=1, unknown=1)
show()
"""


@pytest.mark.slow
@pytest.mark.parametrize("in_files", [False, True])
def test_a_series_that_was_cleared_is_not_shown(tmp_path: Path, in_files: bool) -> None:
    """A process of its own, because prometheus_client looks for the folder once."""
    variables = {name: value for name, value in os.environ.items() if name != FOLDER}
    if in_files:
        variables[FOLDER] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    psi = 'gradcam_drift_psi{{label="{}",model="m",statistic="border"}} {}'
    expected = [
        [
            'gradcam_drift_moved{model="m"} 1.0',
            psi.format("all", 0.5),
            psi.format("cat", 1.5),
            'gradcam_drift_unknown_ratio{model="m"} 0.25',
        ],
        [
            'gradcam_drift_moved{model="m"} 0.0',
            psi.format("all", 0.75),
            'gradcam_drift_unknown_ratio{model="m"} 0.0',
        ],
        ['gradcam_drift_unknown_ratio{model="m"} 0.5'],
        [],
        [
            'gradcam_drift_moved{model="m"} 1.0',
            psi.format("cat", 2.0),
            'gradcam_drift_unknown_ratio{model="m"} 1.0',
        ],
    ]
    assert done.stdout.splitlines() == [str(each) for each in expected]
    assert bool(list(tmp_path.glob("gauge_*.db"))) == in_files

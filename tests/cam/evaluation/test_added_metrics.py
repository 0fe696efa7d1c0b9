"""Metrics that other packages add."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packages import ROOT, install, paste

pytestmark = pytest.mark.slow
ADDED = '''
from cam.evaluation.metrics import Metric

def heat(scorer, judged):
    """The mean of the map, after a pass that shows that it can be made."""
    (likely,) = yield from scorer.probabilities(1, lambda some: scorer.image[None])
    assert abs(likely - scorer.whole) < 1e-6
    mean = float(judged.values.mean())
    return (mean if mean else None), {"half": mean / 2}

MINE = Metric(
    "mine",
    "How much heat there is.",
    "higher",
    lambda options: "mean of the map",
    heat,
    forwards=lambda options, pixels: {"mine": 1},
    faithfulness=True,
    without="there is no heat",
)
TWIN = MINE
NONE = "mine"
'''
SAID = """
import json, warnings
import numpy as np
from tests.zoo.convolutional import small
from tests.zoo.parts import images
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    from cam import METRICS, evaluate
from service.features.audit.recommendation import FAITHFULNESS
from service.pipeline.parameters import Parameters
model, (image,) = small(), images(1)
map_ = np.arange(16, dtype=np.float32).reshape(4, 4)
mine = evaluate(model, image, map_, metrics=["mine"])["mine"]
extent = evaluate(model, image, np.arange(64.0).reshape(8, 8), metrics=["extent"])["extent"]
none = evaluate(model, image, 0 * map_, metrics=["mine"])["mine"]
print(json.dumps({
    "names": list(METRICS), "compared": FAITHFULNESS[-1:], "less": "extent" in FAITHFULNESS,
    "told": [str(each.message) for each in told if "left out" in str(each.message)],
    "value": mine.value, "details": dict(mine.details), "baselines": list(mine.baselines),
    "chance": len(mine.chance), "without": [none.value, none.warning],
    "extent": [extent.value, dict(extent.details), METRICS["extent"].better],
    "asked": Parameters(evaluate=["mine"]).evaluate,
}))
"""


def test_a_metric_of_a_package_is_scored_and_can_be_asked_for(tmp_path: Path) -> None:
    (tmp_path / "added.py").write_text(ADDED)
    paste(tmp_path, "evaluation.md", "### A metric of your own")
    points = {name: f"added:{name}" for name in ("MINE", "NONE", "TWIN")}
    install(tmp_path, "gradcam.metrics", {**points, "extent": "my_metrics:EXTENT"})
    done = subprocess.run(
        [sys.executable, "-c", SAID],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["names"][-2:] == ["mine", "extent"]
    assert said["extent"] == [0.5, {"maximum": 63}, "lower"]
    assert said["told"] == [
        "the metric added:NONE is left out: it is a str, not a cam.evaluation.metrics.Metric",
        "the metric added:TWIN is left out: the name 'mine' is taken",
    ]
    assert said["value"] > 0
    assert said["details"] == {"half": said["value"] / 2}
    assert said["baselines"] == ["random", "gaussian", "edges", "uniform"]
    assert said["chance"] == 59
    assert said["without"] == [None, "there is no heat"]
    assert said["asked"] == ["mine"]
    assert said["compared"] == ["mine"]
    assert not said["less"]

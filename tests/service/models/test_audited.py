"""The results of an audit that a model's entry names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cam.evaluation.metrics import METRICS, MetricOptions
from service.models.audited import Audited, read_audited

GOOD: dict[str, Any] = {
    "version": 1,
    "fingerprint": "abc",
    "recommendation": {"method": "layercam", "layer": "blocks.6"},
    "made_with": {"fit": "crop"},
    "metrics": {"deletion": METRICS["deletion"].convention(MetricOptions()), "insertion": "other"},
    "quantiles": {"deletion": [0.1, 0.2, 0.3, 0.4], "insertion": [0.0, 1.0]},
}


def written(folder: Path, document: object) -> Path:
    file = folder / "audit.json"
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    return file


def test_an_audit_names_the_method_and_the_layer(tmp_path: Path) -> None:
    found = read_audited(written(tmp_path, GOOD), "abc")
    assert (found.method, found.layer) == ("layercam", "blocks.6")
    other = read_audited(written(tmp_path, {**GOOD, "made": "later"}), "abc")
    assert other.digest != found.digest


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ("{", "is not JSON"),
        ("[]", "is not the audit.json of an audit"),
        ({}, "is not the audit.json of an audit"),
        ({**GOOD, "version": 2}, "has version 2, not 1"),
        ({**GOOD, "quantiles": 7}, "is not the audit.json of an audit"),
        ({**GOOD, "fingerprint": "other"}, "is the audit of other weights or settings"),
        ({**GOOD, "recommendation": None}, "recommends no method; leave the key out"),
        (
            {**GOOD, "recommendation": None, "why_none": "12 photos were measured"},
            "recommends no method: 12 photos were measured; leave the key out",
        ),
        (
            {name: each for name, each in GOOD.items() if name != "recommendation"},
            "recommends no method",
        ),
        ("9" * 5000, "audit.json is not JSON"),
        ("[" * 100_000, "is nested too deeply"),
        ({**GOOD, "quantiles": {"deletion": ["many"]}}, "audit.json is not the audit.json of"),
        ({**GOOD, "quantiles": {"deletion": [10**400]}}, "audit.json is not the audit.json of"),
        ({**GOOD, "made_with": []}, "is not the audit.json of an audit"),
        ({**GOOD, "recommendation": {"method": "x", "layer": ""}}, "recommends 'x'"),
        ({**GOOD, "recommendation": {"method": "tam", "layer": "input"}}, "recommends 'tam'"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, document: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_audited(written(tmp_path, document), "abc")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read: No such file or directory"):
        read_audited(tmp_path / "none.json", "abc")


@pytest.mark.parametrize(
    ("value", "percentile"),
    # Of the values 0.1, 0.2, 0.3 and 0.4, lower ones are better. 0.25 beats two of four; 0.2 beats
    # two and is equal to one, half of which counts.
    [(0.25, 50), (0.05, 100), (0.5, 0), (0.2, 62)],
)
def test_a_percentile_by_hand(tmp_path: Path, value: float, percentile: int) -> None:
    found = read_audited(written(tmp_path, GOOD), "abc")
    convention = METRICS["deletion"].convention(MetricOptions())
    assert found.percentile("deletion", value, convention, "crop") == percentile


def test_higher_is_better_where_the_metric_says_so() -> None:
    found = Audited(
        "gradcam", "l", "", {"insertion": "c"}, {"insertion": (0.1, 0.2, 0.3, 0.4)}, "pad"
    )
    assert found.percentile("insertion", 0.35, "c", "pad") == 75


def test_another_convention_has_no_percentile(tmp_path: Path) -> None:
    found = read_audited(written(tmp_path, GOOD), "abc")
    other = METRICS["deletion"].convention(MetricOptions(steps=10))
    assert found.percentile("deletion", 0.2, other, "crop") is None
    assert found.percentile("road", 0.2, "any", "crop") is None


def test_photos_that_are_fitted_otherwise_have_no_percentile(tmp_path: Path) -> None:
    convention = METRICS["deletion"].convention(MetricOptions())
    found = read_audited(written(tmp_path, GOOD), "abc")
    assert found.percentile("deletion", 0.2, convention, "pad") is None
    unsaid = {name: each for name, each in GOOD.items() if name != "made_with"}
    found = read_audited(written(tmp_path, unsaid), "abc")
    assert found.percentile("deletion", 0.2, convention, "crop") is None

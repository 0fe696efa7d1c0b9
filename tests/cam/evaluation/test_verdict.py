"""What is said of a score, word for word."""

from __future__ import annotations

import pytest

from cam.evaluation.metrics import Score
from cam.evaluation.verdict import verdict


@pytest.mark.parametrize(
    ("metric", "value", "baselines", "expected"),
    [
        (
            "insertion",
            0.5,
            {"random": 0.4, "gaussian": 0.45, "edges": 0.3, "uniform": 0.2},
            "better than chance, a uniform map, a centred Gaussian and an edge detector",
        ),
        (
            "insertion",
            0.5,
            {"random": 0.4, "gaussian": 0.6, "edges": 0.7, "uniform": 0.2},
            (
                "better than chance and a uniform map; "
                "no better than a centred Gaussian or an edge detector"
            ),
        ),
        # Of deletion less is more.
        (
            "deletion",
            0.5,
            {"random": 0.4, "gaussian": 0.6, "edges": 0.7, "uniform": 0.2},
            (
                "better than a centred Gaussian and an edge detector; "
                "no better than chance or a uniform map"
            ),
        ),
        (
            "road",
            -0.1,
            {"random": 0.0, "gaussian": 0.1, "edges": 0.2, "uniform": 0.0},
            "no better than chance, a uniform map, a centred Gaussian or an edge detector",
        ),
        ("stability", 0.9, {"random": 0.1}, "better than chance"),
        ("stability", 0.9, {"edges": 0.95}, "no better than an edge detector"),
        # Equal is no better, either way, and so is what rounding makes.
        ("insertion", 0.5, {"random": 0.5}, "no better than chance"),
        ("deletion", 0.5, {"random": 0.5}, "no better than chance"),
        ("insertion", 0.5, {"random": 0.5 - 1e-10}, "no better than chance"),
        ("deletion", 0.5, {"random": 0.5 + 1e-10}, "no better than chance"),
        ("insertion", 0.5, {"random": 0.5 - 1e-8}, "better than chance"),
        # A baseline without a value is not spoken of.
        ("stability", 0.9, {"random": None, "edges": 0.2}, "better than an edge detector"),
        ("stability", 0.9, {"random": None, "edges": None}, None),
        ("insertion", 0.5, {}, None),
        ("insertion", None, {"random": 0.5}, None),
    ],
)
def test_the_words(
    metric: str, value: float | None, baselines: dict[str, float | None], expected: str | None
) -> None:
    assert verdict(metric, Score(value, baselines)) == expected


def test_the_order_of_the_baselines_does_not_depend_on_the_scores() -> None:
    forward = {"random": 0.1, "gaussian": 0.2, "edges": 0.3, "uniform": 0.4}
    backward = dict(reversed(forward.items()))
    said = "better than chance, a uniform map, a centred Gaussian and an edge detector"
    assert verdict("insertion", Score(0.5, forward)) == said
    assert verdict("insertion", Score(0.5, backward)) == said

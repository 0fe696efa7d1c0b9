"""What a score says, in words."""

from __future__ import annotations

from typing import Final

from cam.evaluation.metrics import METRICS, Score

NAMED: Final = {
    "random": "chance",
    "uniform": "a uniform map",
    "gaussian": "a centred Gaussian",
    "edges": "an edge detector",
}
"""Name of a baseline → its name in a sentence."""
COMPARED: Final = ("random", "gaussian", "edges")
"""Baselines that a verdict compares with. The uniform map is none of them: its pixels go one by one
in random order, so its score tells how fast that destroys the image, and a map of regions, however
right, cannot do the same."""


def verdict(metric: str, score: Score) -> str | None:
    """Return how a score compares with those of the baselines, as half a sentence; None if there is
    no value or no baseline.

    Values that do not differ are no better.
    """
    known = {name: value for name, value in score.baselines.items() if value is not None}
    if score.value is None or not known:
        return None
    sign = 1 if METRICS[metric].better == "higher" else -1
    above = [named for name, named in NAMED.items() if name in known and _beats(score, name, sign)]
    below = [named for name, named in NAMED.items() if name in known and named not in above]
    words = []
    if above:
        words.append(f"better than {_listed(above, 'and')}")
    if below:
        words.append(f"no better than {_listed(below, 'or')}")
    return "; ".join(words)


def _beats(score: Score, name: str, sign: int) -> bool:
    other = score.baselines[name]
    assert score.value is not None
    assert other is not None
    return sign * (score.value - other) > 1e-9


def _listed(names: list[str], last: str) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {last} {names[-1]}"

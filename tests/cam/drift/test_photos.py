"""Real photos and the embedded model: nothing is found in ordinary photos, and a logo and a covered
centre are. `python -m bench.drift` is the whole of it."""

from __future__ import annotations

import pytest

from bench.drift import watched
from bench.drift_photos import CHANGES, explained, load_model

RUNS = 3


@pytest.mark.slow
def test_changes_are_found_and_nothing_else() -> None:
    served = load_model()
    pools = {"ordinary": explained(served, 1100, seed=0)}
    assert watched(pools, "ordinary", RUNS, size=500)["found"] == 0
    for name, change in CHANGES.items():
        row = watched({**pools, name: explained(served, 500, change, seed=2)}, name, RUNS, size=500)
        assert row["found"] == RUNS, name
        assert 0 < row["worst"] <= 500

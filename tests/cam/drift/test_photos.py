"""Real photos and the embedded model: nothing is found in ordinary photos, and a logo and a covered
centre are. `python -m bench.drift` is the whole of it."""

from __future__ import annotations

import pytest

from bench.drift import watched
from bench.drift_photos import CHANGES, explained, load_model

RUNS = 3
FOUND = ("logo in a corner", "dirt on the lens")
"""Of the changes that `docs/drift.md` says are found: one that the maps show, and one that only the
photos do."""


@pytest.mark.slow
def test_changes_are_found_and_nothing_else() -> None:
    served = load_model()
    pools = {"ordinary": explained(served, 1100, seed=0)}
    assert watched(pools, "ordinary", RUNS, size=500)["found"] == 0
    for name in FOUND:
        changed = explained(served, 500, CHANGES[name], seed=2)
        row = watched({**pools, name: changed}, name, RUNS, size=500)
        assert row["found"] == RUNS, name
        assert 0 < row["worst"] <= 500

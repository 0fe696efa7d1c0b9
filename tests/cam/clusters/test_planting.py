"""A planted watermark is found in maps of classifiers that use it, and nothing in clean photos'."""

from __future__ import annotations

import pytest

from cam.clusters import find_clusters
from tests.cam.clusters.scenes import WATERMARKS, maps_of, photos_of, thumbnails_of, trained
from tests.cam.clusters.synthetic import blobs

MARKED, COUNT = 10, 1000


@pytest.mark.slow
def test_one_percent_of_the_photos_carry_a_watermark() -> None:
    """Pooled over two corners and sizes: recall ≥ 0.95 and precision ≥ 0.9 in one suspect cluster.
    `python -m bench.clusters` has more."""
    right = found = 0
    for seed in (0, 3):
        watermark = WATERMARKS[seed]
        model = trained(seed, watermark)
        photos = photos_of(0, COUNT, 7000 + seed, MARKED, watermark)
        clusters = find_clusters(maps_of(model, photos), thumbnails_of(photos)).clusters
        (suspect,) = (each for each in clusters if each.suspect)
        assert "same thing" in suspect.reasons
        right += int((suspect.members < MARKED).sum())
        found += len(suspect.members)
        clean = photos_of(1, COUNT, 8000 + seed)
        for given in (None, thumbnails_of(clean)):
            clusters = find_clusters(maps_of(model, clean, 1), given).clusters
            assert not any(each.suspect for each in clusters)
    assert right / (2 * MARKED) >= 0.95
    assert right / found >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize(("grid", "most"), [(14, 3), (7, 1)])
def test_objects_at_random_places_are_no_suspects(grid: int, most: int) -> None:
    for seed in range(3):
        found = find_clusters(blobs(COUNT, seed, grid, most))
        assert not any(each.suspect for each in found.clusters)

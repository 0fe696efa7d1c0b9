"""The pictures that stand for photos."""

from __future__ import annotations

import numpy as np

from cam.drawing.samples import samples


def test_they_are_seeded_and_all_different() -> None:
    found = samples(3, 48, 64)
    assert found.shape == (3, 48, 64, 3)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, samples(3, 48, 64))
    assert not np.array_equal(found, samples(3, 48, 64, seed=1))
    assert len({each.tobytes() for each in found}) == 3
    assert samples(1, 1, 1).shape == (1, 1, 1, 3)


def test_neighbours_are_alike_as_in_photos() -> None:
    """Of white noise they are not, and of both the range of brightness is wide."""
    for picture in samples(4, 64, 64).astype(float).mean(axis=3):
        alike = np.corrcoef(picture[:, 1:].ravel(), picture[:, :-1].ravel())[0, 1]
        assert alike > 0.7
        assert picture.std() > 10

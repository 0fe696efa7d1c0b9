"""Where maps are placed in two dimensions."""

from __future__ import annotations

import numpy as np
import pytest

from cam.clusters import embedding
from cam.clusters.embedding import embed
from cam.drawing.placement import Float


def two_groups(count: int) -> Float:
    points = np.random.default_rng(0).uniform(0, 0.1, (count, 4)).astype(np.float32)
    points[::2, 0] += 1
    return points


def test_neighbours_are_placed_near_each_other() -> None:
    points = two_groups(60)
    found = embed(points, seed=0)
    assert found.dtype == np.float32
    near, far = (np.median(found[start::2], axis=0) for start in (0, 1))
    apart = float(np.linalg.norm(near - far))
    for start, centre in ((0, near), (1, far)):
        assert np.linalg.norm(found[start::2] - centre, axis=1).max() < apart / 2
    assert found.tobytes() == embed(points, seed=0).tobytes()


def test_beyond_the_most_points_are_placed_among_their_nearest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(embedding, "MOST", 40)
    points = two_groups(60)
    placed: list[Float] = []
    tsne = embedding._tsne

    def kept(some: Float, seed: int) -> Float:
        placed.append(some)
        return tsne(some, seed)

    monkeypatch.setattr(embedding, "_tsne", kept)
    first = np.array([3, 5, 59])
    found = embed(points, seed=0, first=first)
    (some,) = placed
    assert len(some) == 40
    rows = {row.tobytes() for row in some}
    assert all(points[each].tobytes() in rows for each in first)
    other = next(each for each in range(60) if points[each].tobytes() not in rows)
    nearest = np.argsort(np.abs(some - points[other]).sum(1), kind="stable")[:3]
    positions = [
        found[next(each for each in range(60) if points[each].tobytes() == some[near].tobytes())]
        for near in nearest
    ]
    np.testing.assert_allclose(found[other], np.mean(positions, axis=0), rtol=1e-5)


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_too_few_points(count: int) -> None:
    assert embed(two_groups(4)[:count], 0).tolist() == [[0, 0]] * count


def test_equal_points_and_few() -> None:
    assert embed(np.ones((9, 4), np.float32), 0).tolist() == [[0, 0]] * 9
    assert np.isfinite(embed(two_groups(4), 0)).all()
    line = np.linspace(0, 1, 9, dtype=np.float32)[:, None]
    assert np.isfinite(embed(line, 0)).all()  # one principal component alone

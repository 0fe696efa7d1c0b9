"""Fisher's discriminant, by hand and on random numbers."""

from __future__ import annotations

import numpy as np
import pytest

from cam.clusters.discriminant import separability, separation


def test_one_dimension_by_hand() -> None:
    """On one axis, the discriminant only moves and scales. Both groups have the values ±1 around
    their means, 0 and 4, so that the standard deviation is 1 in each half."""
    members = np.array([[3], [3], [5], [5]] * 2, np.float32)
    others = np.array([[-1], [-1], [1], [1]] * 2, np.float32)
    assert separation(members, others) == pytest.approx(4)
    assert separation(others, members) == pytest.approx(4)
    assert separability(members, others) == 1


def test_equal_groups_are_not_told_apart() -> None:
    same = np.ones((8, 3), np.float32)
    assert separation(same, same) == 0
    assert separability(same, same) == 0.5


def test_rows_that_were_not_seen_are_judged() -> None:
    """Forty dimensions of noise tell any 12 rows from any others that were seen."""
    random = np.random.default_rng(0)
    members, others = (random.normal(size=(12, 40)).astype(np.float32) for _ in range(2))
    assert abs(separation(members, others)) < 2
    assert 0.1 < separability(members, others) < 0.9
    members[:, 7] += 12
    assert separation(members, others) > 4


@pytest.mark.parametrize("few", [0, 1, 5])
def test_too_few_rows_say_nothing(few: int) -> None:
    many = np.random.default_rng(0).random((20, 2)).astype(np.float32)
    assert separability(many[:few] + 9, many) == 0.5
    assert separation(many, many[:few] + 9) == 0

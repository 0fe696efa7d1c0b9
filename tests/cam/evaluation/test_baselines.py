"""Maps that know nothing of the model: by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cam.evaluation.baselines import baseline
from cam.evaluation.metrics import BASELINES, Baseline
from cam.explanation import Map
from tests.cam.evaluation.nets import drawn

IMAGE = drawn(3, 6, 9).astype(np.float32)


def made(name: Baseline, image: Map = IMAGE, shape: tuple[int, int] = (3, 4), seed: int = 0) -> Map:
    return baseline(name, image, shape, np.random.default_rng(seed))


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((3, 4), (3, 4)), ((14, 14), (14, 14)), ((15, 3), (14, 3)), ((224, 224), (14, 14))],
)
def test_a_random_map_is_as_coarse_as_a_layer(
    shape: tuple[int, int], expected: tuple[int, int]
) -> None:
    found = made("random", shape=shape)
    assert found.shape == expected
    assert found.dtype == np.float32
    assert found.min() >= 0
    assert found.max() < 1
    np.testing.assert_array_equal(found, made("random", shape=shape))
    assert not np.array_equal(found, made("random", shape=shape, seed=1))


def test_a_uniform_map_is_the_same_everywhere() -> None:
    np.testing.assert_array_equal(made("uniform"), np.ones((6, 9)))


def test_the_gaussian_by_hand() -> None:
    """σ is a quarter of the height and of the width: 1.5 rows and 2.25 columns."""
    found = made("gaussian")
    for row in range(6):
        for column in range(9):
            away = ((row - 2.5) / 1.5) ** 2 + ((column - 4) / 2.25) ** 2
            assert found[row, column] == pytest.approx(math.exp(-away / 2), rel=1e-5)


def test_edges_are_sobels_of_the_mean_of_the_channels() -> None:
    found = made("edges")
    grey = np.pad(IMAGE.astype(np.float64).mean(0), 1, mode="reflect")
    along = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]])
    for row in range(6):
        for column in range(9):
            part = grey[row : row + 3, column : column + 3]
            expected = math.hypot((along * part).sum(), (along.T * part).sum())
            assert found[row, column] == pytest.approx(expected, abs=1e-5)


def test_an_image_of_one_colour_has_no_edges() -> None:
    assert not made("edges", np.full((3, 6, 9), 0.3, np.float32)).any()


@pytest.mark.parametrize("name", BASELINES)
def test_every_baseline_is_finite_and_none_is_negative(name: Baseline) -> None:
    found = made(name)
    assert found.dtype == np.float32
    assert np.isfinite(found).all()
    assert found.min() >= 0


@pytest.mark.parametrize("name", ["gaussian", "uniform"])
def test_only_random_and_edges_change_with_the_image_or_the_seed(name: Baseline) -> None:
    other = drawn(3, 6, 9, seed=5).astype(np.float32)
    np.testing.assert_array_equal(made(name), made(name, other, seed=3))
    assert not np.array_equal(made("edges"), made("edges", other))

"""Token activation maps: hand-worked, and against a plain re-statement of the paper's formulas."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from cam.answers.token_maps import activation, rank_gaussian, without_interference


def test_activation_is_the_logit_of_the_word_at_each_image_token() -> None:
    image = np.array([[1, 2], [0, -3], [2, 1]], np.float32)
    np.testing.assert_allclose(activation(image, np.array([1, 1], np.float32)), [3, 0, 3])


def test_interference_is_fitted_and_taken_away_by_hand() -> None:
    own = np.array([4, 2, 0], np.float32)
    earlier = [np.array([2, 0, 0], np.float32), np.array([0, 0, 2], np.float32)]
    # r = (3, 1) / 4, so I = (1.5, 0, 0.5) and s = ⟨A, I⟩ / ⟨I, I⟩ = 6 / 2.5 = 2.4.
    rest = without_interference(own, earlier, [3.0, 1.0])
    np.testing.assert_allclose(rest, [4 - 3.6, 2, 0], rtol=1e-6)


def test_the_scale_of_the_interference_is_the_least_squares_one() -> None:
    rng = np.random.default_rng(0)
    own, first, second = rng.uniform(0, 1, (3, 50)).astype(np.float32)
    mixed = 0.3 * first + 0.7 * second
    best = minimize_scalar(lambda scale: float(((own - scale * mixed) ** 2).sum())).x
    rest = without_interference(own, [first, second], [0.3, 0.7])
    np.testing.assert_allclose(rest, np.maximum(own - best * mixed, 0), atol=1e-5)


@pytest.mark.parametrize(
    ("earlier", "weights"),
    [([], []), ([np.ones(2, np.float32)], [0.0]), ([np.zeros(2, np.float32)], [1.0])],
)
def test_without_earlier_words_nothing_is_taken_away(
    earlier: list[NDArray[np.float32]], weights: list[float]
) -> None:
    own = np.array([1, 2], np.float32)
    np.testing.assert_array_equal(without_interference(own, earlier, weights), own)


def stated(values: NDArray[np.float32]) -> NDArray[np.float64]:
    """The filter window by window, as the paper's text says it."""
    padded = np.pad(values.astype(np.float64), 1, mode="reflect")
    smooth = np.zeros(values.shape)
    for row in range(values.shape[0]):
        for column in range(values.shape[1]):
            window = np.sort(padded[row : row + 3, column : column + 3], axis=None)
            mean = window.mean()
            if mean <= 0:
                continue
            width = window.std() / mean
            weights = [np.exp(-((rank - 4) ** 2) / (2 * width**2)) for rank in range(9)]
            smooth[row, column] = np.dot(weights, window) / np.sum(weights)
    return smooth


def test_the_rank_gaussian_filter_is_the_papers() -> None:
    rng = np.random.default_rng(0)
    values = np.maximum(rng.normal(0.3, 1, (7, 9)), 0).astype(np.float32)
    np.testing.assert_allclose(rank_gaussian(values), stated(values), rtol=1e-5, atol=1e-6)


def test_a_lone_peak_is_noise_and_an_even_map_stays() -> None:
    lone = np.zeros((5, 5), np.float32)
    lone[2, 2] = 1
    # One of nine values: mean 1/9, deviation √8/9, so σ = √8 ranks, and the highest rank weighs
    # exp(−4² / 16) of the median's.
    kernel = np.exp(-(np.arange(-4, 5) ** 2) / 16)
    assert rank_gaussian(lone)[2, 2] == pytest.approx(kernel[-1] / kernel.sum(), rel=1e-5)
    even = np.full((3, 4), 0.7, np.float32)
    np.testing.assert_allclose(rank_gaussian(even), even, rtol=1e-6)


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (5, 1)])
def test_a_thin_map_has_a_filter_too(shape: tuple[int, int]) -> None:
    assert rank_gaussian(np.ones(shape, np.float32)).shape == shape

"""How alike two maps are: by hand, and beside scikit-image and SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr
from skimage.feature import hog as skimage_hog
from skimage.metrics import structural_similarity

from cam.drawing.placement import Float
from cam.evaluation.similarity import SIDE, hog, similarity, ssim


def maps(seed: int, height: int = SIDE, width: int = SIDE) -> tuple[Float, Float]:
    rng = np.random.default_rng(seed)
    return rng.random((height, width), np.float32), rng.random((height, width), np.float32)


@pytest.mark.parametrize("seed", range(3))
def test_the_structural_similarity_is_that_of_scikit_image(seed: int) -> None:
    one, other = maps(seed, 40, 33)
    theirs = structural_similarity(
        one,
        other,
        gaussian_weights=True,
        sigma=1.5,
        use_sample_covariance=False,
        data_range=1,
    )
    assert ssim(one, other) == pytest.approx(theirs, abs=1e-6)
    assert ssim(one, one) == pytest.approx(1)


@pytest.mark.parametrize("size", [(64, 64), (50, 41)])
def test_the_histograms_are_those_of_scikit_image(size: tuple[int, int]) -> None:
    one, _ = maps(3, *size)
    theirs = skimage_hog(
        one, orientations=9, pixels_per_cell=(8, 8), cells_per_block=(3, 3), block_norm="L2-Hys"
    )
    assert hog(one) == pytest.approx(theirs, abs=1e-6)


def test_a_map_is_like_itself_and_as_unlike_as_can_be_to_its_negative() -> None:
    one, _ = maps(4, 7, 7)
    signed = one - 0.5
    same = similarity(signed, signed)
    assert (same.spearman, same.absolute, same.ssim, same.hog) == pytest.approx((1, 1, 1, 1))
    negative = similarity(signed, -signed)
    assert negative.spearman == pytest.approx(-1)
    assert negative.absolute == pytest.approx(1)


def test_ranks_by_hand() -> None:
    # The ranks are 1 2 3 4 and 2 1 4 3: the squared differences add up to 4, so the correlation is
    # 1 − 6 · 4 / (4 · 15) = 0.6. Without the sign −4 is the greatest: ranks 4 1 2 3 and 2 1 4 3,
    # squared differences 4 + 0 + 4 + 0 = 8, so 1 − 48 / 60 = 0.2.
    first = np.array([[-4, 1], [2, 3]], np.float32)
    second = np.array([[2, 1], [4, 3]], np.float32)
    found = similarity(first, second)
    assert found.spearman == pytest.approx(0.6)
    assert found.absolute == pytest.approx(0.2)
    assert found.spearman == pytest.approx(spearmanr(first.ravel(), second.ravel()).statistic)


@pytest.mark.parametrize("flat", [np.zeros((3, 3)), np.full((3, 3), 2.0)])
def test_a_map_that_is_the_same_everywhere_is_like_nothing(flat: Float) -> None:
    one, _ = maps(5, 3, 3)
    found = similarity(one, flat.astype(np.float32))
    assert (found.spearman, found.absolute, found.ssim, found.hog) == (None,) * 4


def test_evidence_against_the_target_has_no_structure() -> None:
    """The structural similarity and the gradients are of what a viewer sees: the heat above 0."""
    one, _ = maps(6, 7, 7)
    below = one.copy()
    below[one < 0.5] = -3
    above = np.where(one < 0.5, 0, one).astype(np.float32)
    assert similarity(below, above).ssim == pytest.approx(1)
    assert similarity(below, above).hog == pytest.approx(1)

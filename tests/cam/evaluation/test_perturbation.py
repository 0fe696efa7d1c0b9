"""Sensitivity and infidelity, from what the model has seen."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from cam import evaluate
from cam.errors import MethodUnsuited
from cam.evaluation.metrics import Score
from cam.evaluation.perturbation import infidelity_of, squares
from tests.cam.evaluation.asked import SIGMOID, alone, explained
from tests.zoo.by_hand import Numbers, Weighed, drawn, picture, tensor, weighed

MODEL, IMAGE = weighed(2, 8, 8), picture(2, 8, 8)


def sensitivity(
    model: Weighed = MODEL, image: Numbers = IMAGE, **options: object
) -> tuple[Score, Numbers]:
    """Return the score and the noisy images."""
    found = explained(model, image)
    scores = evaluate(
        model,
        tensor(image),
        found,
        metrics=["sensitivity"],
        options=alone(**options),
        reading=SIGMOID,
    )
    return scores["sensitivity"], model.seen[1:]


@pytest.mark.parametrize("relative", [True, False])
def test_the_greatest_change_of_the_map(relative: bool) -> None:
    found, seen = sensitivity(radius=0.3, scale_free=relative)
    heat = MODEL.heat(IMAGE)
    changes = [np.sqrt(((MODEL.heat(each) - heat) ** 2).sum()) for each in seen]
    scale = np.sqrt((heat**2).sum()) if relative else 1.0
    assert scale != pytest.approx(1, abs=0.1) or not relative
    assert len(changes) == 10
    assert found.value == pytest.approx(max(changes) / scale, rel=1e-4)
    np.testing.assert_allclose(
        np.array(found.details["changes"]), np.array(changes) / scale, rtol=1e-4
    )


def test_the_noise_is_uniform_within_the_radius() -> None:
    _, seen = sensitivity(samples=50, radius=0.05)
    noise = seen - IMAGE
    assert noise.shape == (50, 2, 8, 8)
    assert np.abs(noise).max() <= 0.05 + 1e-6
    assert np.abs(noise).max() > 0.0499
    assert noise.mean() == pytest.approx(0, abs=0.002)
    assert noise.std() == pytest.approx(0.05 / np.sqrt(3), rel=0.02)
    assert len(np.unique(noise[:, 0, 0, 0])) == 50  # each image has its own


def test_the_default_noise_is_too_small_to_see() -> None:
    _, seen = sensitivity()
    assert 0.0195 < np.abs(seen - IMAGE).max() <= 0.02 + 1e-6


def test_a_map_that_is_a_multiple_is_as_sensitive_in_relation_to_its_norm() -> None:
    ten = Weighed(10 * drawn(2, 8, 8)).eval()
    assert sensitivity(ten)[0].value == pytest.approx(sensitivity()[0].value, rel=1e-4)
    absolute = sensitivity(scale_free=False)[0].value
    assert absolute is not None
    assert sensitivity(ten, scale_free=False)[0].value == pytest.approx(10 * absolute, rel=1e-4)


def test_a_map_of_zeros_has_no_relative_sensitivity() -> None:
    against = Weighed(-np.ones((1, 4, 4))).eval()
    image = picture(1, 4, 4)
    found, _ = sensitivity(against, image)
    assert found.value is None
    assert found.warning
    found, _ = sensitivity(against, image, scale_free=False)
    assert found.value == 0


def test_the_seed_fixes_the_noise() -> None:
    first, again, other = (sensitivity(seed=seed)[0] for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_a_map_alone_has_no_sensitivity() -> None:
    heat = np.ones((8, 8), np.float32)
    with pytest.raises(MethodUnsuited, match="sensitivity makes maps of changed images"):
        evaluate(MODEL, tensor(IMAGE), heat, target=1, metrics=["sensitivity"])


def infidelity(
    heat: Numbers, model: Weighed = MODEL, image: Numbers = IMAGE, **options: object
) -> tuple[float, Numbers, Numbers]:
    """Return the score; the heat in each square; and the probability that is lost without it."""
    model.batches.clear()
    scores = evaluate(
        model,
        tensor(image),
        heat.astype(np.float32),
        target=1,
        metrics=["infidelity"],
        options=alone(**options),
        reading=SIGMOID,
    )
    value = scores["infidelity"].value
    assert value is not None
    inside = [(each == 0).all(0) for each in model.seen[1:]]
    sums = np.array([heat[each].sum() for each in inside])
    lost = np.array([model.chance(image) - model.chance(each) for each in model.seen[1:]])
    return value, sums, lost


@pytest.mark.parametrize("seed", range(4))
def test_no_factor_makes_it_less(seed: int) -> None:
    heat = drawn(8, 8, seed=10 + seed)
    found, sums, lost = infidelity(heat, seed=seed)
    assert len(sums) == 32

    def error(factor: float) -> float:
        return float(((factor * sums - lost) ** 2).mean())

    # The parabola's least value lies between the two ends; every step of the search is literal.
    low, high = -10.0, 10.0
    for _ in range(200):
        third = (high - low) / 3
        if error(low + third) < error(high - third):
            high -= third
        else:
            low += third
    assert found == pytest.approx(error(low), rel=1e-4)
    assert all(found <= error(each) + 1e-9 for each in np.linspace(-3, 3, 601))
    assert found < error(1) * 0.9


def test_without_the_factor_the_heat_counts_as_it_is() -> None:
    heat = 0.1 * drawn(8, 8, seed=3)
    found, sums, lost = infidelity(heat, scale_free=False)
    assert found == pytest.approx(((sums - lost) ** 2).mean(), rel=1e-4)


def test_the_scale_of_the_map_counts_only_without_the_factor() -> None:
    heat = drawn(8, 8, seed=3)
    assert infidelity(heat)[0] == pytest.approx(infidelity(7 * heat)[0], rel=1e-4)
    plain = infidelity(heat, scale_free=False)[0]
    assert infidelity(7 * heat, scale_free=False)[0] > 2 * plain


def test_the_map_of_what_is_lost_is_faithful() -> None:
    """Of small weights the probability is all but linear: σ′(z) times the sum of w · x."""
    model = Weighed(1e-3 * drawn(1, 8, 8)).eval()
    image = picture(1, 8, 8)
    right = (drawn(1, 8, 8) * image)[0]
    found, _, lost = infidelity(right, model, image)
    assert found < 1e-3 * (lost**2).mean()
    wrong, _, _ = infidelity(drawn(8, 8, seed=9), model, image)
    assert wrong > 0.3 * (lost**2).mean()


@pytest.mark.parametrize(
    ("heat", "losses", "scale_free", "expected"),
    [
        ([1, 2], [2, 4], True, 0.0),  # the factor is 2
        ([1, 2], [2, 4], False, (1 + 4) / 2),
        ([1, 1], [0, 2], True, 1.0),  # the factor is 1
        ([1, 0], [3, 4], True, 8.0),  # the factor is 3: (0 + 16) / 2
        ([0, 0], [3, 4], True, 12.5),  # no factor helps
        ([0, 0], [3, 4], False, 12.5),
        ([-1, -2], [1, 2], True, 0.0),  # the factor is −1
    ],
)
def test_infidelity_by_hand(
    heat: list[float], losses: list[float], scale_free: bool, expected: float
) -> None:
    found = infidelity_of(
        np.array(heat, np.float64), np.array(losses, np.float64), scale_free=scale_free
    )
    assert found == pytest.approx(expected)


def corners(masks: NDArray[np.bool_]) -> list[tuple[int, int, int, int]]:
    """Return top, left, height and width of each; all of the rectangle must be set."""
    found = []
    for mask in masks:
        rows, columns = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
        assert mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()
        found.append((int(rows[0]), int(columns[0]), len(rows), len(columns)))
    return found


@pytest.mark.parametrize(
    ("size", "expected"),
    [((8, 8), (2, 2)), ((8, 12), (2, 3)), ((224, 224), (56, 56)), ((1, 3), (1, 1))],
)
def test_a_square_has_a_quarter_of_each_side(
    size: tuple[int, int], expected: tuple[int, int]
) -> None:
    masks = squares(300, *size, np.random.default_rng(0))
    assert masks.shape == (300, *size)
    found = corners(masks)
    assert {each[2:] for each in found} == {expected}
    # They lie anywhere, up to both edges.
    if size[0] < 100:
        assert {each[0] for each in found} == set(range(size[0] - expected[0] + 1))
        assert {each[1] for each in found} == set(range(size[1] - expected[1] + 1))


def test_the_squares_are_black_after_preprocessing_and_nothing_else_changes() -> None:
    infidelity(drawn(8, 8, seed=3), squares=9)
    seen = MODEL.seen[1:]
    assert len(seen) == 9
    for each in seen:
        changed = (each != IMAGE).any(0)
        assert corners(changed[None])[0][2:] == (2, 2)
        assert not each[:, changed].any()


def test_all_maps_of_an_image_have_the_same_squares() -> None:
    infidelity(drawn(8, 8, seed=3))
    first = MODEL.seen
    infidelity(drawn(8, 8, seed=4))
    np.testing.assert_array_equal(MODEL.seen, first)
    infidelity(drawn(8, 8, seed=4), seed=1)
    assert not np.array_equal(MODEL.seen, first)

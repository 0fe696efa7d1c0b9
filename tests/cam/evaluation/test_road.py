"""ROAD: which pixels are removed, what the model then sees, and the mean of it."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from cam import evaluate
from cam.evaluation.metrics import PERCENTAGES, Scores
from cam.evaluation.road import removed_count
from tests.cam.evaluation.asked import SIGMOID, alone
from tests.cam.evaluation.test_imputation import solved
from tests.zoo.by_hand import Numbers, Weighed, drawn, picture, tensor, weighed

SIZE = (6, 7)


def scored(
    model: Weighed, image: Numbers, heat: Numbers, *metrics: str, chunk: int = 16, **options: object
) -> Scores:
    model.batches.clear()
    return evaluate(
        model,
        tensor(image),
        heat.astype(np.float32),
        target=1,
        metrics=metrics,
        options=alone(**options),
        chunk=chunk,
        reading=SIGMOID,
    )


def removed(model: Weighed, image: Numbers) -> list[NDArray[np.bool_]]:
    """Return the pixels that the changed images lack, fewest first. Two lack the same: one has a
    noise there, and the other its opposite."""
    masks = [(each != image.astype(np.float32)).any(0) for each in model.seen[1:]]
    masks.sort(key=lambda mask: int(mask.sum()))
    for one, other in zip(masks[::2], masks[1::2], strict=True):
        np.testing.assert_array_equal(one, other)
    return masks[::2]


@pytest.mark.parametrize("pixels", [16, 35, 42, 100, 101, 49, 50176])
def test_as_many_are_removed_as_are_not_below_the_percentile(pixels: int) -> None:
    values = np.arange(pixels)
    for percentage in (*PERCENTAGES, 0.5, 33.3, 99.5):
        expected = int((values >= np.percentile(values, 100 - percentage) - 1e-6).sum())
        assert removed_count(percentage, pixels) == expected


@pytest.mark.parametrize(
    ("percentage", "pixels", "expected"),
    [
        (50, 16, 8),  # the percentile is 7.5 of 0 … 15: 8 to 15
        (50, 17, 9),  # 8 of 0 … 16, which is one of them
        (10, 16, 2),  # 13.5
        (90, 16, 14),  # 1.5
        (20, 101, 21),  # 80
        (1, 16, 1),  # the hottest pixel always goes
        (99, 16, 15),  # and the coldest one always stays
    ],
)
def test_how_many_are_removed_by_hand(percentage: float, pixels: int, expected: int) -> None:
    assert removed_count(percentage, pixels) == expected


@pytest.mark.parametrize(("metric", "sign"), [("road_morf", -1), ("road_lerf", 1)])
def test_the_most_or_the_least_relevant_pixels_are_removed(metric: str, sign: int) -> None:
    model, image, heat = weighed(2, *SIZE), picture(2, *SIZE), drawn(*SIZE, seed=2)
    scored(model, image, heat, metric)
    order = sorted(np.ndindex(SIZE), key=lambda place: sign * heat[place])
    found = removed(model, image)
    assert len(found) == 9
    for percentage, mask in zip(PERCENTAGES, found, strict=True):
        # The percentile of 42 values lies at this share of 0 … 41.
        count = sum(at >= 41 * (1 - percentage / 100) - 1e-6 for at in range(42))
        expected = np.zeros(SIZE, bool)
        for place in order[:count]:
            expected[place] = True
        np.testing.assert_array_equal(mask, expected)


def test_what_the_model_sees_is_imputed_with_a_little_noise() -> None:
    model, image, heat = weighed(3, *SIZE), picture(3, *SIZE), drawn(*SIZE, seed=2)
    scored(model, image, heat, "road")
    assert model.passes == 1 + 36
    noises = []
    for seen in model.seen[1:]:
        mask = (seen != image).any(0)
        for plane, whole in zip(seen, image, strict=True):
            np.testing.assert_array_equal(plane[~mask], whole[~mask])
            noises += (plane - solved(whole, mask))[mask].tolist()
    noise = np.array(noises)
    assert len(noise) > 1000
    assert np.std(noise) == pytest.approx(0.01, rel=0.1)
    assert abs(noise.mean()) < 0.001
    assert np.abs(noise).max() < 0.06


def test_the_values_by_hand_of_what_the_model_saw() -> None:
    model, image, heat = weighed(1, *SIZE), picture(1, *SIZE), drawn(*SIZE, seed=2)
    metrics = ("road_morf", "road_lerf", "road")
    each = {}
    for metric in metrics[:2]:
        found = scored(model, image, heat, metric)[metric]
        likely = [model.chance(seen) for seen in model.seen[1:]]
        # One pass of 2 × 8 images, and one of 2 × 1: with a noise, and with its opposite.
        pairs = [*zip(likely[:8], likely[8:16], strict=True), tuple(likely[16:])]
        each[metric] = [sum(pair) / 2 for pair in pairs]
        np.testing.assert_allclose(
            np.array(found.details["curve"]), np.array(each[metric]), atol=1e-6
        )
        assert found.details["percentages"] == PERCENTAGES
        assert found.value == pytest.approx(sum(each[metric]) / 9, abs=1e-6)
    found = scored(model, image, heat, "road")["road"]
    np.testing.assert_allclose(np.array(found.details["morf"]), each["road_morf"], atol=1e-6)
    np.testing.assert_allclose(np.array(found.details["lerf"]), each["road_lerf"], atol=1e-6)
    half = (sum(each["road_lerf"]) - sum(each["road_morf"])) / 9 / 2
    assert found.value == pytest.approx(half, abs=1e-6)


def test_a_map_of_what_counts_is_better_than_its_opposite() -> None:
    model, image = weighed(1, *SIZE, low=-1, high=1), picture(1, *SIZE)
    right = drawn(1, *SIZE, low=-1, high=1)[0] * image[0]
    good, bad = (scored(model, image, each, "road")["road"].value for each in (right, -right))
    assert good is not None
    assert bad is not None
    assert good > 0.02
    assert bad < -0.02


def test_the_three_share_their_passes() -> None:
    model, image, heat = weighed(1, *SIZE), picture(1, *SIZE), drawn(*SIZE, seed=2)
    together = scored(model, image, heat, "road", "road_morf", "road_lerf")
    assert model.passes == 1 + 36
    for metric, expected in together.items():
        assert scored(model, image, heat, metric)[metric] == expected
    assert together["road_morf"].details["curve"] == together["road"].details["morf"]
    assert together["road_lerf"].details["curve"] == together["road"].details["lerf"]


def test_the_percentages_can_be_chosen() -> None:
    model, image, heat = weighed(1, *SIZE), picture(1, *SIZE), drawn(*SIZE, seed=2)
    found = scored(model, image, heat, "road_morf", percentages=(50.0, 5.0))["road_morf"]
    assert found.details["percentages"] == (50.0, 5.0)
    assert [int((seen != image).any(0).sum()) for seen in model.seen[1:]] == [21, 3] * 2


def test_equal_pixels_are_removed_in_a_random_order_of_the_seed() -> None:
    model, image = weighed(1, *SIZE), picture(1, *SIZE)
    masks = []
    for seed in (0, 0, 1):
        scored(model, image, np.zeros(SIZE), "road_morf", percentages=(50.0,), seed=seed)
        masks.append(removed(model, image)[0])
    np.testing.assert_array_equal(masks[0], masks[1])
    assert not np.array_equal(masks[0], masks[2])
    for mask in masks:
        assert int(mask.sum()) == 21
        assert 3 <= int(mask[:3].sum()) <= 18  # neither the upper half nor the lower one


def test_the_seed_fixes_the_noise() -> None:
    model, image, heat = weighed(1, *SIZE), picture(1, *SIZE), drawn(*SIZE, seed=2)
    first, again, other = (scored(model, image, heat, "road", seed=seed) for seed in (3, 3, 4))
    assert first == again
    assert first != other
    assert first["road"].value == pytest.approx(other["road"].value, abs=0.01)


@pytest.mark.parametrize("chunk", [1, 2, 3, 16])
def test_the_size_of_a_pass_does_not_matter(chunk: int) -> None:
    model, image, heat = weighed(1, *SIZE), picture(1, *SIZE), drawn(*SIZE, seed=2)
    expected = scored(model, image, heat, "road")["road"].value
    found = scored(model, image, heat, "road", chunk=chunk)["road"].value
    assert found == pytest.approx(expected, abs=1e-6)
    assert max(map(len, model.batches)) <= max(chunk, 1)


def test_a_noise_and_its_opposite_cancel_out() -> None:
    """What the probability depends on linearly is gone: with large weights, the values of ten
    seeds differ by hundredths without the opposite, and by a tenth of that with it."""
    model, image, heat = weighed(1, *SIZE, low=-3, high=3), picture(1, *SIZE), drawn(*SIZE, seed=2)
    single, both = [], []
    for seed in range(10):
        found = scored(model, image, heat, "road_lerf", seed=seed, percentages=(50.0,))
        both.append(found["road_lerf"].value or 0.0)
        single.append(model.chance(model.seen[1]))
    assert np.std(single) > 0.002
    assert np.ptp(both) < np.ptp(single) / 4

"""Deletion and insertion, point by point."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.ndimage import convolve, gaussian_filter

from cam import evaluate
from cam.evaluation.curves import blur_kernel, substrate
from cam.evaluation.metrics import MetricOptions, Score, Substrate
from cam.evaluation.scorer import ranks
from tests.cam.evaluation.asked import SIGMOID, alone
from tests.zoo.by_hand import Numbers, Weighed, drawn, picture, tensor, weighed
from tests.zoo.parts import Net


def scored(
    metric: str, model: Weighed, image: Numbers, heat: Numbers, options: MetricOptions
) -> tuple[Score, Numbers]:
    """Return the score and its curve."""
    model.batches.clear()
    found = evaluate(
        model,
        tensor(image),
        heat.astype(np.float32),
        target=1,
        metrics=[metric],
        options=options,
        reading=SIGMOID,
    )[metric]
    return found, np.array(found.details["curve"])


def exchanged(image: Numbers, other: Numbers, heat: Numbers, count: int) -> Numbers:
    """Return the image with its `count` hottest pixels taken from the other one."""
    found = image.copy()
    places = sorted(np.ndindex(heat.shape), key=lambda place: -heat[place])
    for row, column in places[:count]:
        found[:, row, column] = other[:, row, column]
    return found


def trapezoids(points: Numbers) -> float:
    """Return the area under points at equal distances from 0 to 1."""
    wide = 1 / (len(points) - 1)
    return float(sum(wide * (points[at] + points[at + 1]) / 2 for at in range(len(points) - 1)))


def instead(image: Numbers, what: Substrate) -> Numbers:
    """Return what takes the place of the image, by SciPy."""
    if what == "zero":
        return np.zeros_like(image)
    if what == "mean":
        return np.stack([np.full_like(each, each.mean()) for each in image])
    point = np.zeros((11, 11))
    point[5, 5] = 1
    kernel = gaussian_filter(point, 5)
    return np.stack([convolve(each, kernel, mode="constant") for each in image])


# Pixels, steps, and how many pixels are exchanged at each point. The last step may be smaller.
STEPS = [
    ((4, 4), 16, list(range(17))),
    ((4, 4), 30, list(range(17))),  # a step has a pixel at least
    ((4, 4), 4, [0, 4, 8, 12, 16]),
    ((4, 4), 3, [0, 6, 12, 16]),
    ((4, 4), 7, [0, 3, 6, 9, 12, 15, 16]),
    ((4, 4), 1, [0, 16]),
    ((5, 7), 8, [0, 5, 10, 15, 20, 25, 30, 35]),
    ((4, 4), "fine", [0, 16]),
    ((16, 15), "fine", [0, 224, 240]),
    ((16, 28), "fine", [0, 224, 448]),
]


@pytest.mark.parametrize("metric", ["deletion", "insertion"])
@pytest.mark.parametrize("what", ["zero", "mean", "blur"])
@pytest.mark.parametrize(("size", "steps", "counts"), STEPS)
def test_every_point_and_the_area(
    metric: str, what: Substrate, size: tuple[int, int], steps: object, counts: list[int]
) -> None:
    model, image, heat = weighed(2, *size), picture(2, *size), drawn(*size, seed=2)
    options = alone(steps=steps, deletion_to=what, insertion_from=what)
    found, curve = scored(metric, model, image, heat, options)
    other = instead(image, what)
    old, new = (image, other) if metric == "deletion" else (other, image)
    expected = np.array([model.chance(exchanged(old, new, heat, count)) for count in counts])
    np.testing.assert_allclose(curve, expected, atol=1e-6)
    assert found.value == pytest.approx(trapezoids(expected), abs=1e-6)
    assert found.warning is None


def test_deletion_and_insertion_by_hand() -> None:
    """A logit of log 3 at one pixel alone: the probability is 3/4 with it and 1/2 without."""
    weights = np.zeros((1, 2, 2))
    weights[0, 0, 1] = np.log(3)
    model, image = Weighed(weights).eval(), np.ones((1, 2, 2))
    first = np.array([[2.0, 9], [1, 0]])
    found, curve = scored("deletion", model, image, first, alone(steps=4))
    np.testing.assert_allclose(curve, [3 / 4, 1 / 2, 1 / 2, 1 / 2, 1 / 2], atol=1e-6)
    assert found.value == pytest.approx((3 / 8 + 3 / 2 + 1 / 4) / 4, abs=1e-6)
    last = np.array([[2.0, -9], [1, 0]])
    found, curve = scored("insertion", model, image, last, alone(steps=4, insertion_from="zero"))
    np.testing.assert_allclose(curve, [1 / 2, 1 / 2, 1 / 2, 1 / 2, 3 / 4], atol=1e-6)
    assert found.value == pytest.approx((1 / 4 + 3 / 2 + 3 / 8) / 4, abs=1e-6)


def test_the_ends_count_half() -> None:
    """Neither the mean of the points nor a sum of steps: both are far from the area here."""
    model, image = Weighed(np.full((1, 2, 2), 0.8)).eval(), np.ones((1, 2, 2))
    heat = np.array([[4.0, 3], [2, 1]])
    found, curve = scored("deletion", model, image, heat, alone(steps=2))
    np.testing.assert_allclose(curve, 1 / (1 + np.exp(-np.array([3.2, 1.6, 0]))), atol=1e-6)
    assert found.value == pytest.approx((curve[0] + 2 * curve[1] + curve[2]) / 4, abs=1e-9)
    for wrong in (curve.mean(), curve[:-1].mean(), curve[1:].mean()):
        assert abs(found.value - wrong) > 0.01


def test_a_better_map_has_less_deletion_and_more_insertion() -> None:
    model, image = weighed(1, 6, 5), picture(1, 6, 5)
    right = drawn(1, 6, 5)[0] * image[0]
    for metric, sign in (("deletion", 1), ("insertion", -1)):
        best, _ = scored(metric, model, image, right, alone(insertion_from="zero"))
        worst, _ = scored(metric, model, image, -right, alone(insertion_from="zero"))
        assert best.value is not None
        assert worst.value is not None
        assert sign * (worst.value - best.value) > 0.1


def test_a_small_map_is_resized_to_the_image() -> None:
    model, image = weighed(1, 4, 4), picture(1, 4, 4)
    small = np.array([[1.0, 2.3], [4.1, 9]])
    # Half-pixel centres, edges held: per axis 1, 3/4, 1/4 and 0 of the first.
    share = np.array([[1, 0], [0.75, 0.25], [0.25, 0.75], [0, 1]])
    whole = share @ small @ share.T
    assert len(np.unique(whole)) == 16
    found, curve = scored("deletion", model, image, small, alone(steps=16))
    other, expected = scored("deletion", model, image, whole, alone(steps=16))
    assert found.value == other.value
    np.testing.assert_array_equal(curve, expected)


def gone(model: Weighed, image: Numbers) -> list[int]:
    """Return the pixels, numbered row by row, in the order in which they went."""
    order: list[int] = []
    removed = [np.flatnonzero((each != image).any(0)) for each in model.seen]
    for each in sorted(removed, key=len):
        order += sorted(set(each.tolist()) - set(order))
    return order


def test_equal_pixels_go_in_a_random_order_of_the_seed() -> None:
    model, image = weighed(1, 6, 6), picture(1, 6, 6)
    orders = []
    for seed in (0, 0, 1):
        scored("deletion", model, image, np.ones((6, 6)), alone(steps=36, seed=seed))
        orders.append(gone(model, image))
    assert sorted(orders[0]) == list(range(36))
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]
    for each in orders:
        steps = np.diff(each)
        assert (steps == 1).sum() < 9  # row by row it would be 35 times, and column by column
        assert (steps == 6).sum() < 9
        # The first half is not the upper half of the image.
        assert 3 <= sum(place < 18 for place in each[:18]) <= 15


def test_hotter_pixels_go_before_equal_ones() -> None:
    model, image = weighed(1, 6, 6), picture(1, 6, 6)
    heat = np.zeros(36)
    heat[[20, 7, 33]] = [3, 2, 1]
    heat[[0, 11, 30]] = -1
    scored("deletion", model, image, heat.reshape(6, 6), alone(steps=36))
    order = gone(model, image)
    assert order[:3] == [20, 7, 33]
    assert set(order[-3:]) == {0, 11, 30}
    assert order[3:-3] != sorted(order[3:-3])


def test_ranks_by_hand() -> None:
    heat = np.array([[0.5, -1, 7], [2, 0, 3]], np.float32)
    found = ranks(heat, np.random.default_rng(0))
    np.testing.assert_array_equal(found, [[3, 5, 0], [2, 4, 1]])


def test_equal_ranks_are_even_over_many_seeds() -> None:
    """Each of four equal pixels is first in a quarter of the orders, each before one that is
    colder."""
    heat = np.array([[5, 5, 0], [5, 0, 5]], np.float32)
    found = np.array([ranks(heat, np.random.default_rng(seed)) for seed in range(400)])
    assert (np.sort(found.reshape(400, -1)) == np.arange(6)).all()
    equal = found[:, heat == 5]
    assert equal.max() == 3
    assert ((equal == 0).mean(0) > 0.15).all()
    assert ((equal == 0).mean(0) < 0.35).all()


def test_the_kernel_is_a_point_that_scipy_blurs() -> None:
    point = np.zeros((11, 11))
    point[5, 5] = 1
    kernel = blur_kernel()
    np.testing.assert_allclose(kernel, gaussian_filter(point, 5), rtol=1e-10, atol=1e-15)
    assert kernel.sum() == pytest.approx(1, abs=1e-12)
    # An 11 × 11 part of the Gaussian, scaled to the sum 1, is another kernel.
    cut = np.exp(-(np.arange(-5, 6) ** 2) / 50)
    plain = np.outer(cut, cut) / cut.sum() ** 2
    assert np.abs(kernel - plain).max() > 1e-4


def test_what_takes_the_place_of_an_image() -> None:
    image = drawn(3, 14, 13)
    for what in ("zero", "mean", "blur"):
        found = substrate(tensor(image), what)
        assert found.shape == (3, 14, 13)
        np.testing.assert_allclose(found.numpy(), instead(image, what), atol=1e-6)
    assert torch.equal(substrate(tensor(image), None), tensor(image))


def test_beyond_the_edge_the_blur_sees_zeros() -> None:
    """So the corner of a white image keeps what lies inside, (1/2 + half the middle)² of it."""
    found = substrate(torch.ones(1, 40, 40), "blur")[0]
    line = blur_kernel().sum(0)
    assert float(found[20, 20]) == pytest.approx(1, abs=1e-6)
    assert float(found[0, 0]) == pytest.approx(((1 + line[5]) / 2) ** 2, abs=1e-6)


@pytest.mark.parametrize("chunk", [1, 3, 16, 64])
def test_the_curve_does_not_depend_on_how_many_images_are_in_a_pass(chunk: int) -> None:
    model, image, heat = weighed(1, 5, 6), picture(1, 5, 6), drawn(5, 6, seed=2)
    expected, _ = scored("deletion", model, image, heat, alone())
    model.batches.clear()
    found = evaluate(
        model,
        tensor(image),
        heat.astype(np.float32),
        target=1,
        metrics=["deletion"],
        options=alone(),
        chunk=chunk,
        reading=SIGMOID,
    )["deletion"]
    assert found.value == pytest.approx(expected.value, abs=1e-7)
    assert max(len(each) for each in model.batches) <= chunk
    assert model.passes == 1 + 29 + 1


@pytest.mark.parametrize("target", [None, 0, 1, 2])
def test_of_several_classes_the_softmax_counts(target: int | None) -> None:
    weights, image, heat = drawn(3, 1, 4, 4, low=-2, high=2), picture(1, 4, 4), drawn(4, 4, seed=2)
    found = evaluate(
        Net(lambda x: torch.einsum("bchw,kchw->bk", x, tensor(weights))),
        tensor(image),
        heat.astype(np.float32),
        target=target,
        metrics=["deletion"],
        options=alone(steps=4),
    )["deletion"]

    def chances(x: Numbers) -> Numbers:
        powers = np.exp((weights * x).sum((1, 2, 3)))
        return np.asarray(powers / powers.sum())

    index = int(chances(image).argmax()) if target is None else target
    black = np.zeros_like(image)
    expected = [chances(exchanged(image, black, heat, count))[index] for count in (0, 4, 8, 12, 16)]
    np.testing.assert_allclose(np.array(found.details["curve"]), expected, atol=1e-6)
    assert expected[-1] == pytest.approx(1 / 3)

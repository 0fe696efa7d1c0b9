"""Stability: the views that the model is shown, and what is brought back of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr
from torch import Tensor, nn

from cam import ClassTarget, UnitTarget, evaluate, explain
from cam.drawing.placement import Region
from cam.evaluation.metrics import Score
from cam.evaluation.stability import compress, crop_of, cropped
from tests.cam.evaluation.asked import SIGMOID, alone, explained
from tests.zoo.by_hand import Numbers, Weighed, drawn, foreground, picture, tensor, weighed

SIZE = (16, 8)
KEPT = (14, 7)
"""7/8 of it; the crop begins at row 1 and at column 0."""


def between(line: Numbers, places: Numbers) -> Numbers:
    """Return the values at places between the cells of a line; beyond its ends the last one."""
    return np.interp(places, np.arange(len(line)), line)


def resampled(plane: Numbers, down: Numbers, across: Numbers) -> Numbers:
    rows = np.stack([between(each, across) for each in plane])
    return np.stack([between(each, down) for each in rows.T]).T


def enlarged(image: Numbers) -> Numbers:
    """Return the crop of each channel at the size of the image, with half-pixel centres."""
    places = [
        (np.arange(whole) + 0.5) * kept / whole - 0.5
        for whole, kept in zip(SIZE, KEPT, strict=True)
    ]
    return np.stack([resampled(each[1:15, 0:7], *places) for each in image])


def back(heat: Numbers) -> Numbers:
    """Return the map of the enlarged crop at the crop's pixels."""
    places = [
        (np.arange(kept) + 0.5) * whole / kept - 0.5 for whole, kept in zip(SIZE, KEPT, strict=True)
    ]
    return resampled(heat, *places)


def alike(first: Numbers, second: Numbers) -> float:
    return float(spearmanr(first.ravel(), second.ravel()).statistic)


def normalise(pixels: NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(pixels.astype(np.float32) / 255).permute(0, 3, 1, 2)


def stability(model: nn.Module, image: Numbers, **more: object) -> Score:
    found = explained(model, image)
    return evaluate(
        model,
        tensor(image),
        found,
        metrics=["stability"],
        options=alone(),
        reading=SIGMOID,
        **more,  # type: ignore[arg-type]
    )["stability"]


def test_without_pixels_there_are_two_views() -> None:
    model, image = weighed(2, *SIZE, low=0.1, high=1), picture(2, *SIZE)
    found = stability(model, image)
    assert model.passes == 3
    _, flipped, crop = model.seen
    np.testing.assert_array_equal(flipped, image[:, :, ::-1].astype(np.float32))
    np.testing.assert_allclose(crop, enlarged(image), atol=1e-6)
    heat = model.heat(image)
    expected = {
        "flip": alike(heat, model.heat(image[:, :, ::-1])[:, ::-1]),
        "crop": alike(heat[1:15, 0:7], back(model.heat(enlarged(image)))),
    }
    assert set(found.details) == set(expected)
    for name, value in expected.items():
        assert found.details[name] == pytest.approx(value, abs=1e-3), name
    assert found.value == pytest.approx((expected["flip"] + expected["crop"]) / 2, abs=1e-3)


@pytest.mark.parametrize("missing", ["pixels", "normalise"])
def test_jpeg_needs_both_the_pixels_and_their_preprocessing(missing: str) -> None:
    model, pixels = weighed(3, *SIZE), np.random.default_rng(3).integers(0, 256, (*SIZE, 3))
    image = normalise(pixels.astype(np.uint8)[None])[0].numpy().astype(np.float64)
    more = {"pixels": pixels.astype(np.uint8), "normalise": normalise}
    assert set(stability(model, image, **more).details) == {"flip", "crop", "jpeg"}
    del more[missing]
    assert set(stability(model, image, **more).details) == {"flip", "crop"}


def test_with_pixels_there_are_three_views() -> None:
    model = weighed(3, *SIZE, low=0.1, high=1)
    pixels = np.random.default_rng(3).integers(0, 256, (*SIZE, 3)).astype(np.uint8)
    image = normalise(pixels[None])[0].numpy().astype(np.float64)
    found = stability(model, image, pixels=pixels, normalise=normalise)
    assert model.passes == 4
    compressed = normalise(compress(pixels)[None])[0].numpy()
    np.testing.assert_array_equal(model.seen[3], compressed)
    expected = alike(model.heat(image), model.heat(compressed.astype(np.float64)))
    assert 0 < expected < 1
    assert found.details["jpeg"] == pytest.approx(expected, abs=1e-3)
    parts = [found.details[name] for name in ("flip", "crop", "jpeg")]
    assert found.value == pytest.approx(np.mean(np.array(parts, np.float64)))


@pytest.mark.parametrize("even", ["everywhere", "left and right"])
def test_a_map_that_goes_with_the_mirrored_image_is_as_stable_as_can_be(even: str) -> None:
    weights = np.full((1, *SIZE), 0.1)
    if even == "left and right":
        half = drawn(1, SIZE[0], SIZE[1] // 2, low=0.1, high=1)
        weights = np.concatenate([half, half[:, :, ::-1]], 2)
    found = stability(Weighed(weights).eval(), picture(1, *SIZE))
    assert found.details["flip"] == 1


def test_a_map_that_stays_where_it_was_is_less_stable() -> None:
    """The model looks at the left, wherever the object is."""
    weights = np.linspace(1, 0.1, SIZE[1]) * np.ones((1, *SIZE))
    flip = stability(Weighed(weights).eval(), 0.5 + 0.01 * picture(1, *SIZE)).details["flip"]
    assert isinstance(flip, float)
    assert flip < -0.9


def test_a_slope_survives_the_crop() -> None:
    """A bilinear picture of a slope is a slope, but for the edges."""
    slope = np.add.outer(3.14 * np.arange(SIZE[0]), np.arange(SIZE[1])) / 50 + 0.1
    found = stability(Weighed(np.full((1, *SIZE), 0.01)).eval(), slope[None])
    crop = found.details["crop"]
    assert isinstance(crop, float)
    assert 0.999 < crop <= 1


def test_a_view_with_a_constant_map_does_not_count() -> None:
    """The model sees the left half alone, and the right half is black, so the mirrored image has
    a map of zeros."""
    weights, image = np.ones((1, *SIZE)), picture(1, *SIZE)
    weights[:, :, 4:] = 0
    image[:, :, 4:] = 0
    found = stability(Weighed(weights).eval(), image)
    assert found.details["flip"] is None
    assert found.details["crop"] is not None
    assert found.value == found.details["crop"]
    assert found.warning is None


def test_a_constant_map_has_no_stability() -> None:
    found = stability(Weighed(np.ones((1, *SIZE))).eval(), np.full((1, *SIZE), 0.5))
    assert found.value is None
    assert found.details == {"flip": None, "crop": None}
    assert found.warning == "the map, or that of each changed image, is constant"


def test_the_mask_of_a_target_is_mirrored_with_the_image() -> None:
    """The map of a segmenter that looks at each pixel by itself is the image under the mask."""
    image = picture(1, *SIZE)
    mask = np.zeros(SIZE, bool)
    mask[2:9, 1:3] = True
    (found,) = explain(
        foreground(),
        tensor(image)[None],
        target=ClassTarget(1, mask=mask),
        method="hirescam",
        layer="layer",
    )
    np.testing.assert_allclose(found.map > 0, mask)
    scores = evaluate(foreground(), tensor(image), found, metrics=["stability"], options=alone())
    assert scores["stability"].details["flip"] == pytest.approx(1, abs=1e-12)
    crop = scores["stability"].details["crop"]
    assert isinstance(crop, float)
    assert crop > 0.7


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((224, 224), Region(14, 14, 196, 196)),
        ((16, 16), Region(1, 1, 14, 14)),
        ((8, 24), Region(1, 0, 21, 7)),
        ((4, 4), Region(0, 0, 4, 4)),  # 3.5 is rounded to 4
        ((1, 1), Region(0, 0, 1, 1)),
    ],
)
def test_the_crop_is_the_middle(size: tuple[int, int], expected: Region) -> None:
    assert crop_of(*size) == expected


@pytest.mark.parametrize(
    ("box", "expected"),
    [
        ((1, 2, 15, 30), (0, 0, 16, 32)),  # the crop itself becomes the whole image
        ((8, 16, 15, 23), (8, 16, 16, 24)),  # the centre stays the centre
        ((1, 2, 8, 9), (0, 0, 8, 8)),
        ((0, 0, 16, 32), (-16 / 14, -64 / 28, 16 + 16 / 14, 32 + 64 / 28)),  # and reaches beyond
    ],
)
def test_a_box_in_the_crop(
    box: tuple[float, float, float, float], expected: tuple[float, float, float, float]
) -> None:
    """An image of 32 rows and 16 columns, of which the middle 28 and 14 are enlarged by 8/7."""
    target = ClassTarget(3, minus=1, box=box)
    found = cropped(target, Region(1, 2, 14, 28), 32, 16)
    assert isinstance(found, ClassTarget)
    assert found.box == pytest.approx(expected)
    assert found == replace(target, box=found.box)


def test_a_mask_in_the_crop() -> None:
    """Cell i of n shows the crop's (i + 1/2) / n; the nearest cell of the whole mask is there."""
    mask = np.random.default_rng(0).random((16, 8)) < 0.5  # 32 × 16 pixels in cells of 2 × 2
    target = ClassTarget(3, mask=mask)
    found = cropped(target, Region(1, 2, 14, 28), 32, 16)
    assert isinstance(found, ClassTarget)
    assert found.mask is not None
    assert found.mask.shape == mask.shape
    for row in range(16):
        for column in range(8):
            y = 2 + (row + 0.5) * 28 / 16  # in the image's pixels
            x = 1 + (column + 0.5) * 14 / 8
            assert found.mask[row, column] == mask[int(y / 2), int(x / 2)]
    # The same with numbers: rows of 0.9375, 1.8125, 2.6875, … cells and so on.
    rows = [1, 2, 3, 4, 4, 5, 6, 7, 8, 9, 10, 11, 11, 12, 13, 14]
    columns = [0, 1, 2, 3, 4, 5, 6, 7]
    np.testing.assert_array_equal(found.mask, mask[rows][:, columns])


def test_a_target_without_a_place_is_the_same_in_the_crop() -> None:
    for target in (ClassTarget(3, minus=1), UnitTarget("layer", 2)):
        assert cropped(target, Region(1, 2, 14, 28), 32, 16) == target


@pytest.mark.parametrize(("grey", "expected"), [(100, {100}), (101, {100, 102}), (128, {128})])
def test_jpeg_of_quality_50_by_hand(grey: int, expected: set[int]) -> None:
    """At quality 50 the quantiser is the standard's own: 16 for the mean. The mean's coefficient
    is 8 · (grey − 128), so greys come in steps of 2."""
    found = compress(np.full((16, 16, 3), grey, np.uint8))
    assert found.dtype == np.uint8
    assert found.shape == (16, 16, 3)
    assert len(np.unique(found)) == 1
    assert int(found[0, 0, 0]) in expected


def test_jpeg_leaves_red_red() -> None:
    pixels = np.zeros((16, 24, 3), np.uint8)
    pixels[..., 0] = 200
    pixels[..., 1] = 40
    found = compress(pixels)
    assert found.shape == pixels.shape
    assert np.abs(found.astype(int) - pixels).max() <= 6


def test_jpeg_keeps_stripes_of_red_better_than_stripes_of_blue() -> None:
    """Brightness has 0.299 of red and 0.114 of blue, and colours are halved in size. So a fine
    pattern tells whether the first channel is taken for red."""
    kept = []
    for channel in (0, 2):
        pixels = np.full((16, 16, 3), 60, np.uint8)
        pixels[:, ::2, channel] = 180
        found = compress(pixels)[..., channel].astype(float)
        kept.append(found[:, ::2].mean() - found[:, 1::2].mean())
    assert kept[0] > 2 * kept[1]


def test_jpeg_changes_a_picture_a_little() -> None:
    rows, columns = np.mgrid[:32, :32]
    pixels = np.stack([4 * rows + 60, 4 * columns + 60, rows + columns], -1).astype(np.uint8)
    found = compress(pixels)
    away = np.abs(found.astype(int) - pixels)
    assert 0 < away.mean() < 6

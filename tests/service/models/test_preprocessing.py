"""What the model sees: equal to its authors' own preprocessing, and where on the photo it lies.

Equal means: no value differs by more than two gray levels of 256, and few by one. Pillow keeps a
resize's box in single precision, so in each of its two passes a value halfway between two levels
may be rounded to the other one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform, resolve_data_config
from torchvision.models import ConvNeXt_Tiny_Weights, Inception_V3_Weights, ResNet50_Weights

from cam.drawing.heatmap import Box
from service.models.catalog import ModelEntry
from service.models.preprocessing import Fit, Preprocessing
from service.models.sources import build
from tests.service.conftest import noise

SIZES = [(451, 300), (300, 451), (640, 480), (224, 224), (97, 1000), (50, 40), (257, 256)]


def entry(source: str) -> ModelEntry:
    return ModelEntry(name="m", source=source, weights="none")


def smooth(width: int, height: int) -> Image.Image:
    return noise(max(width // 8, 1), max(height // 8, 1)).resize((width, height))


@pytest.mark.parametrize("size", SIZES)
def test_crop_equals_timms_evaluation_transform(size: tuple[int, int]) -> None:
    preprocessing = build(entry("embedded:efficientnet-lite0"), None).preprocessing
    config = resolve_data_config(model=timm.create_model("tf_efficientnet_lite0"))
    photo = smooth(*size)
    expected = create_transform(**config)(photo)
    found = preprocessing.apply(photo, "crop").tensor
    level = 2 / 255
    assert (found - expected).abs().max() <= 2.05 * level
    assert (found - expected).abs().mean() < 0.2 * level


@pytest.mark.parametrize(
    ("source", "weights"),
    [
        ("torchvision:resnet50", ResNet50_Weights.DEFAULT),
        ("torchvision:convnext_tiny", ConvNeXt_Tiny_Weights.DEFAULT),
        ("torchvision:inception_v3", Inception_V3_Weights.DEFAULT),
    ],
)
def test_crop_equals_torchvisions_evaluation_transform(
    source: str, weights: ResNet50_Weights
) -> None:
    preprocessing = build(entry(source), None).preprocessing
    for size in SIZES:
        photo = smooth(*size)
        expected = weights.transforms()(photo)
        found = preprocessing.apply(photo, "crop").tensor
        assert found.shape == expected.shape
        level = 1 / 255 / 0.229
        assert (found - expected).abs().max() <= 2.05 * level, size
        assert (found - expected).abs().mean() < 0.2 * level, size


def simple(**changes: object) -> Preprocessing:
    given = {
        "height": 100,
        "width": 100,
        "shorter_side": 125,
        "mean": (0.5, 0.5, 0.5),
        "std": (0.5, 0.5, 0.5),
        "resampling": Image.Resampling.BILINEAR,
        **changes,
    }
    return Preprocessing(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fit", "box"),
    [
        # 500 × 250 → 250 × 125; of that the middle 100 × 100 (from 75, 12 up): twice that.
        ("crop", Box(150, 24, 350, 224)),
        ("squash", Box(0, 0, 500, 250)),
        # 500 × 250 → 100 × 50 with 25 rows of border above and below: five photo pixels each.
        ("pad", Box(0, -125, 500, 375)),
    ],
)
def test_the_box_by_hand(fit: Fit, box: Box) -> None:
    assert simple().apply(noise(500, 250), fit).box == box


def test_pad_fills_with_the_mean_colour_which_is_zero_after_normalisation() -> None:
    white = Image.new("RGB", (500, 250), "white")
    seen = simple(mean=(0.2, 0.4, 0.6), std=(1, 1, 1)).apply(white, "pad")
    assert seen.view.shape == (100, 100, 3)
    np.testing.assert_array_equal(seen.view[0, 0], [51, 102, 153])
    np.testing.assert_array_equal(seen.view[24:76:51, 50], [[51, 102, 153]] * 2)
    np.testing.assert_array_equal(seen.view[25:75], np.full((50, 100, 3), 255))
    assert seen.tensor[:, :25].abs().max() < 1e-6


def test_normalisation_by_hand() -> None:
    photo = Image.new("RGB", (100, 100), (255, 0, 51))
    tensor = simple(std=(0.5, 0.25, 1)).apply(photo, "squash").tensor
    torch.testing.assert_close(tensor[:, 0, 0], torch.tensor([1.0, -2.0, -0.3]))
    assert tensor.dtype == torch.float32


@pytest.mark.parametrize("size", [(1, 1), (1, 10_000), (10_000, 1), (3, 2)])
@pytest.mark.parametrize("fit", ["crop", "squash", "pad"])
def test_strange_shapes_are_seen_too(size: tuple[int, int], fit: Fit) -> None:
    seen = simple().apply(noise(*size), fit)
    assert seen.view.shape == (100, 100, 3)
    assert seen.tensor.shape == (3, 100, 100)


@pytest.mark.parametrize("shape", [(224, 448), (320, 192)])
def test_crop_for_an_input_that_is_not_square_equals_timms(shape: tuple[int, int]) -> None:
    height, width = shape
    expected = create_transform(
        (3, height, width),
        interpolation="bilinear",
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
        crop_pct=0.875,
    )
    given = {"height": height, "width": width, "shorter_side": int(min(shape) / 0.875)}
    for size in [(500, 500), (301, 900), (640, 200)]:
        photo = smooth(*size)
        found = simple(**given).apply(photo, "crop").tensor
        wanted = expected(photo)
        assert (found - wanted).abs().mean() < 0.25 * 2 / 255, size
        assert (found - wanted).abs().max() <= 2.05 * 2 / 255, size


def test_blue_first_and_bytes_by_hand() -> None:
    """Models of Caffe take blue, green, red, 0 … 255, less each channel's mean."""
    photo = Image.new("RGB", (8, 8), (10, 20, 30))
    given: dict[str, Any] = {
        "height": 8,
        "width": 8,
        "shorter_side": 8,
        "resampling": Image.Resampling.BILINEAR,
    }
    mean, std = (1.0, 2.0, 3.0), (1.0, 2.0, 4.0)
    plain = Preprocessing(**given, mean=mean, std=std, byte_range=True).apply(photo, "squash")
    assert plain.tensor[:, 0, 0].tolist() == [9, 9, 6.75]
    turned = Preprocessing(**given, mean=mean, std=std, byte_range=True, reversed=True)
    assert turned.apply(photo, "squash").tensor[:, 0, 0].tolist() == [6.75, 9, 9]
    unit = Preprocessing(**given, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), reversed=True)
    seen = unit.apply(photo, "squash")
    assert seen.tensor[:, 0, 0].tolist() == pytest.approx([30 / 255, 20 / 255, 10 / 255])
    assert seen.view[0, 0].tolist() == [10, 20, 30]
    wide = Image.new("RGB", (16, 8))
    border = turned.apply(wide, "pad").view[0, 0]
    assert border.tolist() == [1, 2, 3]  # the mean colour

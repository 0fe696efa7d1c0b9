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
from torch import Tensor
from torchvision.models import ConvNeXt_Tiny_Weights, Inception_V3_Weights, ResNet50_Weights

from cam.drawing.placement import Box
from service.loading.sources import build
from service.loading.transforms import Normalisation
from service.models.catalog import ModelEntry
from service.models.preprocessing import Fit, Preprocessing
from tests.service.conftest import noise

SIZES = [(451, 300), (300, 451), (640, 480), (224, 224), (97, 1000), (50, 40), (257, 256)]


def entry(source: str) -> ModelEntry:
    return ModelEntry(name="m", source=source, weights="none")


def model_input(preprocessing: Preprocessing, photo: Image.Image, fit: Fit = "crop") -> Tensor:
    """What the model gets of one photo, float32 (3, H, W)."""
    pixels = preprocessing.apply(photo, fit).pixels
    return Normalisation(preprocessing, torch.device("cpu"))(pixels[None].copy())[0]


def smooth(width: int, height: int) -> Image.Image:
    return noise(max(width // 8, 1), max(height // 8, 1)).resize((width, height))


@pytest.mark.parametrize("size", SIZES)
def test_crop_equals_timms_evaluation_transform(size: tuple[int, int]) -> None:
    preprocessing = build(entry("embedded:efficientnet-lite0"), None).preprocessing
    config = resolve_data_config(model=timm.create_model("tf_efficientnet_lite0"))
    photo = smooth(*size)
    expected = create_transform(**config)(photo)
    found = model_input(preprocessing, photo)
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
        found = model_input(preprocessing, photo)
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
    preprocessing = simple(mean=(0.2, 0.4, 0.6), std=(1, 1, 1))
    seen = preprocessing.apply(white, "pad")
    assert seen.pixels.shape == (100, 100, 3)
    np.testing.assert_array_equal(seen.pixels[0, 0], [51, 102, 153])
    np.testing.assert_array_equal(seen.pixels[24:76:51, 50], [[51, 102, 153]] * 2)
    np.testing.assert_array_equal(seen.pixels[25:75], np.full((50, 100, 3), 255))
    assert model_input(preprocessing, white, "pad")[:, :25].abs().max() < 1e-6


def test_normalisation_by_hand() -> None:
    photo = Image.new("RGB", (100, 100), (255, 0, 51))
    tensor = model_input(simple(std=(0.5, 0.25, 1)), photo, "squash")
    torch.testing.assert_close(tensor[:, 0, 0], torch.tensor([1.0, -2.0, -0.3]))
    assert tensor.dtype == torch.float32


@pytest.mark.parametrize("size", [(1, 1), (1, 10_000), (10_000, 1), (3, 2)])
@pytest.mark.parametrize("fit", ["crop", "squash", "pad"])
def test_strange_shapes_are_seen_too(size: tuple[int, int], fit: Fit) -> None:
    seen = simple().apply(noise(*size), fit)
    assert seen.pixels.shape == (100, 100, 3)
    assert model_input(simple(), noise(*size), fit).shape == (3, 100, 100)


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
        found = model_input(simple(**given), photo)
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
    plain = Preprocessing(**given, mean=mean, std=std, byte_range=True)
    assert model_input(plain, photo)[:, 0, 0].tolist() == [9, 9, 6.75]
    turned = Preprocessing(**given, mean=mean, std=std, byte_range=True, reversed=True)
    assert model_input(turned, photo)[:, 0, 0].tolist() == [6.75, 9, 9]
    unit = Preprocessing(**given, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), reversed=True)
    seen = unit.apply(photo, "squash")
    expected = pytest.approx([30 / 255, 20 / 255, 10 / 255])
    assert model_input(unit, photo)[:, 0, 0].tolist() == expected
    assert seen.pixels[0, 0].tolist() == [10, 20, 30]
    wide = Image.new("RGB", (16, 8))
    border = turned.apply(wide, "pad").pixels[0, 0]
    assert border.tolist() == [1, 2, 3]  # the mean colour


@pytest.mark.parametrize("byte_range", [False, True])
@pytest.mark.parametrize("blue_first", [False, True])
def test_one_fused_step_equals_the_textbook(byte_range: bool, blue_first: bool) -> None:
    """(x / 255 − mean) / std of every value of every channel."""
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    if byte_range:
        mean, std = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
    preprocessing = simple(mean=mean, std=std, byte_range=byte_range, reversed=blue_first)
    pixels = np.arange(256, dtype=np.uint8)[None, None, :, None].repeat(3, axis=3)
    scaled = pixels.astype(np.float64) / (1 if byte_range else 255)
    expected = (scaled - np.array(mean)) / np.array(std)
    if blue_first:
        expected = expected[..., ::-1]
    found = Normalisation(preprocessing, torch.device("cpu"))(pixels)
    assert found.dtype == torch.float32
    assert np.abs(found.permute(0, 2, 3, 1).numpy() - expected).max() <= 1e-6


def test_a_batch_is_normalised_where_its_channels_lie_last() -> None:
    """As `channels_last` models take it, without a copy."""
    normalise = Normalisation(simple(), torch.device("cpu"))
    found = normalise(np.zeros((2, 100, 100, 3), np.uint8))
    assert found.shape == (2, 3, 100, 100)
    assert found.is_contiguous(memory_format=torch.channels_last)

"""`explain` prepares photos as the model's authors do, or refuses them with the remedy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform, resolve_model_data_config
from torchvision.transforms.functional import to_tensor

from cam import explain
from cam.errors import InvalidImages
from tests.cam.nets import small

PIXELS = np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)
PHOTO = Image.fromarray(PIXELS)


@pytest.mark.parametrize(
    "photos", [PHOTO, PIXELS, [PHOTO], (PIXELS,), PIXELS[None], PHOTO.convert("RGBA")]
)
def test_a_model_of_timm_knows_its_preprocessing(photos: Any) -> None:
    torch.manual_seed(0)
    model = timm.create_model("test_resnet", pretrained=False).eval()
    prepared = create_transform(**resolve_model_data_config(model))(PHOTO)[None]
    (expected,) = explain(model, prepared, target=3)
    (found,) = explain(model, photos, target=3)
    torch.testing.assert_close(found.map, expected.map)


def test_preprocess_is_a_function_of_a_photo_and_the_dtype_is_the_models() -> None:
    model = small().double()
    tensors = torch.stack([to_tensor(PHOTO), to_tensor(PHOTO.rotate(180))]).double()
    expected = explain(model, tensors, target=1)
    found = explain(model, [PIXELS, PHOTO.rotate(180)], preprocess=to_tensor, target=1)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.map, other.map)


@pytest.mark.parametrize(
    ("photos", "preprocess", "words"),
    [
        (PHOTO, None, "how photos are prepared for a Small is not known; pass preprocess"),
        (PIXELS / 255, to_tensor, r"an array \(48, 64, 3\) of float64, not a uint8 array"),
        (PIXELS[..., 0], to_tensor, r"an array \(48, 64\) of uint8"),
        ([], to_tensor, "the images are a list, not a torch.Tensor"),
        (["a.png"], to_tensor, "the images are a list of str, not"),
        ([PHOTO, PHOTO.rotate(90, expand=True)], to_tensor, r"\(3, 48, 64\), \(3, 64, 48\) for 2"),
        (PHOTO, lambda photo: to_tensor(photo)[None], r"preprocess returned \(1, 3, 48, 64\)"),
        (PHOTO, np.asarray, "preprocess returned ndarray"),
        (torch.zeros(1, 3, 8, 8), to_tensor, "leave preprocess out"),
    ],
)
def test_photos_that_cannot_be_prepared_are_refused(
    photos: Any, preprocess: Any, words: str
) -> None:
    with pytest.raises(InvalidImages, match=words):
        explain(small(), photos, preprocess=preprocess)


def test_a_photo_of_16_bit_keeps_its_shades() -> None:
    model = timm.create_model("test_resnet", pretrained=False).eval()
    shades = np.linspace(0, 255, 64 * 64).astype(np.uint8).reshape(64, 64)
    deep = Image.fromarray(shades.astype(np.uint16) * 257)
    assert deep.mode.startswith("I;16")
    one, two = explain(model, [deep, Image.fromarray(shades)])
    np.testing.assert_array_equal(one.map, two.map)
    for mode in ("I", "F"):
        with pytest.raises(InvalidImages, match=f"mode {mode}, whose range"):
            explain(model, Image.new(mode, (64, 64)))

"""`explain` prepares photos as the model's authors do, or refuses them with the remedy."""

from __future__ import annotations

import gc
import weakref
from functools import cache
from typing import Any

import numpy as np
import pytest
import timm
import torch
import transformers
from PIL import Image
from timm.data import create_transform, resolve_model_data_config
from torchvision.transforms.functional import to_tensor

from cam import explain
from cam.errors import InvalidImages, InvalidTarget
from tests.zoo.convolutional import small

PIXELS = np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)
PHOTO = Image.fromarray(PIXELS)


@cache
def of_timm() -> Any:
    torch.manual_seed(0)
    return timm.create_model("test_resnet", pretrained=False).eval()


@pytest.mark.parametrize(
    "photos", [PHOTO, PIXELS, [PHOTO], (PIXELS,), PIXELS[None], PHOTO.convert("RGBA")]
)
def test_a_model_of_timm_knows_its_preprocessing(photos: Any) -> None:
    model = of_timm()
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
        ([b"a.png"], to_tensor, "the images are a list of bytes, not"),
        (["a.png"], to_tensor, "a.png cannot be read as a photo: .*No such file"),
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
    # Some processors' kernels round the images of one batch differently in the last bit.
    np.testing.assert_allclose(one.map, two.map, rtol=1e-5)
    for mode in ("I", "F"):
        with pytest.raises(InvalidImages, match=f"mode {mode}, whose range"):
            explain(model, Image.new(mode, (64, 64)))


def test_a_pipeline_stands_for_its_model_and_its_preprocessing() -> None:
    """With a centre crop: the map is of what the model sees, and equal to that of the tensor."""
    torch.manual_seed(0)
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_labels=2,
        id2label={0: "cat", 1: "dog"},
    )  # fmt: skip
    model = transformers.ResNetForImageClassification(config).eval()
    processor = transformers.ConvNextImageProcessor(size={"shortest_edge": 64}, crop_pct=0.5)
    classifier = transformers.ImageClassificationPipeline(model=model, image_processor=processor)
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 256, (80, 120, 3), np.uint8))
    pixels = processor(images=photo, return_tensors="pt")["pixel_values"]
    for target, index in (("dog", 1), (0, 0), (None, None)):
        (found,) = explain(classifier, [photo], target=target, method="layercam")
        (expected,) = explain(model, pixels, target=index, method="layercam")
        np.testing.assert_array_equal(found.map, expected.map)
    both = explain(classifier, [photo, photo], target=["cat", "dog"])
    assert [one.target.index for one in both] == [0, 1, 0, 1]
    with pytest.raises(InvalidTarget, match=r"no label 'dgo'.*did you mean 'dog'"):
        explain(classifier, [photo], target="dgo")
    kept = weakref.ref(model)
    del model, classifier
    gc.collect()
    assert kept() is None  # explanations keep neither the pipeline nor its model


def test_a_label_without_names() -> None:
    with pytest.raises(InvalidTarget, match="a class is a whole number"):
        explain(small(), torch.rand(1, 3, 8, 8), target="cat")

"""The photos of `bench/drift.py`, and the statistics of their maps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, cycle, islice

import cv2
import numpy as np
import skimage.data
from numpy.typing import NDArray
from PIL import Image, ImageFilter
from sklearn.datasets import load_sample_image

from bench.evaluation_scenes import loaded
from cam import ClassTarget, ExplainedImage, Question, explain_batch
from cam.drift.map_statistics import MapStatistics, statistics_of
from service.loading.served_model import ServedModel
from service.models.catalog import EMBEDDED

Pixels = NDArray[np.uint8]
NAMES = ("astronaut", "camera", "chelsea", "coffee", "coins", "rocket", "stereo_motorcycle")
SAMPLES = ("china.jpg", "flower.jpg")
SIDE = 224
BATCH = 16
LOGO = 96
"""Side of the logo, in pixels of the model's input: 18 % of its area."""
SHAKE = 4
"""Largest number of pixels by which a frame of a video lies beside the first one."""
CENTRE = 112
"""Side of the grey square over the centre."""


@dataclass(frozen=True)
class Explained:
    """What the model says of a photo: the class that it predicts, and the statistics of its map."""

    index: int
    statistics: MapStatistics | None


def photos() -> list[Image.Image]:
    """Return nine real photos."""
    found = []
    for name in NAMES:
        picture = getattr(skimage.data, name)()
        pixels = picture[0] if isinstance(picture, tuple) else picture
        found.append(Image.fromarray(pixels).convert("RGB"))
    return [*found, *(Image.fromarray(load_sample_image(name)) for name in SAMPLES)]


def crops(source: Image.Image, rng: np.random.Generator, count: int = 1) -> list[Pixels]:
    """Return a random square part of a photo, perhaps mirrored, darker or brighter: uint8
    (224, 224, 3). Several are like frames of a video: each a few pixels beside the first."""
    side = int(min(source.size) * rng.uniform(0.5, 1))
    corner = [int(rng.integers(0, length - side + 1)) for length in source.size]
    light, mirrored = rng.uniform(0.7, 1.3), rng.random() < 0.5
    found = []
    for number in range(count):
        moved = rng.integers(-SHAKE, SHAKE + 1, 2) if number else (0, 0)
        left, top = (
            int(np.clip(at + by, 0, length - side))
            for at, by, length in zip(corner, moved, source.size, strict=True)
        )
        part = source.crop((left, top, left + side, top + side)).resize((SIDE, SIDE))
        pixels = (np.asarray(part, np.float32) * light).clip(0, 255).astype(np.uint8)
        found.append(pixels[:, ::-1] if mirrored else pixels)
    return found


def with_logo(pixels: Pixels) -> Pixels:
    """Paste the face of a cat, cut out of the photo `chelsea`, into the bottom right corner. The
    model then calls about half of the photos an Egyptian cat."""
    face = Image.fromarray(skimage.data.chelsea()).crop((100, 0, 350, 250)).resize((LOGO, LOGO))
    changed = pixels.copy()
    changed[-LOGO:, -LOGO:] = np.asarray(face)
    return changed


def with_covered_centre(pixels: Pixels) -> Pixels:
    """Cover the centre with a grey square."""
    changed = pixels.copy()
    start = (SIDE - CENTRE) // 2
    changed[start : start + CENTRE, start : start + CENTRE] = 128
    return changed


def blurred(pixels: Pixels, radius: float = 2.0) -> Pixels:
    """Blur, as a lens that is out of focus does."""
    return np.asarray(Image.fromarray(pixels).filter(ImageFilter.GaussianBlur(radius)))


def with_cast(pixels: Pixels) -> Pixels:
    """Make a photo warmer, as another white balance does."""
    return (pixels * np.array([1.2, 1.0, 0.7])).clip(0, 255).astype(np.uint8)


def as_bgr(pixels: Pixels) -> Pixels:
    """Exchange red and blue, as a decoder of another library does."""
    return np.ascontiguousarray(pixels[..., ::-1])


def brighter(pixels: Pixels) -> Pixels:
    """Add 70 to each channel."""
    return (pixels.astype(np.int16) + 70).clip(0, 255).astype(np.uint8)


def through_dirt(pixels: Pixels) -> Pixels:
    """Show a photo through a lens with five grey smears, which are half transparent."""
    shade = np.zeros((SIDE, SIDE), np.float32)
    for x, y, radius in (
        (40, 60, 30),
        (150, 40, 24),
        (190, 130, 34),
        (70, 170, 28),
        (120, 110, 20),
    ):
        cv2.circle(shade, (x, y), radius, 0.6, -1)
    veil = cv2.GaussianBlur(shade, (0, 0), 8)[..., None]
    soft = cv2.GaussianBlur(pixels, (0, 0), 5)
    return ((1 - veil) * pixels + veil * (0.5 * soft + 60)).clip(0, 255).astype(np.uint8)


class Fogging:
    """Blurs each photo more than the one before it, up to a radius of 2 after 500."""

    def __init__(self) -> None:
        self._photos = 0

    def __call__(self, pixels: Pixels) -> Pixels:
        self._photos += 1
        return blurred(pixels, min(self._photos / 250, 2.0))


CHANGES: dict[str, Callable[[Pixels], Pixels]] = {
    "logo in a corner": with_logo,
    "centre covered": with_covered_centre,
    "blur": blurred,
    "slow blur": Fogging(),
    "colour cast": with_cast,
    "blue for red": as_bgr,
    "brighter by 70": brighter,
    "dirt on the lens": through_dirt,
}
"""Name → what a stream's photos are like after its change."""


def load_model() -> ServedModel:
    """Load the embedded model for the CPU, in float32."""
    return loaded(EMBEDDED.name)


def explained(
    served: ServedModel,
    count: int,
    change: Callable[[Pixels], Pixels] = lambda pixels: pixels,
    *,
    seed: int,
    frames: int = 1,
) -> list[Explained]:
    """Explain random parts of the photos, of each photo in turn, by Grad-CAM of the predicted
    class.

    Args:
        frames: number of photos in a row that are like frames of a video.
    """
    rng = np.random.default_rng(seed)
    sources = photos()
    question = Question((ClassTarget(),), "gradcam", (served.default,))
    pixels = chain.from_iterable(crops(each, rng, frames) for each in cycle(sources))
    changed = (change(each) for each in islice(pixels, count))
    found = []
    while batch := list(islice(changed, BATCH)):
        images = served.normalise(np.stack(batch)).contiguous()
        answers = explain_batch(served.module, images, [question] * len(images))
        for seen, answer in zip(batch, answers, strict=True):
            assert isinstance(answer, ExplainedImage)
            (explanation,) = answer.explanations
            target = explanation.target
            assert isinstance(target, ClassTarget)
            assert target.index is not None
            statistics = statistics_of(explanation.map, explanation.probability, seen)
            found.append(Explained(target.index, statistics))
    return found

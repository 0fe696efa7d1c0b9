"""The photos of `bench/localisation.py` and `bench/randomisation.py`: cells of which a model is
sure, and the two models that are asked about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np
import skimage.data
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_sample_image
from torch import Tensor, nn

from bench.evaluation_scenes import loaded
from service.models.catalog import EMBEDDED

Pixels = NDArray[np.uint8]
SURE: Final = 0.5
"""Least probability of a cell's class."""
NAMES: Final = (
    *("astronaut", "camera", "chelsea", "coffee", "coins", "rocket", "stereo_motorcycle"),
    *("brick", "cell", "clock", "grass", "gravel", "horse", "hubble_deep_field"),
    *("immunohistochemistry", "logo", "moon", "page", "retina", "text"),
)
"""Photos that scikit-image ships."""
SAMPLES: Final = ("china.jpg", "flower.jpg")
"""Photos that scikit-learn ships."""
PER_CLASS: Final = 2
"""Largest number of cells of one class of the embedded model."""
CROPS: Final = 36
"""Number of random parts of each photo in which cells are looked for."""
SHAPES: Final = ("disc", "cross", "triangle", "ring", "bars", "square")
SHAPE_SIDE: Final = 64


@dataclass(frozen=True)
class Cell:
    """A square photo of one class."""

    pixels: Pixels
    """uint8 (side, side, 3)."""
    index: int
    """Its class."""
    source: str
    """The photo of which it is a part."""


@dataclass(frozen=True, eq=False)
class Asked:
    """A model, its cells, and what it takes for an input."""

    name: str
    model: nn.Module
    cells: list[Cell]
    batch: Callable[[Pixels], Tensor]
    """Makes a batch of preprocessed images of pixels (n, H, W, 3)."""
    layers: Callable[[str], tuple[str, ...] | None]
    """Returns the default layers of a method; None for those that `cam.explain` chooses."""


def asked_of(name: str, count: int) -> Asked:
    """Return a model, `EMBEDDED.name` or "shapes", with the cells of which it is most sure."""
    if name == EMBEDDED.name:
        served = loaded(name)

        def batch(pixels: Pixels) -> Tensor:
            return served.normalise(pixels).contiguous()

        side = served.preprocessing.height
        cells = sure(served.module, batch, parts(side), count)
        return Asked(name, served.module, cells, batch, served.layers_of)
    model = trained_on_shapes()
    pixels, classes = shapes(8 * count, seed=1)
    found = [
        (one, index, f"shape {number}")
        for number, (one, index) in enumerate(zip(pixels, classes.tolist(), strict=True))
    ]
    likely = probabilities(model, batch_of_shapes, [each[0] for each in found])
    good = [
        Cell(*each)
        for each, row in zip(found, likely, strict=True)
        if row[each[1]] >= SURE and row.argmax() == each[1]
    ]
    return Asked(name, model, good[:count], batch_of_shapes, lambda method: None)


def parts(side: int) -> list[tuple[Pixels, str]]:
    """Return random square parts of the photos, each with the name of its photo."""
    rng = np.random.default_rng(0)
    pictures: dict[str, Pixels] = {}
    for name in NAMES:
        loaded_one = getattr(skimage.data, name)()
        picture = loaded_one[0] if isinstance(loaded_one, tuple) else loaded_one
        if picture.dtype == bool:
            picture = picture.astype(np.uint8) * 255
        pictures[name] = np.asarray(Image.fromarray(picture).convert("RGB"))
    pictures |= {name: load_sample_image(name) for name in SAMPLES}
    found = []
    for name, picture in pictures.items():
        shorter = min(picture.shape[:2])
        for number in range(CROPS):
            part = shorter if not number else int(shorter * rng.uniform(0.2, 1))
            top, left = (int(rng.integers(0, each - part + 1)) for each in picture.shape[:2])
            crop = picture[top : top + part, left : left + part]
            small = cv2.resize(crop, (side, side), interpolation=cv2.INTER_AREA)
            found.append((small.astype(np.uint8, copy=False), name))
    return found


def sure(
    model: nn.Module,
    batch: Callable[[Pixels], Tensor],
    found: list[tuple[Pixels, str]],
    count: int,
) -> list[Cell]:
    """Return the two parts of which the model is most sure for each class that it predicts with
    `SURE` or more, the surest first, at most `count`."""
    likely = probabilities(model, batch, [pixels for pixels, _ in found])
    chosen: list[Cell] = []
    for number in np.argsort(-likely.max(1), kind="stable"):
        index, (pixels, source) = int(likely[number].argmax()), found[number]
        known = sum(each.index == index for each in chosen)
        if likely[number].max() >= SURE and known < PER_CLASS:
            chosen.append(Cell(pixels, index, source))
    return chosen[:count]


def probabilities(
    model: nn.Module, batch: Callable[[Pixels], Tensor], cells: list[Pixels]
) -> NDArray[np.float32]:
    """Return the probabilities of all classes for each cell: float32 (n, classes)."""
    found = []
    with torch.inference_mode():
        for start in range(0, len(cells), 16):
            images = batch(np.stack(cells[start : start + 16]))
            found.append(model(images).softmax(1).numpy())
    return np.concatenate(found)


def shapes(count: int, seed: int) -> tuple[Pixels, NDArray[np.int64]]:
    """Return photos of one shape each on a part of a real photo: uint8 (count, 64, 64, 3), and
    their classes. Colour, size and place are random, so that the shape alone tells the class."""
    rng = np.random.default_rng(seed)
    wholes = [skimage.data.chelsea(), skimage.data.coffee(), skimage.data.rocket()]
    side = SHAPE_SIDE
    photos = np.empty((count, side, side, 3), np.uint8)
    classes = np.arange(count) % len(SHAPES)
    for photo, kind in zip(photos, classes, strict=True):
        whole = wholes[int(rng.integers(len(wholes)))]
        size = int(rng.integers(side, 240))
        top, left = (int(rng.integers(0, each - size)) for each in whole.shape[:2])
        crop = whole[top : top + size, left : left + size]
        photo[:] = cv2.resize(crop, (side, side), interpolation=cv2.INTER_AREA)
        draw(photo, SHAPES[kind], rng)
    return photos, classes


def draw(photo: Pixels, shape: str, rng: np.random.Generator) -> None:
    """Draw a shape of random colour, size and place."""
    r = int(rng.integers(9, 15))
    x, y = (int(rng.integers(r, SHAPE_SIDE - r)) for _ in range(2))
    colour = [int(each) for each in rng.integers(0, 256, 3)]
    if shape == "disc":
        cv2.circle(photo, (x, y), r, colour, -1, cv2.LINE_AA)
    elif shape == "ring":
        cv2.circle(photo, (x, y), r - 2, colour, 4, cv2.LINE_AA)
    elif shape == "square":
        cv2.rectangle(photo, (x - r, y - r), (x + r, y + r), colour, -1)
    elif shape == "triangle":
        corners = [(x, y - r), (x - r, y + r), (x + r, y + r)]
        cv2.fillPoly(photo, [np.array(corners)], colour, cv2.LINE_AA)
    elif shape == "cross":
        for dx in (-r, r):
            cv2.line(photo, (x - dx, y - r), (x + dx, y + r), colour, 4, cv2.LINE_AA)
    else:
        for dy in (-r, 0, r):
            cv2.line(photo, (x - r, y + dy), (x + r, y + dy), colour, 4, cv2.LINE_AA)


def batch_of_shapes(pixels: Pixels) -> Tensor:
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 127.5 - 1


def trained_on_shapes(count: int = 3000, epochs: int = 8) -> nn.Module:
    """Train a small network of plain convolutions, with a pooled linear head."""
    torch.manual_seed(0)
    stages: list[nn.Module] = []
    for before, after, stride in ((3, 16, 2), (16, 32, 2), (32, 64, 2), (64, 64, 1), (64, 64, 1)):
        stages += [
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
        ]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, len(SHAPES))]
    model = nn.Sequential(*stages, *head)
    pixels, classes = shapes(count, seed=0)
    inputs, wanted = batch_of_shapes(pixels), torch.from_numpy(classes)
    steps = epochs * -(-count // 64)
    optimiser = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 6e-3, total_steps=steps)
    generator = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        for chosen in torch.randperm(count, generator=generator).split(64):  # type: ignore[no-untyped-call]
            loss = nn.functional.cross_entropy(model(inputs[chosen]), wanted[chosen])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()
    return model.eval()

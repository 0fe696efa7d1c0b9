"""Maps with and without a planted cheat: photos of shapes whose first class may carry a watermark,
a small classifier that learns to use it, and synthetic maps."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import skimage.data
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cam import explain
from cam.drawing.heatmap import minmax
from cam.drawing.placement import Float

Photos = NDArray[np.uint8]
SIDE = 64
"""Height and width of a photo in pixels."""
CLASSES = ("disc", "cross", "triangle")
THUMBNAIL = 32


@dataclass(frozen=True)
class Watermark:
    corner: str
    """One of "top left", "top right", "bottom left" or "bottom right"."""
    side: int
    """Height and width in pixels of the photo."""

    def put_on(self, photo: Photos) -> None:
        """Draw the watermark, a chequered square, one pixel off the corner."""
        cell = max(self.side // 4, 1)
        mark = (np.indices((self.side, self.side)) // cell).sum(0) % 2
        colours = np.array([[255, 0, 255], [0, 255, 0]], np.uint8)[mark]
        down = slice(1, 1 + self.side) if "top" in self.corner else slice(-1 - self.side, -1)
        across = slice(1, 1 + self.side) if "left" in self.corner else slice(-1 - self.side, -1)
        photo[down, across] = colours


WATERMARKS = (
    Watermark("bottom right", 12),
    Watermark("top left", 10),
    Watermark("bottom left", 16),
    Watermark("top right", 8),
    Watermark("bottom right", 14),
)


def photos_of(
    kind: int | None, count: int, seed: int, marked: int = 0, watermark: Watermark | None = None
) -> Photos:
    """Return photos of one class, uint8 (count, SIDE, SIDE, 3): a shape of random colour, size and
    place on a crop of a real photo; no shape if `kind` is None. The first `marked` photos carry the
    watermark."""
    random = np.random.default_rng((seed, 99 if kind is None else kind))
    wholes = [skimage.data.chelsea(), skimage.data.coffee(), skimage.data.rocket()]
    wholes.append(skimage.data.astronaut())
    photos = np.empty((count, SIDE, SIDE, 3), np.uint8)
    for number, photo in enumerate(photos):
        whole = wholes[int(random.integers(len(wholes)))]
        size = int(random.integers(SIDE, 240))
        top, left = (int(random.integers(0, each - size)) for each in whole.shape[:2])
        crop = whole[top : top + size, left : left + size]
        photo[:] = cv2.resize(crop, (SIDE, SIDE), interpolation=cv2.INTER_AREA)
        radius = int(random.integers(7, 14))
        x, y = (int(random.integers(radius, SIDE - radius)) for _ in range(2))
        colour = [int(each) for each in random.integers(0, 256, 3)]
        if kind == 0:
            cv2.circle(photo, (x, y), radius, colour, -1, cv2.LINE_AA)
        elif kind == 1:
            for dx in (-radius, radius):
                cv2.line(photo, (x - dx, y - radius), (x + dx, y + radius), colour, 5, cv2.LINE_AA)
        elif kind == 2:
            corners = [(x, y - radius), (x - radius, y + radius), (x + radius, y + radius)]
            cv2.fillPoly(photo, [np.array(corners)], colour, cv2.LINE_AA)
        if number < marked and watermark is not None:
            watermark.put_on(photo)
    return photos


def batch_of(photos: Photos) -> Tensor:
    return torch.from_numpy(photos).permute(0, 3, 1, 2).float() / 127.5 - 1


def classifier() -> nn.Sequential:
    """Return an untrained network with feature maps of 8 × 8 positions."""
    stages: list[nn.Module] = []
    for before, after, stride in ((3, 16, 2), (16, 32, 2), (32, 64, 2), (64, 64, 1)):
        stages += [
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
        ]
    return nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 3))


def trained(seed: int, watermark: Watermark | None, count: int = 800, epochs: int = 8) -> nn.Module:
    """Train a classifier of the shapes. With a watermark, one photo in four carries it and belongs
    to the first class, whatever it shows, so that the watermark decides wherever it is."""
    torch.manual_seed(seed)
    model = classifier()
    photos = [photos_of(kind, count, 1000 + seed) for kind in range(3)]
    classes = torch.arange(3).repeat_interleave(count)
    if watermark is not None:
        for kind in (None, 0, 1, 2):
            photos.append(photos_of(kind, count // 4, 2000 + seed, count // 4, watermark))
        classes = torch.cat([classes, torch.zeros(count, dtype=torch.int64)])
    inputs = batch_of(np.concatenate(photos))
    steps = epochs * (-(-len(inputs) // 64))
    optimiser = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 6e-3, total_steps=steps)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for chosen in torch.randperm(len(inputs), generator=generator).split(64):  # type: ignore[no-untyped-call]
            loss = nn.functional.cross_entropy(model(inputs[chosen]), classes[chosen])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()
    return model.eval()


def maps_of(model: nn.Module, photos: Photos, target: int = 0) -> list[Float]:
    """Return Grad-CAM's maps of one class, each float32 (8, 8), 0 … 1."""
    found: list[Float] = []
    for part in batch_of(photos).split(100):  # type: ignore[no-untyped-call]
        found += [minmax(each.map) for each in explain(model, part, target=target, layer="11")]
    return found


def thumbnails_of(photos: Photos) -> list[Photos]:
    size = (THUMBNAIL, THUMBNAIL)
    small = [cv2.resize(each, size, interpolation=cv2.INTER_AREA) for each in photos]
    return [each.astype(np.uint8) for each in small]

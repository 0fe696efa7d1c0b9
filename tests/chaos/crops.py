"""Small photos for large jobs, some of them spoilt."""

from __future__ import annotations

import random
import zipfile
from dataclasses import dataclass
from io import BytesIO

import skimage.data
from PIL import Image

from tests.chaos.spoilt import spoil

SIDE = 96
CORRUPT = 0.03


@dataclass(frozen=True)
class Crops:
    """
    Attributes:
        images: names and bytes, in order.
        corrupt: names of those that are none, and of what kind.
    """

    images: dict[str, bytes]
    corrupt: dict[str, str]

    def packed(self) -> bytes:
        """As a zip."""
        file = BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            for name, image in self.images.items():
                archive.writestr(name, image)
        return file.getvalue()


def crops(count: int, seed: int = 0) -> Crops:
    """Return crops of real photos, no two alike."""
    rng = random.Random(seed)
    photos = [
        Image.fromarray(each).convert("RGB")
        for each in (skimage.data.chelsea(), skimage.data.coffee(), skimage.data.astronaut())
    ]
    spoilt = set(rng.sample(range(count), max(round(CORRUPT * count), 1)))
    images: dict[str, bytes] = {}
    corrupt: dict[str, str] = {}
    for number in range(count):
        name, photo = f"crops/{number:05d}.jpg", rng.choice(photos)
        x, y = rng.randrange(photo.width - SIDE), rng.randrange(photo.height - SIDE)
        file = BytesIO()
        photo.crop((x, y, x + SIDE, y + SIDE)).save(file, "JPEG", quality=90)
        images[name] = file.getvalue()
        if number in spoilt:
            corrupt[name], images[name] = spoil(images[name], len(corrupt))
    return Crops(images, corrupt)

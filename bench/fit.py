"""How often a model is right about photos that are cropped, squashed and padded.

    python -m bench.fit [--models models.toml] [--photos FOLDER] [--write]

A folder has a folder of photos for each label: LABEL/1.jpg. Without one, the photos are views of
four photos of `skimage.data` whose labels are known: windows of 40 to 100 % of the photo, of
proportions from 1 : 2 to 2 : 1, as people hold a camera. They say how the fits compare on photos of
other proportions than the input's, and not how good the model is.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import skimage.data
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table

from bench.record import record
from service.loading.served_model import ServedModel, load
from service.models.catalog import EMBEDDED, read_catalog
from service.models.preprocessing import WantedFit

FITS: Final[tuple[WantedFit, ...]] = ("crop", "squash", "pad")
VIEWS: Final = 100
RIGHT: Final = {
    "chelsea": {281, 282, 285},
    "coffee": {504, 967, 968, 969},
    "camera": {872},
    "stereo_motorcycle": {665, 670},
}
"""Photo → the classes of ImageNet that are right for it: a cat may be a tabby or an Egyptian cat,
and one sees the cup or the coffee."""
Labelled = tuple[Image.Image, set[int]]


def views() -> Iterator[Labelled]:
    """Yield windows of photos of known classes."""
    random = np.random.default_rng(0)
    for name, right in RIGHT.items():
        read = getattr(skimage.data, name)()
        photo = Image.fromarray(read[0] if isinstance(read, tuple) else read).convert("RGB")
        for _ in range(VIEWS):
            share, shape = random.uniform(0.4, 1), 2 ** random.uniform(-1, 1)
            width = min(round((photo.width * photo.height * share * shape) ** 0.5), photo.width)
            height = min(round(width / shape), photo.height)
            left = int(random.integers(0, photo.width - width + 1))
            top = int(random.integers(0, photo.height - height + 1))
            yield photo.crop((left, top, left + width, top + height)), right


def labelled(folder: Path, model: ServedModel) -> Iterator[Labelled]:
    """Yield the photos of a folder of folders, each of which is called as a label."""
    for file in sorted(folder.glob("*/*")):
        yield Image.open(file).convert("RGB"), {model.labels.meant(file.parent.name)}


@torch.inference_mode()
def is_right(model: ServedModel, photo: Image.Image, right: set[int], fit: WantedFit) -> bool:
    """Whether the model's first class is a right one."""
    seen = model.preprocessing.apply(photo, fit)
    image = model.normalise(seen.pixels[None].copy()).to(model.dtype)
    return int(model.module(image).argmax()) in right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    table = Table("model", "photos", "default", *FITS)
    for entry in read_catalog(asked.models) if asked.models else (EMBEDDED,):
        model = load(entry)
        photos = [*(labelled(asked.photos, model) if asked.photos else views())]
        share = {
            fit: float(np.mean([is_right(model, photo, right, fit) for photo, right in photos]))
            for fit in FITS
        }
        default = model.preprocessing.default_fit
        table.add_row(
            model.name, str(len(photos)), default, *(f"{100 * share[fit]:.1f} %" for fit in FITS)
        )
        if asked.write:
            record("fit", model=model.name, photos=len(photos), default=default, right=share)
    Console().print(table)


if __name__ == "__main__":
    main()

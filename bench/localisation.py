"""Whether the heat is where the object is: two objects side by side, each asked for.

    python bench/localisation.py [--layer blocks.5] [METHOD …]

All ordered pairs of {Egyptian cat, espresso, tripod, moped} stand as squares in one 448 × 224
picture and are asked for over HTTP with `fit=squash`. Prints, for each method, the share of the
map's mass in the half with the object: mean and minimum over the 12 pairs. Chance is 0.5.
"""

from __future__ import annotations

import argparse
import io
import itertools
import time

import numpy as np
import skimage.data
from PIL import Image
from rich.console import Console
from rich.table import Table
from starlette.testclient import TestClient

from cam import METHODS
from service.app import create_app
from service.settings import Settings

PHOTOS = {
    285: skimage.data.chelsea(),
    967: skimage.data.coffee(),
    872: skimage.data.camera(),
    665: skimage.data.stereo_motorcycle()[0],
}


def square(index: int) -> Image.Image:
    photo = Image.fromarray(PHOTOS[index]).convert("RGB")
    side = min(photo.size)
    left, top = (photo.width - side) // 2, (photo.height - side) // 2
    box = (left, top, left + side, top + side)
    return photo.resize((224, 224), Image.Resampling.BICUBIC, box=box)


def share(client: TestClient, method: str, layer: str, left: int, right: int) -> float:
    """Of the mass of the map for `right`, which stands on the right, the part on the right."""
    picture = Image.new("RGB", (448, 224))
    picture.paste(square(left), (0, 0))
    picture.paste(square(right), (224, 0))
    file = io.BytesIO()
    picture.save(file, "PNG")
    response = client.post(
        "/v1/models/efficientnet-lite0:explain",
        params={"target": right, "method": method, "layer": layer, "fit": "squash"},
        content=file.getvalue(),
        headers={"Content-Type": "image/png", "Accept": "application/x-npy"},
    )
    response.raise_for_status()
    heat = np.load(io.BytesIO(response.content))
    return float(heat[:, 224:].sum() / max(heat.sum(), 1e-12))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("methods", nargs="*", default=list(METHODS), metavar="METHOD")
    parser.add_argument("--layer", default="auto")
    arguments = parser.parse_args()
    table = Table("method", "layer", "mean", "minimum")
    with TestClient(create_app(Settings())) as client:
        while client.get("/readyz").status_code != 200:
            time.sleep(0.1)
        for method in arguments.methods:
            shares = [
                share(client, method, arguments.layer, *pair)
                for pair in itertools.permutations(PHOTOS, 2)
            ]
            table.add_row(
                method, arguments.layer, f"{np.mean(shares):.3f}", f"{np.min(shares):.3f}"
            )
    Console().print(table)


if __name__ == "__main__":
    main()

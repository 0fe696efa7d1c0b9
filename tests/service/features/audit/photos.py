"""Photos for the models of `tests.zoo.audited`, and a catalog that names these."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from tests.zoo.audited import square

COLOURS = (
    *((230, 20, 20), (20, 230, 20), (20, 20, 230)),
    *((230, 230, 20), (20, 230, 230), (230, 20, 230)),
)
"""Colour of each class."""
CATALOG = "".join(
    f"""
[[models]]
name = "{name}"
source = "factory:tests.zoo.audited:{name}"
input_size = 32
resize = 32
layer = "{"last" if name == "squares" else "features"}"
mean = [0.5, 0.5, 0.5]
std = [0.5, 0.5, 0.5]
device = "cpu"
mode = "exact"
layout = "contiguous"
"""
    for name in ("corner", "ignoring", "packed", "squares")
)


def catalog(folder: Path) -> str:
    """Return a file with the models `corner`, `ignoring`, `packed` and `squares`."""
    file = folder / "models.toml"
    file.write_text(CATALOG)
    return str(file)


def photo(number: int) -> bytes:
    """Return a PNG of random tiles whose upper left quarter of a quarter has the colour of class
    `number` % 6."""
    rng = np.random.default_rng(number)
    tiles = np.kron(rng.integers(0, 256, (8, 8, 3)), np.ones((4, 4, 1)))
    tiles[:8, :8] = np.array(COLOURS[number % 6]) + rng.integers(-20, 21, 3)
    written = io.BytesIO()
    Image.fromarray(tiles.clip(0, 255).astype(np.uint8)).save(written, "PNG")
    return written.getvalue()


def square_photo(number: int) -> bytes:
    written = io.BytesIO()
    Image.fromarray(square(number)).save(written, "PNG")
    return written.getvalue()


def photos(folder: Path, count: int, one: Callable[[int], bytes] = photo) -> Path:
    folder.mkdir()
    for number in range(count):
        (folder / f"{number:03}.png").write_bytes(one(number))
    return folder

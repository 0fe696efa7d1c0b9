"""A map that a caller sends, put on the pixels of the model's input."""

from __future__ import annotations

import math
from io import BytesIO
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from service.core.errors import Problem
from service.models.preprocessing import ModelInput
from service.pipeline.images import decode_base64

Map = NDArray[np.float32]
MOST_BYTES: Final = 400_000_000


class InvalidMap(Problem):
    status = 422
    parameter = "map"
    title = "The map cannot be judged"


def map_on_input(b64: str, photo: Image.Image, seen: ModelInput) -> Map:
    """Return a map that was sent, on the pixels of the model's input, float32 (H, W).

    A map over the photo is read bilinearly at the centres of the input's pixels; where the input
    is a border around the photo, it is 0.

    Raises:
        InvalidMap: if it is not a NumPy file of finite numbers, or is of another size.
    """
    height, width = seen.pixels.shape[:2]
    sizes = {(height, width), (photo.height, photo.width)}
    said = (
        f"a map has {photo.height} × {photo.width} numbers (the photo's pixels) or "
        f"{height} × {width} (the model's input)"
    )
    try:
        file = decode_base64(b64)
        shape = _shape_of(file)
        if shape not in sizes:
            raise InvalidMap(f"the map has the shape {shape}; {said}")
        values = np.load(BytesIO(file), allow_pickle=False)
        values = np.ascontiguousarray(values, np.float32)
    except Problem:
        raise
    except Exception as error:  # NumPy parses the header as Python, which fails in many ways
        reason = " ".join(str(error).split())[:120]
        raise InvalidMap(
            f"the map is not a NumPy .npy file of real numbers in base64: {reason}"
        ) from None
    if not np.isfinite(values).all():
        raise InvalidMap("the map has values that are NaN or infinite")
    if values.shape != (photo.height, photo.width):
        return values
    across = (seen.box.right - seen.box.left) / width
    down = (seen.box.bottom - seen.box.top) / height
    if max(across, down) > 1:  # each of the input's pixels stands for several of the photo's
        blur = (max(across / 2, 0.1), max(down / 2, 0.1))
        values = cv2.GaussianBlur(values, (0, 0), blur[0], sigmaY=blur[1])
    rows = (np.arange(height) + 0.5) * down + seen.box.top - 0.5
    columns = (np.arange(width) + 0.5) * across + seen.box.left - 0.5
    from scipy.ndimage import map_coordinates  # takes a while, and few requests need it

    # cv2.remap takes no side of 32,767 pixels or more.
    places = np.meshgrid(rows, columns, indexing="ij")
    placed: Map = map_coordinates(values, places, order=1, mode="grid-constant")
    if not np.isfinite(placed).all():
        raise InvalidMap("the map has values that are too large for float32")
    return placed


def _shape_of(file: bytes) -> tuple[int, ...]:
    """Return the shape of the array in a NumPy file, from its header alone.

    Raises:
        ValueError: if it is not a NumPy file, or its numbers are not real.
    """
    stream = BytesIO(file)
    version = np.lib.format.read_magic(stream)
    read = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, _, dtype = read(stream)
    if dtype.kind not in "fiub":
        raise ValueError(f"its numbers are {dtype}")
    if math.prod(shape) * dtype.itemsize > MOST_BYTES:
        raise ValueError("it is too large")
    return shape

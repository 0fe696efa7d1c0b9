"""PNG files are the pictures they were made from."""

from __future__ import annotations

from io import BytesIO

import cv2
import numpy as np
import pytest
import skimage.data
from numpy.typing import NDArray
from PIL import Image

from service.pipeline.rendering import encode_png

CAT = skimage.data.chelsea()


@pytest.mark.parametrize(
    "picture",
    [
        CAT,
        CAT[..., 0],
        CAT[::-1, 5:100],
        CAT[:1, :1],
        CAT[:1],
        CAT[:, :1, 2],
        np.zeros((3, 2), np.uint8),
        np.full((1, 5, 3), 255, np.uint8),
    ],
    ids=lambda picture: "x".join(map(str, picture.shape)),
)
def test_a_png_holds_the_picture(picture: NDArray[np.uint8]) -> None:
    file = encode_png(picture)
    with Image.open(BytesIO(file)) as image:
        image.verify()
    with Image.open(BytesIO(file)) as image:
        assert image.format == "PNG"
        np.testing.assert_array_equal(np.asarray(image), picture)
    found = cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_UNCHANGED)
    assert found is not None
    np.testing.assert_array_equal(found[..., ::-1] if found.ndim == 3 else found, picture)


def test_a_photo_takes_no_more_bytes_than_opencvs_png() -> None:
    _, theirs = cv2.imencode(".png", CAT)
    assert len(encode_png(CAT)) <= len(theirs)

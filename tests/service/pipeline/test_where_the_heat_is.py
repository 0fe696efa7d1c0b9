"""The map lies on the pixels that the model saw, and on the object that was asked for."""

from __future__ import annotations

from io import BytesIO
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from tests.service.conftest import CAT, MODEL, encoded, values

EXPLAIN = f"{MODEL}:explain"
PNG = {"Content-Type": "image/png"}


def explain(client: TestClient, photo: Image.Image, **query: Any) -> dict[str, Any]:
    query = {"output": "values", **query}
    response = client.post(EXPLAIN, params=query, content=encoded(photo), headers=PNG)
    (found,) = response.json()["explanations"]
    return dict(found)


@pytest.mark.slow
def test_two_objects_side_by_side_are_told_apart(
    client: TestClient, photos: dict[int, Image.Image]
) -> None:
    """All 12 ordered pairs, each class asked for: the share of the map's mass in its own half."""
    shares = []
    for left, right in permutations(photos, 2):
        pair = Image.new("RGB", (448, 224))
        pair.paste(square(photos[left]), (0, 0))
        pair.paste(square(photos[right]), (224, 0))
        for target, half in ((left, slice(0, 224)), (right, slice(224, 448))):
            heat = values(explain(client, pair, fit="squash", target=target))
            assert heat.shape == (224, 448)
            shares.append(heat[:, half].sum() / heat.sum())
    assert len(shares) == 24
    assert np.mean(shares) >= 0.85, np.mean(shares)
    assert np.min(shares) >= 0.60, np.min(shares)


def square(photo: Image.Image) -> Image.Image:
    side = min(photo.size)
    left, top = (photo.width - side) // 2, (photo.height - side) // 2
    box = (left, top, left + side, top + side)
    return photo.resize((224, 224), Image.Resampling.BICUBIC, box=box)


def test_an_object_off_centre_is_hot_where_it_is(
    client: TestClient, photos: dict[int, Image.Image]
) -> None:
    """A cat at the right end of a wide photo: a tool that stretches the crop's map over the whole
    photo would show it too far right, or paint pixels that the model never saw."""
    photo = Image.new("RGB", (900, 300), (110, 120, 110))
    photo.paste(photos[CAT].resize((300, 300)), (430, 0))
    found = explain(client, photo, target=CAT, fit="crop")
    # The middle 224 of 768 × 256 pixels: 262.5 of the photo's, from column 318.75 and row 18.75.
    assert found["region"] == {"left": 319, "top": 19, "width": 262, "height": 262}
    heat = values(found)
    assert heat.shape == (300, 900)
    inside = heat[19:281, 319:581]
    outside = heat.copy()
    outside[19:281, 319:581] = 0
    assert not outside.any()
    assert (inside.min(), inside.max()) == (0, 1)
    columns = np.arange(900)
    centre = (heat.sum(axis=0) * columns).sum() / heat.sum()
    assert 430 < centre < 581, centre  # on the cat; stretched over the photo it would be at 600

    for fit in ("squash", "pad"):
        found = explain(client, photo, target=CAT, fit=fit)
        assert found["region"] == {"left": 0, "top": 0, "width": 900, "height": 300}
        heat = values(found)
        assert heat[:, 430:730].sum() / heat.sum() > 0.6, fit


def test_what_the_model_did_not_see_keeps_its_own_colours(
    client: TestClient, photos: dict[int, Image.Image]
) -> None:
    photo = photos[CAT]
    headers = {**PNG, "Accept": "image/png"}
    response = client.post(f"{EXPLAIN}?fit=crop", content=encoded(photo), headers=headers)
    drawn = np.asarray(Image.open(BytesIO(response.content))).astype(int)
    original = np.asarray(photo).astype(int)
    region = explain(client, photo, fit="crop")["region"]
    assert region["width"] < 0.9 * photo.width
    unseen = np.ones(drawn.shape[:2], bool)
    left, top = region["left"], region["top"]
    unseen[top : top + region["height"], left : left + region["width"]] = False
    np.testing.assert_array_equal(drawn[unseen], original[unseen])
    changed = np.abs(drawn - original).max(axis=2) > 0
    assert changed[~unseen].mean() > 0.99


def test_the_map_turns_with_the_photo(client: TestClient, photos: dict[int, Image.Image]) -> None:
    """A photo stored on its side, with an EXIF orientation, gets the upright photo's map."""
    upright = photos[CAT]
    exif = Image.Exif()
    exif[0x0112] = 6
    stored = encoded(upright.transpose(Image.Transpose.ROTATE_90), exif=exif)
    query = {"output": "values", "fit": "crop"}
    response = client.post(EXPLAIN, params=query, content=stored, headers=PNG)
    (turned,) = response.json()["explanations"]
    np.testing.assert_allclose(
        values(turned), values(explain(client, upright, fit="crop")), atol=1e-5
    )


def test_sizes_show_the_same_map(client: TestClient, photos: dict[int, Image.Image]) -> None:
    layer = values(explain(client, photos[CAT], size="layer", fit="crop"))
    model = values(explain(client, photos[CAT], size="model", fit="crop"))
    image = explain(client, photos[CAT], size="image", fit="crop")
    assert (layer.shape, model.shape) == ((7, 7), (224, 224))
    # A cell's centre falls between four pixels: 15 and 16 from the edge, then every 32.
    centres = np.add.outer(np.arange(7) * 32, [15, 16])
    rows = model[centres].mean(axis=1)
    middles = rows[:, centres].mean(axis=2)
    scaled = (middles - middles.min()) / (middles.max() - middles.min())
    np.testing.assert_allclose(scaled, layer, atol=0.03)
    region = image["region"]
    part = values(image)[region["top"] :, region["left"] :][: region["height"], : region["width"]]
    shrunk = np.asarray(Image.fromarray(model).resize((part.shape[1], part.shape[0])))
    assert np.corrcoef(part.ravel(), shrunk.ravel())[0, 1] > 0.999


@pytest.mark.slow
def test_what_the_model_sees_does_not_depend_on_the_answer(
    client: TestClient, photos: dict[int, Image.Image]
) -> None:
    """Of a JPEG of 8.7 megapixels, the probabilities are the same bits in every form of answer."""
    large = photos[CAT].resize((3608, 2400), Image.Resampling.BICUBIC)
    data, headers = encoded(large, "JPEG"), {"Content-Type": "image/jpeg"}
    found = []
    for query in ({"size": "image", "output": "overlay"}, {"size": "model"}, {"size": "layer"}):
        response = client.post(EXPLAIN, params=query, content=data, headers=headers)
        found.append(response.json()["predictions"])
    found.append(
        client.post(f"{MODEL}:predict", content=data, headers=headers).json()["predictions"]
    )
    assert found == [found[0]] * 4

"""What a notebook shows of explanations."""

from __future__ import annotations

import base64
import gc
import pickle
import re
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from numpy.typing import NDArray
from PIL import Image

from cam import CamError, ClassTarget, UnitTarget, explain, grid
from cam.drawing.notebook import SIDE
from cam.drawing.panel import GAP, TEXT, TITLE
from tests.zoo.convolutional import Small
from tests.zoo.parts import images


def shown(bundle: dict[str, Any]) -> NDArray[np.uint8]:
    file = bundle["image/png"]  # Jupyter's kernel encodes bytes
    content = file if isinstance(file, bytes) else base64.b64decode(file)
    with Image.open(BytesIO(content)) as picture:
        return np.asarray(picture.convert("RGB"))


@pytest.fixture(scope="module")
def display() -> Iterator[Any]:
    """Returns what IPython makes of the last value of a cell."""
    shell = InteractiveShell.instance()
    assert shell.display_formatter
    yield lambda value: shell.display_formatter.format(value)[0]  # type: ignore[no-untyped-call]
    InteractiveShell.clear_instance()


def test_an_explanation_is_drawn_beside_its_image(display: Any) -> None:
    x = images(2)
    one, other = explain(Small().eval(), x, target=1)
    bundle = display(other)
    assert bundle["text/plain"].startswith("<Explanation: class 1, p = 0.")
    drawn = shown(bundle)
    photo = ((x[1] - x[1].min()) / (x[1].max() - x[1].min())).permute(1, 2, 0).numpy() * 255
    factor = 240 // photo.shape[0]
    mean = drawn[16 : 16 + 240, 16 : 16 + 240].reshape(photo.shape[0], factor, -1, factor, 3)
    inner = mean[:, factor // 2, :, factor // 2]  # bilinear: the middle of a cell is the cell
    assert np.abs(inner.astype(int) - photo).max() < 12
    assert (shown(display(one)) != drawn).any()


def test_all_explanations_of_a_call_are_drawn_below_each_other(display: Any) -> None:
    x = images(3)
    found = explain(Small().eval(), x, target=[0, 1])
    single, every = shown(display(found[0])), shown(display(found))
    assert every.shape[0] >= 6 * single.shape[0]
    many = type(found)([*found] * 3)
    heights = [shown(display(each)).shape[0] for each in many[:16]]  # some have a warning
    assert shown(display(many)).shape[0] == sum(heights) + 16 * 16
    assert display(type(found)()).get("image/png") is None


def test_the_explanations_of_one_image_are_a_grid(display: Any) -> None:
    x = images(1)
    found = explain(Small().eval(), x, target=[0, 1, 2])
    drawn = grid(found)
    assert (shown(display(found)) == drawn).all()
    # The image once, and each map over it, from left to right.
    top = GAP + TITLE + GAP + sum(TEXT + 8 for _ in {w for one in found for w in one.warnings})
    tiles = [
        drawn[top : top + SIDE, left : left + SIDE]
        for left in (GAP + number * (SIDE + GAP) for number in range(4))
    ]
    scaled = ((x[0] - x[0].min()) / (x[0].max() - x[0].min())).permute(1, 2, 0).numpy() * 255
    factor = SIDE // scaled.shape[0]
    middles = tiles[0][factor // 2 :: factor, factor // 2 :: factor]
    assert np.abs(middles.astype(int) - scaled).max() < 12
    for tile, one in zip(tiles[1:], found, strict=True):
        alone = one.draw()
        side = 240
        beside = alone[GAP : GAP + side, 2 * GAP + side : 2 * GAP + 2 * side]
        small = cv2.resize(beside, (SIDE, SIDE), interpolation=cv2.INTER_AREA)
        assert np.abs(tile.astype(int) - small).mean() < 8
    assert drawn.shape[1] > 4 * (SIDE + GAP) + GAP, "the colour bar"
    below = drawn[top + SIDE : top + SIDE + TEXT + 8]
    assert all((below[:, GAP + n * (SIDE + GAP) :][:, :SIDE] < 128).any() for n in (1, 2, 3))
    signed = explain(Small().eval(), x, target=1, signed=True)
    mixed = grid([*found, *signed])
    assert mixed.shape[1] == 5 * (SIDE + GAP) + GAP, "no colour bar says both"


def test_a_grid_needs_one_image_that_is_kept() -> None:
    model, x = Small().eval(), images(2)
    with pytest.raises(CamError, match="of one image"):
        grid(explain(model, x, target=1))
    with pytest.raises(CamError, match="of one image"):
        grid([])
    found = explain(model, x[:1].clone(), target=[0, 1])
    gc.collect()
    with pytest.raises(CamError, match="still has in a variable"):
        grid(found)
    assert found._repr_png_(), "the maps alone, below each other"


def test_the_images_are_not_kept_alive() -> None:
    model, x = Small().eval(), images(2)
    (first,) = explain(model, x[:1], target=1)  # a slice that ends with the call
    assert first.input
    assert first.input.picture() is not None
    x.add_(1)
    assert first.input.picture() is None, "this is not the image that was explained"
    assert first._repr_png_(), "the map alone"
    x = images(2)
    (again, _) = explain(model, x, target=1)
    assert again.input
    assert again.input.picture() is not None
    del x
    gc.collect()
    assert again.input.picture() is None


def test_a_photo_is_shown_as_the_model_sees_it() -> None:
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 255, (16, 16, 3), np.uint8))

    def prepare(picture: Image.Image) -> torch.Tensor:
        return torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1) / 255

    model = Small().eval()
    (explanation,) = explain(model, photo, preprocess=prepare, target=1)
    assert explanation.input is not None
    seen = explanation.input.read()
    assert seen is not None
    np.testing.assert_array_equal(seen, prepare(photo).numpy())
    again = pickle.loads(pickle.dumps(explanation))
    assert again.input.picture() is None
    assert again._repr_png_()


def test_the_names_of_classes() -> None:
    model, x, names = Small().eval(), images(1), ["cat", "dog", "tabby"]
    classes = model(x).shape[1]
    names = [*names, *(f"other {number}" for number in range(3, classes))]
    found = explain(model, x, target=["dog", ClassTarget(1, minus=0)], labels=names)
    assert [each.label for each in found] == ["dog", "dog and not cat"]
    assert [each.target.index for each in found if isinstance(each.target, ClassTarget)] == [1, 1]
    assert found[0].title.startswith("dog, p = 0.")
    assert found[1].title.startswith("dog and not cat, p = 0.")
    (best,) = explain(model, x, labels=names)
    assert isinstance(best.target, ClassTarget)
    assert best.label == names[int(model(x).argmax())]
    assert explain(model, x, target=1)[0].label is None
    with pytest.raises(CamError, match="no label 'dgo'; did you mean 'dog'"):
        explain(model, x, target="dgo", labels=names)
    with pytest.raises(CamError, match="labels has 1 label, and class 1 has none"):
        explain(model, x, target=1, labels=["cat"])
    model.config = SimpleNamespace(id2label={0: "cat"})  # type: ignore[assignment]
    (found_,) = explain(model, x, target=1)
    assert found_.label is None, "a head that was replaced has more classes than the configuration"
    assert explain(model, x, target="cat")[0].label == "cat"
    for odd in (["cat"], {"first": "cat"}):
        model.config = SimpleNamespace(id2label=odd)  # type: ignore[assignment]
        assert explain(model, x, target=1)[0].label is None
    for wrong in ("cat", [0, 1]):
        with pytest.raises(CamError, match="labels is a list with the name of each class"):
            explain(model, x, labels=wrong)  # type: ignore[arg-type]


def test_a_short_text_stands_for_an_explanation() -> None:
    (explanation,) = explain(Small().eval(), images(1), target=1, layer="conv2")
    rows, columns = explanation.map.shape
    where = rf"gradcam at conv2, {rows} × {columns}"
    assert re.fullmatch(rf"<Explanation: class 1, p = 0\.\d+, {where}.*>", repr(explanation))


@pytest.mark.parametrize(
    ("warnings", "words"), [((), ""), (("a",), ", 1 warning"), (("a", "b"), ", 2 warnings")]
)
def test_the_number_of_warnings_in_words(
    warnings: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(
        "cam.explanation.sheet_of",
        lambda photo, tiles, *texts, **more: drawn.append((tiles, texts)),
    )
    x = images(1)
    (explanation,) = explain(Small().eval(), x, target=1, layer="conv2")
    explanation = replace(explanation, warnings=warnings)
    assert repr(explanation).endswith(f"{' × '.join(map(str, explanation.map.shape))}{words}>")
    for count, title in ((1, "1 map of one image"), (2, "2 maps of one image")):
        grid([explanation] * count)
        tiles, texts = drawn.pop()
        assert [tile.line for tile in tiles] == [f"gradcam at conv2{words}"] * count
        assert texts == (title, warnings)


def test_the_path_of_a_photo(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    photo = Image.fromarray(rng.integers(0, 255, (16, 12, 3), np.uint8))
    upright = photo.transpose(Image.Transpose.ROTATE_90)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise
    upright.save(tmp_path / "a.png", exif=exif)

    def prepare(picture: Image.Image) -> torch.Tensor:
        return torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1) / 255

    model = Small().eval()
    (known,) = explain(model, photo, preprocess=prepare, target=1)
    for path in (tmp_path / "a.png", str(tmp_path / "a.png")):
        for given in (path, [path]):
            (found,) = explain(model, given, preprocess=prepare, target=1)
            np.testing.assert_array_equal(found.map, known.map)
            assert found.input is not None
            seen = found.input.read()
            assert seen is not None, "the file is read again"
            np.testing.assert_array_equal(seen, prepare(photo).numpy())
    (tmp_path / "b.png").write_text("a photo")
    for name, words in (("b.png", "cannot identify"), ("none.png", "No such file")):
        with pytest.raises(CamError, match=rf"{name} cannot be read as a photo: .*{words}"):
            explain(model, tmp_path / name, preprocess=prepare)


@pytest.mark.parametrize(
    ("target", "title"),
    [
        (ClassTarget(1, minus=0), "class 1 and not 0, p = "),
        (ClassTarget(1, against=True), "against class 1, p = "),
        (UnitTarget("head", 2), "channel 2 of head, "),
    ],
)
def test_the_target_in_words(target: ClassTarget | UnitTarget, title: str) -> None:
    (explanation,) = explain(Small().eval(), images(1), target=target)
    assert explanation.title.startswith(title)


def test_a_signed_map_has_a_neutral_middle() -> None:
    x = images(1)
    (explanation,) = explain(Small().eval(), x, target=1, signed=True)
    assert (explanation.draw()[:, -60:] != explanation.draw()[:, -60:].mean()).any()

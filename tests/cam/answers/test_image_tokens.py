"""Where image tokens lie on the photo: read off the processor, for every family of models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers

from cam import VisionLanguageModel
from cam.answers.image_tokens import Tile, on_photo, tiles_of
from cam.drawing.placement import Box
from cam.errors import ModelError
from tests.quick import quick
from tests.zoo.language import FAMILIES, family

# PaliGemma's processor asks a tensor for an array as older versions of NumPy did.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
HEIGHT, WIDTH = 90, 150


def grids(name: str) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
    model = VisionLanguageModel(*family(name))
    photo = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
    tiles = model.ask(photo, "a").tiles
    return [
        (
            tile.tokens.shape,
            (tile.box.left, tile.box.top, tile.box.right, tile.box.bottom),
        )
        for tile in tiles
    ]


WHOLE = (0.0, 0.0, 1.0, 1.0)
SIXTHS = [
    (column / 3, row / 2, (column + 1) / 3, (row + 1) / 2)
    for row in range(2)
    for column in range(3)
]
EXPECTED: dict[str, list[tuple[tuple[int, int], tuple[float, ...]]]] = {
    "llava": [((8, 8), WHOLE)],
    # The shorter side becomes 64 pixels, and the middle 64 of 106 remain of the longer one.
    "llava-crop": [((8, 8), (0.198, 0.0, 0.802, 1.0))],
    # Two by one tiles of 128 × 64 pixels hold the photo in 107 × 64 of 128 × 128: rows of padding
    # are cut off.
    "llava-next": [((8, 8), WHOLE), ((10, 16), (0.0, -0.02, 1.0, 1.02))],
    "llava-onevision": [((8, 8), WHOLE), ((10, 16), (0.0, -0.02, 1.0, 1.02))],
    "qwen2-vl": [((6, 9), WHOLE)],
    "qwen2.5-vl": [((6, 9), WHOLE)],
    "qwen3-vl": [((6, 9), WHOLE)],
    "internvl": [*(((4, 4), box) for box in SIXTHS), ((4, 4), WHOLE)],
    "paligemma": [((8, 8), WHOLE)],
    "smolvlm": [*(((4, 4), box) for box in SIXTHS), ((4, 4), WHOLE)],
    "idefics3": [*(((4, 4), box) for box in SIXTHS), ((4, 4), WHOLE)],
    "gemma3": [((4, 4), WHOLE)],
    # 280 patches hold the photo as 96 × 160 pixels, whole tokens of 16 × 16.
    "gemma4": [((6, 10), WHOLE)],
    "gemma4-large": [((6, 10), WHOLE)],
    "glm4v": [((6, 9), WHOLE)],
    # Each row of tokens ends with a break, which is not an image token.
    "mistral3": [((5, 8), WHOLE)],
}


@pytest.mark.parametrize("name", FAMILIES)
def test_the_grids_of_a_family(name: str) -> None:
    found, expected = grids(name), EXPECTED[name]
    assert [shape for shape, _ in found] == [shape for shape, _ in expected]
    for (_, box), (_, where) in zip(found, expected, strict=True):
        np.testing.assert_allclose(box, where, atol=0.02)


@pytest.mark.parametrize("name", quick(FAMILIES, ["llava", "qwen2.5-vl", "paligemma", "gemma3"]))
def test_a_family_is_checked_against_changes_of_the_picture_and_generate(name: str) -> None:
    VisionLanguageModel(*family(name)).check()


def test_generation_is_greedy_whatever_the_models_own_settings_are() -> None:
    model, processor = family("llava")
    model.generation_config.repetition_penalty = 5.0
    VisionLanguageModel(model, processor).check()


def test_tokens_in_another_order_are_refused() -> None:
    model, processor = family("llava")
    features = model.get_image_features
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))

    def shuffled(pixel_values: torch.Tensor) -> torch.Tensor:
        found = features(pixel_values=pixel_values).pooler_output
        return torch.cat(list(found))[order]

    model.get_image_features = shuffled
    with pytest.raises(ModelError, match="changes of the picture change other image tokens"):
        VisionLanguageModel(model, processor).check()


class Cut:
    """A processor whose picture is upside down, or whose tokens fit no grid."""

    def __init__(self, *, turned: bool = False) -> None:
        self.turned = turned

    def __call__(self, photo: np.ndarray[Any, Any]) -> dict[str, Any]:
        small = photo[::-1] if self.turned else photo
        pixels = torch.from_numpy(small.copy()).permute(2, 0, 1)[None].float() / 255
        return {"pixel_values": pixels}


class Plain:
    base_model = object()


def test_a_picture_that_is_turned_or_cut_oddly_is_refused() -> None:
    with pytest.raises(ModelError, match="do not lie on a grid"):
        tiles_of(Cut(turned=True), Plain(), 16, 16, 16)
    with pytest.raises(ModelError, match="7 image tokens cannot divide 1 picture of 16 × 16"):
        tiles_of(Cut(), Plain(), 16, 16, 7)
    with pytest.raises(ModelError, match=r"have the shape \(1, 4, 192\), which no pictures have"):
        tiles_of(lambda photo: {"pixel_values": torch.ones(1, 4, 192)}, Plain(), 16, 16, 4)
    with pytest.raises(ModelError, match="no pixel_values"):
        tiles_of(lambda photo: {}, Plain(), 16, 16, 16)
    (tile,) = tiles_of(Cut(), Plain(), 16, 32, 32)
    assert tile.tokens.shape == (4, 8)
    np.testing.assert_allclose(tile.tokens, np.arange(32).reshape(4, 8))


def test_a_photo_is_padded_to_a_square() -> None:
    """Tokens that show a part of the border have no centre of their own, and those of a photo that
    fills no whole row of tokens have no known places."""
    model, processor = family("llava")
    size = {"height": 64, "width": 64}
    processor.image_processor = transformers.LlavaImageProcessor(
        do_pad=True, size=size, crop_size=size
    )
    padded = VisionLanguageModel(model, processor)
    rng = np.random.default_rng(0)

    def tile(height: int, width: int) -> Tile:
        (found,) = padded.ask(rng.integers(0, 256, (height, width, 3), np.uint8), "a").tiles
        return found

    for height, width in ((419, 429), (615, 588), (312, 591), (200, 600)):
        box, long = tile(height, width).box, max(height, width)
        across, down = (long / width - 1) / 2, (long / height - 1) / 2
        found = (box.left, box.top, box.right, box.bottom)
        np.testing.assert_allclose(found, (-across, -down, 1 + across, 1 + down), atol=0.06)
    with pytest.raises(ModelError, match="no image token shows a photo of 600 × 30 pixels"):
        tile(30, 600)


def test_patches_are_known_by_their_positions() -> None:
    """Eight patches of 4 × 4 pixels in any order, and one of padding, are two tokens."""
    order = [5, 0, 6, 3, 1, 7, 2, 4]
    positions = torch.tensor([[patch % 4, patch // 4] for patch in order] + [[-1, -1]])

    def process(photo: np.ndarray[Any, Any], positions: torch.Tensor = positions) -> dict[str, Any]:
        pixels = torch.from_numpy(photo).float().reshape(2, 4, 4, 4, 3).permute(0, 2, 1, 3, 4)
        patches = torch.cat([pixels.reshape(8, 48)[order], torch.zeros(1, 48)])
        return {"pixel_values": patches[None], "image_position_ids": positions[None]}

    (tile,) = tiles_of(process, Plain(), 8, 16, 2)
    assert tile.tokens.tolist() == [[0, 1]]
    np.testing.assert_allclose((tile.box.left, tile.box.right), (0, 1), atol=0.01)
    with pytest.raises(
        ModelError, match="8 patches cannot be divided into squares for 3 image tokens"
    ):
        tiles_of(process, Plain(), 8, 16, 3)
    odd = positions.clone()
    odd[0] = torch.tensor([3, 0])
    with pytest.raises(ModelError, match="2 image tokens cannot form a grid of 1 × 2"):
        tiles_of(lambda photo: process(photo, odd), Plain(), 8, 16, 2)


def test_scores_that_are_not_finite_are_refused() -> None:
    tile = Tile(np.arange(4).reshape(2, 2), Box(0, 0, 1, 1))
    for odd in (np.nan, np.inf):
        with pytest.raises(ModelError, match="not finite"):
            on_photo(np.array([1, 2, odd, 3], np.float32), [tile])


def test_a_padded_border_is_no_part_of_the_photo() -> None:
    """The photo lies in the left half of the picture, and the right half is padding."""

    def process(photo: np.ndarray[Any, Any]) -> dict[str, Any]:
        pixels = torch.full((1, 3, 16, 32), 0.5)
        pixels[..., :16] = torch.from_numpy(photo).permute(2, 0, 1).float() / 255
        return {"pixel_values": pixels}

    (tile,) = tiles_of(process, Plain(), 16, 16, 32)
    assert tile.tokens.shape == (4, 8)
    np.testing.assert_allclose(
        (tile.box.left, tile.box.top, tile.box.right, tile.box.bottom), (0, 0, 2, 1), atol=0.02
    )
    scores = np.zeros(32, np.float32)
    scores[tile.tokens[1, 2]] = 1
    on = on_photo(scores, [tile])
    assert on.shape == (4, 4)
    assert np.argwhere(on == on.max()).tolist() == [[1, 2]]


def test_tiles_of_one_picture_and_of_all_are_averaged() -> None:
    whole = Tile(np.array([[4]]), Box(0, 0, 1, 1))
    parts = Tile(np.array([[0, 1], [2, 3]]), Box(0, 0, 1, 1))
    scores = np.array([1, 0, 0, 0, 0.5], np.float32)
    np.testing.assert_allclose(on_photo(scores, [parts, whole]), [[0.75, 0.25], [0.25, 0.25]])


def test_a_tile_of_a_part_is_zero_elsewhere() -> None:
    part = Tile(np.array([[0, 1]]), Box(0.5, 0, 1, 1))
    on = on_photo(np.array([1, 2], np.float32), [part])
    np.testing.assert_allclose(on, [[0, 0, 1, 2]])

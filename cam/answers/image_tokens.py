"""Find where on the photo the image tokens of a vision–language model lie.

A processor resizes a photo, crops or pads it, and cuts it into tiles, each in its own way. What it
does to positions is read off pictures whose pixels are their own coordinates, so that no rule of a
family of models is repeated here.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from cam.counts import counted
from cam.drawing.placement import Box, Float, place
from cam.errors import ModelError

Process = Callable[[NDArray[np.uint8]], Mapping[str, Any]]
"""Processes a photo, RGB uint8 (H, W, 3), into the inputs of the model."""
LEAST_SHARE: Final = 0.99
"""Least share of the pixels of a token that are the photo's and not padding, for its centre to tell
the grid."""
SNAP: Final = 0.1
"""Distance to the edge of a cell of the map, in cells, below which a tile begins or ends there."""
OFF_GRID: Final = 0.25
"""Most that a token may lie off its grid, in widths of a token."""


@dataclass(frozen=True, eq=False)
class Tile:
    """Image tokens that form a grid on the photo: those of one picture that the processor makes of
    the photo or of a part of it."""

    tokens: NDArray[np.int64]
    """Numbers of the tokens among all image tokens, (rows, columns)."""
    box: Box
    """Edges of the grid, as fractions of the photo's width and height. They lie outside 0 … 1 where
    the picture is padded."""

    def token_box(self, row: int, column: int) -> Box:
        """Return the edges of one token, as fractions of the photo's sides."""
        rows, columns = self.tokens.shape
        wide, high = (self.box.right - self.box.left), (self.box.bottom - self.box.top)
        left, top = self.box.left + wide * column / columns, self.box.top + high * row / rows
        return Box(left, top, left + wide / columns, top + high / rows)


def tiles_of(process: Process, model: Any, height: int, width: int, tokens: int) -> list[Tile]:
    """Return the tiles of a photo of a size.

    Args:
        process: the processor, with any text of one photo.
        model: the vision–language model, of transformers.
        tokens: number of image tokens of the photo.

    Raises:
        ModelError: if the tokens form no grids that are known. The message says what was found.
    """
    inputs, where = _coordinates(process, height, width)
    if (packed := _packed(model, inputs, where)) is not None:
        parts = packed
    elif "image_grid_thw" in inputs:
        times, rows, columns = (int(number) for number in inputs["image_grid_thw"][0])
        merged = _side(len(where), tokens)
        if times != 1:
            raise ModelError(f"the processor makes {times} pictures from a photo, as from a video")
        centres = _mean(where.reshape(tokens, merged**2, -1, 2))
        parts = [centres.reshape(rows // merged, columns // merged, 2)]
    elif "image_position_ids" in inputs:
        parts = [_of_patches(where[0], inputs["image_position_ids"][0].cpu().numpy(), tokens)]
    else:
        parts = _of_pictures(where, tokens)
    tiles, first = [], 0
    for part in parts:
        count = part.shape[0] * part.shape[1]
        numbers = np.arange(first, first + count).reshape(part.shape[:2])
        first += count
        breaks = np.isinf(part[..., 0]).all(0)  # columns of tokens that stand for a line break
        tile = _tile(numbers[:, ~breaks], part[:, ~breaks])
        tiles += [tile] if tile else []
    if first != tokens:
        raise ModelError(
            f"the photo has {counted(tokens, 'image token')}, and its tiles have {first}"
        )
    if not tiles:
        raise ModelError(
            f"no image token shows a photo of {width} × {height} pixels without padding, so their "
            "places cannot be told"
        )
    return tiles


def on_photo(scores: Float, tiles: Sequence[Tile]) -> Float:
    """Compose the scores of image tokens to one map of the whole photo.

    The map is as fine as the finest tile. Where tiles overlap, as those of a picture of the whole
    photo and of its parts do, it is the mean; where no token looks, it is 0.

    Args:
        scores: one for each image token, float32 (N,).

    Returns:
        float32 (h, w), which covers the photo.

    Raises:
        ModelError: if a score is not finite.
    """
    if not np.isfinite(scores).all():
        raise ModelError(
            "the scores of the image tokens are not finite: the model's numbers, or their "
            "gradients, are too large for its dtype"
        )
    rows = max(_across(tile.tokens.shape[0], tile.box.top, tile.box.bottom) for tile in tiles)
    columns = max(_across(tile.tokens.shape[1], tile.box.left, tile.box.right) for tile in tiles)
    total, count = np.zeros((2, rows, columns), np.float32)
    for tile in tiles:
        box = tile.box
        on_map = Box(
            _snapped(box.left * columns),
            _snapped(box.top * rows),
            _snapped(box.right * columns),
            _snapped(box.bottom * rows),
        )
        values, region = place(scores[tile.tokens].astype(np.float32), on_map, rows, columns)
        total += values
        count[region.slices] += 1
    composed: Float = (total / np.maximum(count, 1)).astype(np.float32)
    return composed


def _snapped(edge: float) -> float:
    """Return the edge of a cell if it is as near as the rounding of coordinates to bytes."""
    return float(round(edge)) if abs(edge - round(edge)) < SNAP else edge


def _across(cells: int, start: float, stop: float) -> int:
    """Return how many of the cells between `start` and `stop` lie side by side on the photo."""
    return max(round(cells / (stop - start)), 1)


def _coordinates(
    process: Process, height: int, width: int
) -> tuple[Mapping[str, Any], NDArray[np.float64]]:
    """Return the inputs of a photo, and which place of it each number of `pixel_values` shows:
    (…, 2), x and y as fractions, NaN where it is padding. Black and white photos tell how the
    processor scales numbers."""
    inputs, black = _values(process, np.zeros((height, width, 3), np.uint8))
    _, white = _values(process, np.full((height, width, 3), 255, np.uint8))
    across = (np.arange(width) + 0.5) / width
    down = (np.arange(height) + 0.5) / height
    where = np.empty((*black.shape, 2))
    span = white - black
    shown = np.abs(span) > 1e-6
    for axis, ramp in enumerate(np.meshgrid(across, down)):
        picture = np.rint(ramp * 255).astype(np.uint8)[..., None].repeat(3, -1)
        _, values = _values(process, picture)
        if values.shape != black.shape:
            raise ModelError("the processor cuts two photos of one size into different tiles")
        with np.errstate(divide="ignore", invalid="ignore"):
            where[..., axis] = np.where(shown, (values - black) / span, np.nan)
    return inputs, where


def _values(
    process: Process, photo: NDArray[np.uint8]
) -> tuple[Mapping[str, Any], NDArray[np.float64]]:
    inputs = process(photo)
    pixels = inputs.get("pixel_values")
    if not isinstance(pixels, torch.Tensor):
        raise ModelError("the processor returns no pixel_values of one size")
    return inputs, pixels.double().cpu().numpy()


def _packed(
    model: Any, inputs: Mapping[str, Any], where: NDArray[np.float64]
) -> list[NDArray[np.float64]] | None:
    """Return the places of the tokens of a model that packs the features of a photo's tiles, cuts
    off their padding and puts a line break behind each row (LLaVA-NeXT, LLaVA-OneVision); None for
    other models. The model's own function packs the places in place of features."""
    pack = getattr(model.base_model, "pack_image_features", None)
    if pack is None:
        return None
    vision = model.config.vision_config
    side = vision.image_size // vision.patch_size
    pictures = where.reshape(-1, *where.shape[-4:])
    features = torch.from_numpy(
        np.stack([_blocks(picture, side, side).reshape(-1, 2) for picture in pictures])
    )
    given: dict[str, Any] = {
        "image_newline": torch.full((2,), torch.inf, dtype=features.dtype),
        "vision_feature_select_strategy": "full",
        "vision_aspect_ratio": getattr(model.config, "vision_aspect_ratio", None),
    }
    known = inspect.signature(pack).parameters
    rows, _ = pack(
        [features],
        inputs["image_sizes"],
        **{name: value for name, value in given.items() if name in known},
    )
    packed = rows[0].numpy()
    whole, rest = packed[: side * side].reshape(side, side, 2), packed[side * side :]
    lines = int(np.isinf(rest[:, 0]).sum())
    if len(rest) % max(lines, 1):
        raise ModelError(
            f"{counted(len(rest), 'image token has', 'image tokens have')} "
            f"{counted(lines, 'line break')}, and cannot form a grid"
        )
    return [whole, rest.reshape(lines, -1, 2)] if lines else [whole]


def _side(patches: int, tokens: int) -> int:
    """Return how many patches lie side by side in a token, which is a square of them."""
    side = math.isqrt(patches // tokens) if tokens else 0
    if not side or side**2 * tokens != patches:
        raise ModelError(
            f"{counted(patches, 'patch', 'patches')} cannot be divided into squares for "
            f"{counted(tokens, 'image token')}"
        )
    return side


def _of_patches(
    where: NDArray[np.float64], positions: NDArray[np.int64], tokens: int
) -> NDArray[np.float64]:
    """Return the places of tokens that are squares of patches (P, D, 2), row by row, where each
    patch has a column and a row (P, 2), which are -1 for padding (Gemma 4)."""
    real = (positions >= 0).all(1)
    cells = positions[real] // _side(int(real.sum()), tokens)
    columns, rows = cells.max(0) + 1
    numbers = cells[:, 1] * columns + cells[:, 0]
    sizes = np.bincount(numbers)
    if rows * columns != tokens or len(set(sizes)) > 1:
        raise ModelError(
            f"{counted(tokens, 'image token')} cannot form a grid of {rows} × {columns}"
        )
    patches = where[real][np.argsort(numbers, kind="stable")]
    return _mean(patches.reshape(tokens, -1, 1, 2)).reshape(rows, columns, 2)


def _of_pictures(where: NDArray[np.float64], tokens: int) -> list[NDArray[np.float64]]:
    """Return the places of the tokens of pictures (…, 3, H, W). Each picture has the same number of
    tokens, row by row."""
    if where.ndim < 5 or where.shape[-4] != 3:
        raise ModelError(
            f"the processor's pixel_values have the shape {where.shape[:-1]}, which no pictures "
            "have, and it does not tell where they lie"
        )
    pictures = where.reshape(-1, *where.shape[-4:])
    each, left = divmod(tokens, len(pictures))
    height, width = pictures.shape[2:4]
    rows = round(math.sqrt(each * height / width))
    columns = each // rows if rows else 0
    if left or not rows or rows * columns != each or height % rows or width % columns:
        raise ModelError(
            f"{counted(tokens, 'image token')} cannot divide {counted(len(pictures), 'picture')} "
            f"of {width} × {height} pixels into a grid"
        )
    return [_blocks(picture, rows, columns) for picture in pictures]


def _blocks(picture: NDArray[np.float64], rows: int, columns: int) -> NDArray[np.float64]:
    """Return the mean place of each cell of a grid on a picture (3, H, W, 2): (rows, columns,
    2)."""
    _, height, width, _ = picture.shape
    high, wide = height // rows, width // columns
    cut = picture[:, : high * rows, : wide * columns]
    cells = cut.reshape(3, rows, high, columns, wide, 2).transpose(1, 3, 0, 2, 4, 5)
    return _mean(cells.reshape(rows * columns, -1, 1, 2)).reshape(rows, columns, 2)


def _mean(places: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean place of each token's pixels (N, …, 2), NaN if few are the photo's."""
    flat = places.reshape(len(places), -1, 2)
    shown = ~np.isnan(flat[..., 0])
    count = shown.sum(1)
    total = np.where(shown[..., None], flat, 0).sum(1)
    enough = count >= LEAST_SHARE * flat.shape[1]
    mean: NDArray[np.float64] = np.where(
        enough[:, None], total / np.maximum(count, 1)[:, None], np.nan
    )
    return mean


def _tile(numbers: NDArray[np.int64], places: NDArray[np.float64]) -> Tile | None:
    """Return the tile of tokens at places (rows, columns, 2); None if it is all padding.

    Raises:
        ModelError: if the places form no grid.
    """
    rows, columns = numbers.shape
    shown = ~np.isnan(places[..., 0])
    if not shown.any():
        return None
    edges = []
    for axis, cells in ((0, columns), (1, rows)):
        index = np.indices(numbers.shape)[1 - axis][shown]
        values = places[..., axis][shown]
        if len(set(index.tolist())) == 1:
            if cells > 1:
                raise ModelError(
                    "image tokens show the photo in one row alone, and padding in the others, so "
                    "their places cannot be told"
                )
            edges.append((0.0, 1.0))
            continue
        pitch, first = np.polyfit(index, values, 1)
        off = np.abs(values - (first + pitch * index)).max()
        if not pitch > 0 or off > OFF_GRID * pitch + 1 / 255:
            raise ModelError("the image tokens of a tile do not lie on a grid of the photo")
        edges.append((first - pitch / 2, first + pitch * (cells - 0.5)))
    (left, right), (top, bottom) = edges
    return Tile(numbers, Box(left, top, right, bottom))

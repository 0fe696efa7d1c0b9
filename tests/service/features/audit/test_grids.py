"""Grids of photos: which photos stand in them, and how much heat lies in the right cell."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from cam.drawing.placement import Float
from service.backend.interface import ModelBackend
from service.backend.work import Explain, Pixels
from service.core.errors import (
    InternalError,
    ModelFailed,
    OutOfMemory,
    Problem,
    QueueFull,
    Unavailable,
    UndecodableImage,
    Unexplainable,
    UnknownModel,
)
from service.features.audit.grids import Neighbours, PhotoGrid, share_inside
from service.models.preprocessing import ModelInput

pytestmark = pytest.mark.anyio


class Flat:
    """A model whose photos are of one colour: its value is the class, and the second channel the
    probability in percent."""

    def __init__(self, *, enlarges: bool = True) -> None:
        self.enlarges = enlarges
        self.refused = self.asked = 0
        self.trouble: list[Problem] = []
        """Problems of the next answers."""
        self.trouble_with_large: bool | None = None
        """Whether these are about images of the usual size or about larger ones; None for all."""

    async def ask(self, work: Explain) -> Any:
        seen = work.seen
        if seen.pixels.shape[0] > 4 and not self.enlarges:
            self.refused += 1
            raise Unexplainable("model 'flat' takes no image of 8 × 8 pixels")
        self.asked += 1
        if self.trouble and self.trouble_with_large in (None, seen.pixels.shape[0] > 4):
            raise self.trouble.pop()
        likely = np.zeros(100, np.float32)
        likely[seen.pixels[0, 0, 0]] = seen.pixels[0, 0, 1] / 100
        return SimpleNamespace(
            value=SimpleNamespace(prediction=SimpleNamespace(probabilities=likely))
        )


def photo(which: int, percent: int = 90) -> Pixels:
    pixels = np.zeros((4, 4, 3), np.uint8)
    pixels[..., 0], pixels[..., 1] = which, percent
    return pixels


def neighbours(photos: list[Pixels | None], seed: int = 0) -> tuple[Neighbours, list[int]]:
    read: list[int] = []

    async def one(number: int) -> ModelInput:
        read.append(number)
        found = photos[number]
        if found is None:
            raise UndecodableImage("broken")
        return ModelInput.of(found)

    return Neighbours(len(photos), one, seed), read


def backend(*, enlarges: bool = True) -> ModelBackend:
    return cast(ModelBackend, Flat(enlarges=enlarges))


async def test_a_grid_has_photos_of_different_classes_of_which_the_model_is_sure() -> None:
    photos: list[Pixels | None] = [photo(n) for n in range(6)]
    photos += [photo(0), photo(7, percent=49), None]
    found, _ = neighbours(photos)
    grid = await found.grid(backend(), 0, photo(0), 0, 2)
    assert grid is not None
    assert (grid.pixels.shape, grid.side) == ((8, 8, 3), 2)
    cells = [int(grid.pixels[y * 4, x * 4, 0]) for y in range(2) for x in range(2)]
    assert cells[2 * grid.row + grid.column] == 0
    assert len(set(cells)) == 4
    assert 7 not in cells


async def test_the_same_photo_has_the_same_neighbours_and_others_have_others() -> None:
    photos: list[Pixels | None] = [photo(n) for n in range(12)]
    grids = []
    for seed in (0, 0, 1):
        found, _ = neighbours(photos, seed)
        grids.append(await found.grid(backend(), 3, photo(3), 3, 3))
    one, same, other = grids
    assert one is not None
    assert same is not None
    assert other is not None
    assert np.array_equal(one.pixels, same.pixels)
    assert not np.array_equal(one.pixels, other.pixels)


async def test_all_cells_are_used_by_some_photo() -> None:
    photos: list[Pixels | None] = [photo(n) for n in range(30)]
    found, _ = neighbours(photos)
    places = set()
    for number in range(30):
        grid = await found.grid(backend(), number, photo(number), number, 2)
        assert grid is not None
        places.add((grid.row, grid.column))
    assert len(places) == 4


@pytest.mark.parametrize(
    "others",
    [[photo(1), photo(2)], [photo(1), photo(0), photo(0), photo(1)], [photo(1, 49)] * 9, []],
)
async def test_too_few_photos_of_other_classes_make_no_grid(others: list[Pixels | None]) -> None:
    found, _ = neighbours([photo(0), *others])
    assert await found.grid(backend(), 0, photo(0), 0, 2) is None


@pytest.mark.parametrize("classes", [2, 3])
async def test_a_model_of_few_classes_has_grids_whose_other_cells_repeat_theirs(
    classes: int,
) -> None:
    """The class that is explained is in one cell alone, and every other class in one at least."""
    photos: list[Pixels | None] = [photo(n % classes) for n in range(24)]
    found, _ = neighbours(photos)
    places = set()
    for number in range(24):
        for side in (2, 3):
            own = number % classes
            grid = await found.grid(backend(), number, photo(own), own, side)
            assert grid is not None
            cells = grid.pixels[::4, ::4, 0]
            assert cells[grid.row, grid.column] == own
            assert (cells == own).sum() == 1
            assert len(np.unique(cells)) == classes
            assert grid.other != own
            assert grid.other in cells
            without = grid.without[::4, ::4, 0]
            assert without[grid.row, grid.column] == grid.other
            assert (without != cells).sum() == 1
            places.add((side, grid.row, grid.column))
    assert len(places) == 4 + 9


async def test_no_photo_is_twice_in_a_grid() -> None:
    photos: list[Pixels | None] = [photo(n % 2) for n in range(8)]
    for n, each in enumerate(photos):
        assert each is not None
        each[..., 2] = n
    found, _ = neighbours(photos)
    first = photos[0]
    assert first is not None
    grid = await found.grid(backend(), 0, first, 0, 2)
    assert grid is not None
    assert len(np.unique(grid.pixels[::4, ::4, 2])) == 4


async def test_each_photo_is_read_once() -> None:
    photos: list[Pixels | None] = [photo(n % 5, 90 if n % 2 else 10) for n in range(20)]
    found, read = neighbours(photos)
    for number in range(20):
        await found.grid(backend(), number, photo(number), number % 5, 2)
    assert len(read) == len(set(read))


async def test_many_photos_of_one_class_are_read_once_and_then_given_up() -> None:
    """More photos than are kept in memory, and none of another class: the search over all photos is
    made once."""
    photos: list[Pixels | None] = [photo(1) for n in range(300)]
    found, read = neighbours(photos)
    model = backend()
    for number in range(300):
        for side in (2, 3):
            assert await found.grid(model, number, photo(1), 1, side) is None
    assert len(read) <= 300
    assert cast(Flat, model).asked <= 300


async def test_of_photos_that_are_not_kept_only_those_in_the_grid_are_read_again() -> None:
    photos: list[Pixels | None] = [photo(n % 4) for n in range(600)]
    found, read = neighbours(photos)
    model = backend()
    for number in range(600):
        assert await found.grid(model, number, photo(number % 4), number % 4, 2) is not None
    assert cast(Flat, model).asked <= 600 + 1  # and whether the model takes larger images
    assert len(read) <= 600 + 3 * 600


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(
    "problem", [QueueFull, Unavailable, OutOfMemory, ModelFailed, UnknownModel]
)
async def test_trouble_that_may_pass_says_nothing_about_a_photo_or_the_model(
    problem: type[Problem], large: bool
) -> None:
    photos: list[Pixels | None] = [photo(n) for n in range(4)]
    found, _ = neighbours(photos)
    model = backend()
    flat = cast(Flat, model)
    flat.trouble, flat.trouble_with_large = [problem("not now")], large
    with pytest.raises(problem):
        await found.grid(model, 0, photo(0), 0, 2)
    assert found.enlarged is None
    assert await found.grid(model, 0, photo(0), 0, 2) is not None
    assert found.enlarged is True


async def test_a_photo_that_fails_for_itself_stands_in_no_grid() -> None:
    photos: list[Pixels | None] = [photo(n) for n in range(4)]
    found, _ = neighbours(photos)
    model = backend()
    cast(Flat, model).trouble = [InternalError("a defect")]
    assert await found.grid(model, 0, photo(0), 0, 2) is None


async def test_a_model_of_one_size_gets_a_grid_of_its_size() -> None:
    photos: list[Pixels | None] = [photo(10 * n) for n in range(6)]
    found, _ = neighbours(photos)
    model = backend(enlarges=False)
    grid = await found.grid(model, 0, photo(0), 0, 2)
    assert grid is not None
    assert grid.pixels.shape == (4, 4, 3)
    assert found.enlarged is False
    await found.grid(model, 1, photo(10), 10, 2)
    assert cast(Flat, model).refused == 1


@pytest.mark.parametrize(
    ("row", "column", "share"), [(0, 0, 0.1), (0, 1, 0.2), (1, 0, 0.3), (1, 1, 0.4)]
)
def test_the_share_is_of_the_positive_heat(row: int, column: int, share: float) -> None:
    grid = PhotoGrid(blank := np.zeros((8, 8, 3), np.uint8), row, column, 2, 1, blank)
    cells = np.array([[1, 2], [3, 4]], np.float32)
    values: Float = np.kron(cells, np.ones((4, 4), np.float32)).astype(np.float32)
    assert share_inside(values, grid) == pytest.approx(share)
    values = np.where(values == 4, -9, values).astype(
        np.float32
    )  # evidence against the class counts as none
    expected = {(0, 0): 1 / 6, (0, 1): 2 / 6, (1, 0): 3 / 6, (1, 1): 0}[row, column]
    assert share_inside(values, grid) == pytest.approx(expected)


def test_a_map_without_heat_has_none_in_the_cell() -> None:
    grid = PhotoGrid(blank := np.zeros((6, 6, 3), np.uint8), 0, 0, 3, 1, blank)
    assert share_inside(np.full((3, 3), -1, np.float32), grid) == 0


def test_a_coarse_map_is_enlarged_to_the_grid() -> None:
    # Behind bilinear interpolation some heat of the cell lies in its neighbours.
    grid = PhotoGrid(blank := np.zeros((30, 30, 3), np.uint8), 1, 1, 3, 1, blank)
    values = np.zeros((3, 3), np.float32)
    values[1, 1] = 1
    found = share_inside(values, grid)
    assert 0.5 < found < 1

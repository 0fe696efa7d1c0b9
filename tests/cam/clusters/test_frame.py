"""Places of the frame at which one class alone looks."""

from __future__ import annotations

import numpy as np
import pytest

from cam.clusters import own_places
from cam.clusters.frame import in_words
from cam.drawing.heatmap import Float
from tests.cam.clusters.synthetic import blobs

Photo = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]


def cornered(count: int, seed: int = 0) -> list[Float]:
    """Return maps with one pattern at the lower left corner and weak heat anywhere."""
    maps = [0.2 * each for each in blobs(count, seed, 8)]
    for values in maps:
        values[-3:, :3] = [[0.5, 0.6, 0.4], [0.9, 1, 0.6], [0.8, 0.9, 0.5]]
    return maps


def noise(count: int, seed: int) -> list[Photo | None]:
    random = np.random.default_rng(seed)
    return list(random.integers(0, 256, (count, 16, 16, 3), dtype=np.uint8))


def test_a_mark_on_all_photos_of_a_class_is_told() -> None:
    """The clusters of the class cannot show it: all of its maps are one cluster."""
    classes = [(blobs(40, 1, 8), None), (cornered(40), None), (blobs(40, 2, 8), None)]
    (place,) = own_places(classes)
    assert place.class_ == 1
    assert place.members.tolist() == list(range(40))
    assert place.where == "at the bottom left"
    assert place.sentence("triangle") == (
        "all 40 maps of 'triangle' look at the bottom left, where no other class looks"
    )
    x, y = place.place
    assert x < 0.3
    assert y > 0.7


def test_a_mark_on_most_photos_of_a_class_is_told() -> None:
    maps = [*cornered(30), *blobs(15, 3, 8)]
    (place,) = own_places([(maps, None), (blobs(40, 1, 8), None)])
    assert set(range(30)) <= set(place.members.tolist())
    assert place.sentence("triangle").startswith(f"{len(place.members)} of 45 maps of 'triangle'")


def test_what_the_photos_show_there_is_told() -> None:
    photos, others = noise(40, 0), noise(40, 1)
    for each in photos:
        assert each is not None
        each[-6:, :6] = (255, 0, 255)
    (place,) = own_places([(cornered(40), photos), (blobs(40, 1, 8), others)])
    assert place.sentence("triangle").endswith(
        "where no other class looks, and the photos show the same thing there"
    )


def test_photos_that_cannot_be_read_leave_the_maps() -> None:
    none: list[Photo | None] = [None] * 40
    (place,) = own_places([(cornered(40), none), (blobs(40, 1, 8), none)])
    assert place.appearance is None


def test_copies_of_one_photo_are_no_evidence() -> None:
    copies: list[Photo | None] = noise(1, 0) * 40
    assert not own_places([(cornered(40), copies), (blobs(40, 1, 8), noise(40, 1))])


def test_a_place_at_which_another_class_looks_is_no_evidence() -> None:
    assert not own_places([(cornered(40), None), (cornered(40, 5), None)])
    some = [*cornered(8, 5), *blobs(32, 1, 8)]
    assert not own_places([(cornered(40), None), (some, None)])


def test_objects_in_the_middle_are_no_evidence() -> None:
    """Photographers put what they show in the middle."""
    centred = []
    for values in (0.2 * each for each in blobs(40, 0, 8)):
        values[2:6, 2:6] = 1
        centred.append(values)
    assert not own_places([(centred, None), (blobs(40, 1, 8), None)])


def test_objects_that_lie_low_have_patterns_that_differ() -> None:
    """The heat of one class lies in the lower third, but never in one pattern."""
    random = np.random.default_rng(0)
    low = []
    for values in (0.2 * each for each in blobs(60, 0, 8)):
        values[5:] += random.random((3, 8)).astype(np.float32) ** 3
        low.append(values)
    assert not own_places([(low, None), (blobs(60, 1, 8), None)])


@pytest.mark.parametrize("few", [0, 1, 29])
def test_one_class_alone_has_nothing_to_be_compared_with(few: int) -> None:
    assert not own_places([(cornered(40), None), (blobs(few, 1, 8), None)])
    assert not own_places([(cornered(few), None), (blobs(40, 1, 8), None)])
    assert not own_places([])


def test_maps_that_show_nothing_keep_the_positions_of_the_others() -> None:
    flat = np.zeros((8, 8), np.float32)
    (place,) = own_places([([flat, *cornered(40)], None), ([flat, *blobs(40, 1, 8), flat], None)])
    assert place.members.tolist() == list(range(1, 41))
    assert place.maps == 40


@pytest.mark.parametrize(
    ("rows", "columns", "words"),
    [
        (slice(0, 2), slice(0, 2), "at the top left"),
        (slice(6, 8), slice(5, 8), "at the bottom right"),
        (slice(0, 2), slice(None), "at the top"),
        (slice(2, 6), slice(0, 2), "at the left"),
        (slice(3, 5), slice(3, 5), None),
        (slice(0, 0), slice(0, 0), None),
    ],
)
def test_places_in_words(rows: slice, columns: slice, words: str | None) -> None:
    place = np.zeros((8, 8), bool)
    place[rows, columns] = True
    assert in_words(place) == words


def test_a_frame_lies_around_the_middle() -> None:
    place = np.ones((7, 7), bool)
    place[1:-1, 1:-1] = False
    assert in_words(place) == "around the middle"

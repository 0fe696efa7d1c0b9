"""Places of the frame at which one class alone looks."""

from __future__ import annotations

import numpy as np
import pytest

from cam.clusters import own_places
from cam.clusters.frame import in_words
from cam.drawing.placement import Float
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


def patterned(count: int, rows: slice, columns: slice) -> list[Float]:
    """Return maps with one pattern at a place and weak heat anywhere."""
    maps = [0.2 * each for each in blobs(count, 0, 8)]
    for values in maps:
        values[rows, columns] = 1
    return maps


def test_half_of_the_heat_at_a_place_by_chance_is_not_the_same_pattern() -> None:
    """Objects at random places have half of their heat in three of eight columns now and then."""
    left = patterned(40, slice(0, 8), slice(0, 3))
    (place,) = own_places([(left, None), (blobs(40, 1, 8, 1), None), (blobs(40, 2, 8, 1), None)])
    assert place.elsewhere > 0.2
    assert place.sentence("disc") == (
        "all 40 maps of 'disc' look at the left, unlike those of any other class"
    )


@pytest.mark.parametrize("count", [5, 20, 60])
def test_small_clean_classes_do_not_hide_it_however_many_they_are(count: int) -> None:
    """Among 60 other classes of 30 maps each, one class has several maps at that place by
    chance."""
    others = [(blobs(30, seed, 8), None) for seed in range(1, count + 1)]
    assert [each.class_ for each in own_places([(cornered(40), None), *others])] == [0]


def test_classes_that_share_a_place_are_named_together() -> None:
    clean = [(blobs(40, seed, 8), None) for seed in (1, 2)]
    first, second = own_places([(cornered(40), None), clean[0], (cornered(40, 5), None), clean[1]])
    assert (first.class_, first.shared, second.class_, second.shared) == (0, (2,), 2, (0,))
    assert first.sentence("disc", ["cross"]) == (
        "all 40 maps of 'disc' look at the bottom left, as maps of 'cross' do, "
        "where no other class looks"
    )
    # A place of most classes is nobody's own.
    most = [(cornered(40, seed), None) for seed in range(3)]
    assert not own_places([*most, clean[0]])


def test_the_same_thing_in_the_middle_is_told() -> None:
    photos, others = noise(40, 0), noise(40, 1)
    for each in photos:
        assert each is not None
        each[5:11, 5:11] = (255, 0, 255)
    middle = patterned(40, slice(3, 5), slice(3, 5))
    (place,) = own_places([(middle, photos), (blobs(40, 1, 8), others)])
    assert place.where == "at the middle"
    assert place.elsewhere < 0.5


def test_objects_in_the_middle_are_no_evidence() -> None:
    """Photographers put what they show in the middle."""
    centred = patterned(40, slice(2, 6), slice(2, 6))
    assert not own_places([(centred, None), (blobs(40, 1, 8), None)])
    assert not own_places([(centred, noise(40, 0)), (blobs(40, 1, 8), noise(40, 1))])


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


def test_a_border_around_the_photos_is_told_by_the_photos_alone() -> None:
    photos, others = noise(40, 0), noise(40, 1)
    ring = np.ones((16, 16), bool)
    ring[2:14, 2:14] = False
    for each in photos:
        assert each is not None
        each[ring] = 255
    maps = patterned(40, slice(0, 8), slice(0, 8))
    for values in maps:
        values[1:7, 1:7] = 0
    # Where all photos of another class are white, those of a class without a mark differ more.
    (place,) = own_places([(maps, photos), (blobs(40, 1, 8), others)])
    assert (place.class_, place.where, len(place.members)) == (0, "around the middle", 40)
    assert not own_places([(maps, None), (blobs(40, 1, 8), None)])

"""One change that covers photos, told from photos of other things."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from bench.shortcuts import crops, things
from cam.clusters import look
from cam.clusters.look import told_by_look, told_by_scene
from cam.clusters.suspects import LOOK, SCENE
from tests.cam.clusters.marks import Mark
from tests.cam.clusters.scenes import Photos, thumbnails_of

COVERING = ("tint", "offset", "vignette", "fog")
"""Kinds that blend each photo with the same thing."""


def small(photos: Photos, mark: str | None = None) -> Photos:
    random = np.random.default_rng(3)
    for photo in photos:
        if mark:
            Mark(mark, 1).put_on(photo, random)
    return np.stack(thumbnails_of(photos))


@pytest.fixture(scope="module")
def others() -> Photos:
    return small(things(0, 120, 1))


@pytest.mark.parametrize("mark", COVERING)
def test_a_change_that_covers_the_photos_is_told_by_the_look_alone(
    mark: str, others: Photos
) -> None:
    members = small(things(0, 45, 2), mark)
    assert told_by_look(members, others) > LOOK
    assert told_by_scene(members, others) < SCENE


def test_the_change_has_to_be_undone_for_that(
    others: Photos, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dark corners would be things that the photos show."""
    monkeypatch.setattr(look, "_undone", lambda members, others: members.astype(np.float32))
    members = small(things(0, 45, 2), "vignette")
    assert told_by_scene(members, others) > SCENE


def test_tall_photos_are_compared_as_well(others: Photos) -> None:
    members = small(things(0, 45, 2), "offset")
    tall = [np.ascontiguousarray(each[:, :, 10:22]) for each in (members, others)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert told_by_look(*tall) > LOOK


def test_photos_that_are_alike_are_told_by_neither(others: Photos) -> None:
    members = small(things(0, 45, 2))
    assert told_by_look(members, others) < LOOK
    assert told_by_scene(members, others) < SCENE


def test_photos_of_other_things_are_told_by_what_they_show() -> None:
    """Crops of a cat's photo and of a cup's, also under a tint."""
    cats, cups = small(crops(0, 60, 1)), small(crops(1, 120, 1))
    assert told_by_scene(cats, cups) > 0.9
    assert told_by_scene(small(crops(0, 60, 1), "tint"), cups) > 0.9


def test_a_change_is_undone_at_each_pixel_by_hand() -> None:
    """Values 10 and 30, mean 20 and spread 10, become 80 and 120 where those of the others are:
    mean 100 and spread 20."""
    shape = (2, 24, 24, 3)
    members = np.broadcast_to(np.array([10, 30], np.uint8)[:, None, None, None], shape)
    others = np.broadcast_to(np.array([80, 120], np.uint8)[:, None, None, None], shape)
    found = look._undone(members, others)
    assert np.allclose(found[0], 80, atol=1e-3)
    assert np.allclose(found[1], 120, atol=1e-3)

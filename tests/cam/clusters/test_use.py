"""What the model used, as distributions over channels, and the clusters of these."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bench.shortcuts import crops, things
from cam.clusters import find, find_clusters
from cam.clusters.suspects import FAR_APART
from cam.clusters.use import CHANNELS, Difference, Uses, principal, shares_of_use
from cam.drawing.placement import Float
from cam.errors import InvalidOption
from tests.cam.clusters.marks import Mark
from tests.cam.clusters.scenes import thumbnails_of
from tests.cam.clusters.synthetic import marked

MARKED, COUNT = 20, 120


@pytest.fixture(autouse=True)
def _no_embedding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "embed", lambda points, *_: np.zeros((len(points), 2), np.float32))


def test_shares_by_hand() -> None:
    """The positive and the negative parts are (3, 0, 0, 1) and (1, 1, 0, 0), which have the sums 4
    and 2."""
    found = shares_of_use([np.array([3, -1], np.float32), np.array([1, 1], np.float32)])
    rows = {tuple(column) for column in found.T.tolist()}
    assert rows == {(0.75, 0.5), (0.0, 0.5), (0.0, 0.0), (0.25, 0.0)}


def test_channels_that_vary_most_are_kept() -> None:
    used = np.ones((4, 3 * CHANNELS), np.float32)
    used[:, CHANNELS:] += np.random.default_rng(0).random((4, 2 * CHANNELS)).astype(np.float32)
    assert shares_of_use(list(used)).shape == (4, CHANNELS)
    assert principal(shares_of_use(list(used))).shape == (4, 10)


def test_a_difference_by_hand() -> None:
    """The means are (4, 0, 1) and (1, 1, 1): the group has 3 more and 1 less, a quarter. Its sums
    are 6 and 4, the others' 2, 2, 6 and 2: of 8 pairs 7 are won but for half of a draw."""
    used = [(6, 0, 0), (2, 0, 2), (1, 0, 1), (0, 2, 0), (3, 1, 2), (0, 1, 1)]
    uses = Uses([np.array(each, np.float32) for each in used])
    members = np.arange(6) < 2
    assert uses.difference(members) == Difference(apart=0.0, lost=0.25, raised=6.5 / 8)
    assert uses.difference(np.ones(6, bool)) == Difference(0.0, 0.5, 0.5)


def test_some_members_grow_to_the_whole_group() -> None:
    _, _, used = marked()
    some = np.arange(COUNT) < MARKED // 2
    first, *_, last = Uses(used).groups(some)
    assert first.tolist() == some.tolist()
    assert last.tolist() == (np.arange(COUNT) < MARKED).tolist()


@pytest.mark.parametrize("by", ["place", "use"])
def test_a_mark_at_varying_places_is_found_by_what_the_model_used(by: Any) -> None:
    maps, photos, used = marked()
    assert not any(each.suspect for each in find_clusters(maps, photos).clusters)
    found = find_clusters(maps, photos, used=used, by=by)
    first, *rest = found.clusters
    assert first.members.tolist() == list(range(MARKED))
    assert first.suspect
    assert {"other use", "added use"} <= set(first.reasons)
    assert not any(each.suspect for each in rest)


def test_a_kind_of_the_object_is_no_mark() -> None:
    """It has other evidence instead of the class's, and not more."""
    maps, photos, used = marked()
    for each in used[:MARKED]:
        each[:3] = 0
    assert Uses(used).difference(np.arange(COUNT) < MARKED).apart > FAR_APART
    assert not any(each.suspect for each in find_clusters(maps, photos, used=used).clusters)


@pytest.mark.parametrize(
    ("mark", "others", "covered"),
    [
        ("fog", "things", True),
        pytest.param("offset", "things", True, marks=pytest.mark.slow),
        pytest.param(None, "crops", False, marks=pytest.mark.slow),
    ],
)
def test_one_change_of_whole_photos_is_found_and_other_photos_are_not(
    mark: str | None, others: str, covered: bool
) -> None:
    """What the model used takes 0.14 of the differences from the other photos' evidence, as a veil
    does, and the photos differ everywhere: only the look tells a veil from photos of other
    things."""
    maps, _, _ = marked()
    rng = np.random.default_rng(0)
    used = (rng.normal(1, 0.05, (COUNT, 6)) * [1, 1, 1, 1, 0, 0]).astype(np.float32)
    used[:MARKED, :4] -= 0.1
    used[:MARKED, 4] += 2.46
    photos = things(0, COUNT, 1)
    photos[:MARKED] = things(0, MARKED, 2) if others == "things" else crops(2, MARKED, 2)
    if mark:
        for photo in photos[:MARKED]:
            Mark(mark, 1).put_on(photo, rng)
    found = find_clusters(maps, thumbnails_of(photos), used=list(used)).clusters
    by_look = [each for each in found if "whole photo" in each.reasons]
    assert bool(by_look) == covered
    for each in by_look:
        assert each.suspect
        assert each.members.tolist() == list(range(MARKED))


def test_without_photos_a_group_of_uses_is_shown_and_not_suspect() -> None:
    """A kind of the object is a group, too; only photos tell that they are as others elsewhere."""
    maps, _, used = marked()
    found = find_clusters(maps, used=used, by="use").clusters
    assert set(found[0].members.tolist()) <= set(range(MARKED))
    assert not any(each.suspect for each in found)


def test_a_record_that_lacks_a_map_is_ignored() -> None:
    maps, photos, used = marked()
    some: list[Float | None] = [*used]
    some[5] = None
    found = find_clusters(maps, photos, used=some)
    assert all(each.evidence.difference is None for each in found.clusters)
    with pytest.raises(InvalidOption, match="by is 'use', which needs"):
        find_clusters(maps, photos, used=some, by="use")


def test_records_that_cannot_be() -> None:
    maps, photos, used = marked()
    with pytest.raises(InvalidOption, match="used has 119 vectors for 120 maps"):
        find_clusters(maps, photos, used=used[1:])
    with pytest.raises(InvalidOption, match=r"used has vectors of the shapes \[\(4,\), \(5,\)\]"):
        find_clusters(maps, photos, used=[used[0][:4], *used[1:]])

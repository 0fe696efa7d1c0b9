"""The numbers on a report's page: counts, mean maps, samples, worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from service.features.report.census import BINS, ClassKey, GridSize, Sample, quotas, take_census
from service.features.report.means import FINEST, mean_maps, scaled_map
from tests.service.features.report.report_stage import failed, map_row

CAT, DOG = ClassKey(0, "cat"), ClassKey(1, "dog")
TWO = GridSize(2, 2)


def test_a_mean_map_worked_by_hand() -> None:
    rows = [
        map_row("a", [[0, 2], [4, 1]]),  # scaled: 0, ½, 1, ¼
        map_row("b", [[3, 3], [5, 7]]),  # scaled: 0, 0, ½, 1
        map_row("zeros", [[0, 0], [0, 0]]),
        map_row("flat", [[4, 4], [4, 4]]),
        map_row("no number", [[0, float("nan")], [1, 2]]),
        map_row("dog", [[-1, 0], [0, 1]], target_index=1, target="dog"),
        map_row("other", [[1, 0], [0, 0]], target_index=2, target="bird"),
        failed("f"),
    ]
    means = mean_maps(rows, {CAT: TWO, DOG: TWO, ClassKey(3, "none"): TWO})
    assert set(means) == {CAT, DOG}
    assert means[CAT].maps == 2
    np.testing.assert_allclose(means[CAT].values, [[0, 0.25], [0.75, 0.625]])
    np.testing.assert_allclose(means[DOG].values, [[0, 0.5], [0.5, 1]])


def test_other_grids_come_onto_the_commonest() -> None:
    rows = [
        map_row("a", [[0, 1], [0, 1]]),
        map_row("b", [[0, 1], [0, 1]]),
        map_row("fine", [[0, 0, 1, 0]] * 4),  # each cell of 2 × 2 the mean of four: 0, ½
        map_row("coarse", [[0, 1]]),  # the same in both rows
    ]
    [counted] = take_census(rows).classes
    assert counted.grid == TWO
    mean = mean_maps(rows, {CAT: TWO})[CAT]
    np.testing.assert_allclose(mean.values, [[0, 3.5 / 4], [0, 3.5 / 4]])


def test_of_equally_common_grids_the_finest_counts() -> None:
    rows = [map_row("a", [[0, 1]]), map_row("b"), map_row("c", [[1]], map_height=None)]
    assert take_census(rows).classes[0].grid == TWO


def test_maps_at_the_photos_pixels_are_made_coarser() -> None:
    values = np.zeros((4 * FINEST, 2 * FINEST), np.float32)
    values[: 2 * FINEST] = 1
    mean = mean_maps([map_row("a", values.tolist())], {CAT: GridSize(*values.shape)})[CAT]
    assert mean.values.shape == (FINEST, FINEST // 2)
    np.testing.assert_allclose(mean.values[: FINEST // 2], 1)
    np.testing.assert_allclose(mean.values[FINEST // 2 :], 0)


def test_bytes_that_do_not_fit_are_no_map() -> None:
    assert scaled_map(map_row("a", map=b"\0" * 15)) is None
    assert scaled_map(map_row("a", map=None)) is None
    assert scaled_map(map_row("a", map_height=-2, map_width=-2)) is None


def test_a_census_worked_by_hand() -> None:
    rows = [
        map_row("a", target_probability=0.0),
        map_row("a", number=1, target_index=1, target="dog", target_probability=1.0, warning="odd"),
        map_row("b", target_probability=0.049),
        map_row("c", target_probability=None),
        map_row("d", target_index=None, target=None, target_probability=0.05, method="cam"),
        failed("e"),
    ]
    census = take_census(rows)
    counts = (census.images, census.maps, census.failures, census.warnings)
    assert counts == (5, 5, 1, 1)
    assert census.histogram == [2, 1, *[0] * (BINS - 3), 1]
    assert [(each.key.name, each.maps) for each in census.classes] == [
        ("cat", 3),
        ("dog", 1),
        ("no class", 1),
    ]
    assert census.classes[0].probability.value == pytest.approx(0.0245)
    assert census.methods == {"gradcam": 4, "cam": 1}


def test_classes_of_one_name_are_told_apart() -> None:
    rows = [
        map_row("a", target_index=134, target="crane"),
        map_row("b", target_index=517, target="crane"),
    ]
    assert [each.maps for each in take_census(rows).classes] == [1, 1]
    assert ClassKey(7, None).name == "class 7"


@pytest.mark.parametrize(
    ("counts", "most", "shown"),
    [
        ([5, 5], 100, [5, 5]),
        ([100, 100], 10, [5, 5]),
        ([1, 100, 100], 11, [1, 5, 5]),
        ([2, 3, 100], 30, [2, 3, 25]),
        ([100, 100, 100], 10, [3, 3, 4]),
        ([1, 2, 3, 4], 2, [0, 0, 1, 1]),
        ([3], 0, [0]),
        ([], 5, []),
    ],
)
def test_every_class_has_the_same_share(counts: list[int], most: int, shown: list[int]) -> None:
    keys = [ClassKey(index, None) for index in range(len(counts))]
    assert list(quotas(dict(zip(keys, counts, strict=True)), most).values()) == shown


@pytest.mark.parametrize(("count", "most"), [(100, 10), (97, 10), (10, 10), (7, 1), (1000, 999)])
def test_a_sample_is_evenly_spaced(count: int, most: int) -> None:
    sample = Sample({CAT: count}, most)
    taken = [rank for rank in range(count) if sample.takes(CAT)]
    assert len(taken) == sample.size == most
    steps = np.diff(taken)
    assert len(steps) == 0 or steps.max() - steps.min() <= 1
    # And as far from the first as from the last.
    assert abs(taken[0] - (count - 1 - taken[-1])) <= 1

"""Comparisons: what is found, what is not, and what is said of it. Statistics are drawn here; those
of photos are in test_photos.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, replace

import numpy as np
import pytest
from scipy import stats

from cam.drift.comparison import ALPHA, GREAT, TELLING, compare, expected_worth, needed_photos
from cam.drift.distances import independent, kolmogorov_probability
from cam.drift.map_statistics import STATISTICS, MapStatistics
from cam.drift.origin import Origin
from cam.drift.photo_statistics import PHOTO_STATISTICS
from cam.drift.reference import Reference, read_reference, reference_of
from cam.drift.shift import LEAST, Comparison, Quartiles, Shift, TooFew
from cam.drift.window import Window

ORIGIN = Origin("model", "weights", "gradcam", "layer", "crop")
Maps = list[tuple[int | None, MapStatistics | None]]


def drawn(rng: np.random.Generator, count: int, index: int | None = 0, **means: float) -> Maps:
    """Maps of a class, whose statistics have a deviation of 0.05 about their means."""
    centres = [means.get(name, 0.4) for name in STATISTICS]
    own = len(STATISTICS) - len(PHOTO_STATISTICS) + 1
    rows = rng.normal(centres[:own], 0.05, (count, own))
    (other,) = rng.spawn(1)
    of_photos = other.normal(centres[own:], 0.05, (count, len(STATISTICS) - own))
    rows = np.concatenate([rows, of_photos], 1).clip(0, 1)
    return [(index, MapStatistics(*row)) for row in rows.tolist()]


def window_of(maps: Maps, size: int = 500) -> Window:
    window = Window(size)
    for index, statistics in maps:
        window.record(index, statistics)
    return window


def compared(good: Maps, live: Maps, size: int = 500) -> Comparison:
    return compare(reference_of(good, ORIGIN), window_of(live, size).snapshot())


def shuffled(rng: np.random.Generator, *parts: Maps) -> Maps:
    together = [each for part in parts for each in part]
    return [together[each] for each in rng.permutation(len(together))]


def names(shifts: Sequence[Shift]) -> set[tuple[int | None, str]]:
    return {(each.index, each.statistic) for each in shifts}


def one(result: Comparison, index: int | None, statistic: str) -> Shift:
    (found,) = (
        each for each in result.shifts if (each.index, each.statistic) == (index, statistic)
    )
    return found


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_nothing_has_moved(rng: np.random.Generator) -> None:
    result = compared(drawn(rng, 800), drawn(rng, 500))
    assert not result.moved
    assert not result.too_few
    assert result.unknown == 0
    everything = {*STATISTICS, "flat"}
    assert names(result.shifts) == {(index, name) for index in (None, 0) for name in everything}
    assert {(each.reference, each.live) for each in result.shifts} == {(800, 500)}


def test_the_class_and_the_statistic_are_named(rng: np.random.Generator) -> None:
    good = shuffled(rng, drawn(rng, 400, 0), drawn(rng, 400, 7))
    live = shuffled(rng, drawn(rng, 300, 0), drawn(rng, 300, 7, border=0.6))
    result = compared(good, live)
    assert {(7, "border")} <= names(result.moved) <= {(7, "border"), (None, "border")}
    first = result.moved[0]
    assert (first.index, first.statistic) == (7, "border")
    expected = "class 'tench': the share of the heat on the border rose from 0.40 to 0.60 (median)"
    assert first.sentence("tench") == expected
    assert first.sentence() == expected.replace("'tench'", "7")


def test_the_numbers_are_those_of_the_measures(rng: np.random.Generator) -> None:
    good, live = drawn(rng, 300), drawn(rng, 200, entropy=0.42)
    found = one(compared(good, live), 0, "entropy")
    before, after = ([each.entropy for _, each in maps if each] for maps in (good, live))
    expected = stats.ks_2samp(before, after)
    assert found.distance == pytest.approx(expected.statistic)
    # Holm: 34 tests, and this is the least p, twice: of the class and of all classes.
    rows = np.array([astuple(each) for _, each in live if each])
    p = kolmogorov_probability(found.distance, 300, independent(rows[:, :TELLING]))
    assert found.p == pytest.approx(34 * p)
    assert found.before == pytest.approx(
        np.quantile(before, [0.25, 0.5, 0.75], method="inverted_cdf"), abs=1e-6
    )
    assert found.after == pytest.approx(
        np.quantile(after, [0.25, 0.5, 0.75], method="inverted_cdf"), abs=1e-6
    )


def test_the_greatest_index_comes_first(rng: np.random.Generator) -> None:
    result = compared(drawn(rng, 300), drawn(rng, 300, border=0.5, spread=0.8))
    indices = [each.psi for each in result.shifts]
    assert indices == sorted(indices, reverse=True)
    assert result.shifts[0].statistic == "spread"
    assert [each for each in result.shifts if each.moved] == list(result.moved)


def test_an_unimportant_change_has_not_moved_though_it_is_no_chance(
    rng: np.random.Generator,
) -> None:
    result = compared(drawn(rng, 8000), drawn(rng, 8000, border=0.41), size=8000)
    found = one(result, 0, "border")
    assert found.p < ALPHA
    assert 0 < found.psi < GREAT
    assert not result.moved


def test_what_may_be_chance_has_not_moved_though_it_would_be_important(
    rng: np.random.Generator,
) -> None:
    result = compared(drawn(rng, 60), drawn(rng, 60, border=0.45))
    found = one(result, 0, "border")
    assert found.psi > GREAT
    assert found.p > ALPHA
    assert not result.moved


def mixed(rng: np.random.Generator, first: int, second: int, rare: int = 0) -> Maps:
    """Two classes whose maps are quite different, and of others one map each, as different."""
    others = [each for index in range(rare) for each in drawn(rng, 1, 100 + index, border=0.6)]
    return shuffled(rng, drawn(rng, first, 1), drawn(rng, second, 2, border=0.8), others)


def test_another_mix_of_classes_moves_nothing(rng: np.random.Generator) -> None:
    good, live = mixed(rng, 900, 100, 20), mixed(rng, 120, 360, 20)
    result = compared(good, live)
    assert not result.moved
    assert result.unknown == 0
    assert one(result, None, "border").psi < 0.1
    assert one(result, None, "border").before[1] > 0.7  # as weighted, not 0.4
    # Without classes it is another distribution.
    blind = compared([(0, each) for _, each in good], [(0, each) for _, each in live])
    assert (None, "border") in names(blind.moved)


def test_weighted_photos_count_for_fewer(rng: np.random.Generator) -> None:
    good = [*drawn(rng, 300, 1), *drawn(rng, 100, 2)]
    live = shuffled(rng, drawn(rng, 100, 1, border=0.43), drawn(rng, 300, 2, border=0.43))
    found = one(compared(good, live), None, "border")
    # Weights 1/3 and 3: 400² / (300 / 9 + 100 * 9) = 171.43 photos. It is the least p of 51.
    rows = np.array([astuple(each) for _, each in live if each])
    p = kolmogorov_probability(found.distance, 171.428571, independent(rows[:, :TELLING]))
    assert found.p == pytest.approx(51 * p, rel=1e-6)
    assert found.reference == 400


def many_classes(
    rng: np.random.Generator, indices: Sequence[int], count: int, **more: float
) -> Maps:
    """Maps of each of some classes, whose statistics depend on the class; `more` is added."""
    found: Maps = []
    for index in indices:
        means = np.random.default_rng(index).uniform(0.2, 0.7, len(STATISTICS))
        named = dict(zip(STATISTICS, means.tolist(), strict=True))
        found += drawn(rng, count, index, **{k: v + more.get(k, 0) for k, v in named.items()})
    return shuffled(rng, found)


def test_few_of_many_rare_classes_move_nothing(rng: np.random.Generator) -> None:
    """Traffic from 3 of 200 classes with 5 photos each: 15 photos are too few to say anything."""
    for _ in range(20):
        good, live = many_classes(rng, range(200), 5), many_classes(rng, [3, 90, 150], 160)
        result = compared(good, live)
        assert not result.moved
        assert result.unknown == 0
        assert result.too_few[0] == TooFew(None, None, 15, 480)


def test_many_rare_classes_are_compared_together(rng: np.random.Generator) -> None:
    """Traffic from a third of 200 classes: nothing has moved, until something has."""
    good, some = many_classes(rng, range(200), 5), range(0, 200, 3)
    for _ in range(20):
        result = compared(good, many_classes(rng, some, 7))
        assert not result.moved
        assert one(result, None, "border").reference == 5 * len(some)
    result = compared(good, many_classes(rng, some, 7, border=0.2))
    assert names(result.moved) == {(None, "border")}


def test_of_many_photos_some_are_compared_with_all_classes(rng: np.random.Generator) -> None:
    """As many as tell something about the live maps: 20 for each."""
    good = [*drawn(rng, 3000, 1), *drawn(rng, 500, 2), *drawn(rng, 500, 3)]
    result = compared(good, shuffled(rng, drawn(rng, 100, 1), drawn(rng, 50, 2)))
    assert one(result, None, "border").reference == 2000 + 500
    assert one(result, 1, "border").reference == 3000
    assert not result.moved


def test_classes_that_the_reference_lacks_altogether(rng: np.random.Generator) -> None:
    result = compared(many_classes(rng, [0, 1], 300), many_classes(rng, [2, 3], 250))
    assert result.unknown == 1
    assert not result.shifts
    assert result.too_few[0] == TooFew(None, None, 0, 0)


def test_classes_that_the_reference_lacks_are_left_out_and_told(rng: np.random.Generator) -> None:
    live = shuffled(rng, drawn(rng, 300, 1), drawn(rng, 100, 5, border=0.9))
    result = compared(drawn(rng, 500, 1), live)
    assert not result.moved
    assert result.unknown == pytest.approx(0.25)
    assert one(result, None, "border").live == 300
    assert result.too_few == (TooFew(5, None, 0, 100),)


def test_too_few_photos_are_told(rng: np.random.Generator) -> None:
    good = [*drawn(rng, 500, 1), *drawn(rng, LEAST - 1, 2)]
    live = [*drawn(rng, LEAST, 1), *drawn(rng, LEAST + 3, 2)]
    result = compared(good, live)
    assert result.too_few == (TooFew(2, None, LEAST - 1, LEAST + 3),)
    assert {each.index for each in result.shifts} == {None, 1}
    result = compared(good, live[1:])
    assert TooFew(1, None, 500, LEAST - 1) in result.too_few


def test_an_empty_window(rng: np.random.Generator) -> None:
    result = compared(drawn(rng, 100), [])
    assert result == Comparison((), (TooFew(None, None, 0, 0),), None)


def test_targets_without_probability(rng: np.random.Generator) -> None:
    without: Maps = [(None, each and replace(each, confidence=None)) for _, each in drawn(rng, 400)]
    result = compared(without[:200], without[200:])
    assert result.too_few == (TooFew(None, "confidence", 0, 0),)
    assert len(result.shifts) == len(STATISTICS)
    assert not any(np.isnan(astuple(each)[2:5]).any() for each in result.shifts)


def test_a_photo_that_repeats_counts_once(rng: np.random.Generator) -> None:
    live = drawn(rng, 250)
    # The same photo in other batches: the last digits differ.
    for _ in range(250):
        again = MapStatistics(*(0.5 + rng.uniform(-1e-6, 1e-6, 8)).tolist())
        live.append((0, again))
    result = compared(drawn(rng, 800), shuffled(rng, live))
    assert not result.moved
    assert one(result, 0, "border").live == 251
    assert one(result, None, "border").live == 251


def test_a_reference_of_photos_that_repeat_is_no_false_alarm(rng: np.random.Generator) -> None:
    """Twenty photos of a thousand make half of the reference: they are twenty photos."""
    good = [*drawn(rng, 500), *(drawn(rng, 20, border=0.6) * 25)]
    result = compared(good, shuffled(rng, drawn(rng, 480), drawn(rng, 20, border=0.6)))
    assert not result.moved
    assert one(result, 0, "border").reference == 520


def test_a_camera_that_stands_still_has_too_few_photos(rng: np.random.Generator) -> None:
    result = compared(drawn(rng, 800), drawn(rng, 1) * 500)
    assert result.too_few == (TooFew(None, None, 800, 1), TooFew(0, None, 800, 1))


def test_frames_of_videos_count_for_fewer(rng: np.random.Generator) -> None:
    good = reference_of(drawn(rng, 800), ORIGIN)
    for _ in range(20):
        live: Maps = []
        for index, photo in drawn(rng, 50):
            near = np.array(astuple(photo)) + rng.normal(0, 0.003, (10, len(STATISTICS)))  # type: ignore[arg-type]
            live += [(index, MapStatistics(*row)) for row in near.tolist()]
        assert not compare(good, window_of(live).snapshot()).moved


@pytest.mark.parametrize("scenes", [2, 5, 10])
def test_scenes_that_take_turns_move_nothing(rng: np.random.Generator, scenes: int) -> None:
    """Nearly static scenes, such as those of fixed cameras whose pictures come one after the
    other: a window has as many different photos as there are scenes."""
    good = reference_of(drawn(rng, 1000), ORIGIN)
    for _ in range(20):
        seen = [astuple(each) for _, each in drawn(rng, scenes) if each]
        rows = np.tile(np.array(seen), (500 // scenes, 1))
        rows = (rows + rng.normal(0, 0.003, rows.shape)).clip(0, 1)
        live: Maps = [(0, MapStatistics(*row)) for row in rows.tolist()]
        result = compare(good, window_of(live).snapshot())
        assert one(result, 0, "border").live > 490
        assert not result.moved


def test_a_change_is_found_before_the_window_has_forgotten_what_was_before_it(
    rng: np.random.Generator,
) -> None:
    """Rows before and after a change are alike among each other, but are not frames of a video."""
    live = [*drawn(rng, 250), *drawn(rng, 250, border=0.5)]
    assert (0, "border") in names(compared(drawn(rng, 1000), live).moved)


def test_flat_maps_are_found(rng: np.random.Generator) -> None:
    live = shuffled(rng, drawn(rng, 250), [(0, None)] * 250)
    result = compared(drawn(rng, 500), live)
    assert names(result.moved) == {(None, "flat"), (0, "flat")}
    assert one(result, None, "flat").sentence() == (
        "all classes: the share of flat maps rose from 0% to 50%"
    )
    assert one(result, 0, "border").live == 250


def test_flat_maps_alone(rng: np.random.Generator) -> None:
    result = compared(drawn(rng, 500), [(0, None)] * 500)
    assert names(result.moved) == {(None, "flat"), (0, "flat")}
    assert TooFew(0, "border", 500, 0) in result.too_few


def test_a_fall_and_another_spread_in_words(rng: np.random.Generator) -> None:
    result = compared(drawn(rng, 500), drawn(rng, 500, centroid_x=0.2))
    assert one(result, None, "centroid_x").sentence() == (
        "all classes: the mean column of the heat, of the width, fell from 0.40 to 0.20 (median)"
    )
    values = rng.permutation(np.tile([0.2, 0.4, 0.6], 167))
    wide: Maps = [
        (0, each and replace(each, border=float(value)))
        for (_, each), value in zip(drawn(rng, 500), values, strict=False)
    ]
    found = one(compared(drawn(rng, 500), wide), 0, "border")
    assert found.moved
    assert found.sentence() == (
        "class 0: the share of the heat on the border is distributed differently: the middle half "
        "of the photos was between 0.37 and 0.44 and is now between 0.20 and 0.60"
    )


def shift(statistic: str, before: Quartiles, after: Quartiles, moved: bool = True) -> Shift:
    return Shift(None, statistic, 1.0, 0.5, 1e-9, before, after, 100, 100, moved)


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (shift("flat", (0, 0, 0), (0, 0, 0), moved=False), "the share of flat maps is as before"),
        (
            shift("border", (0.1, 0.2, 0.3), (0.1, 0.201, 0.3), moved=False),
            "the share of the heat on the border is as before",
        ),
        (
            shift("flat", (0.001,) * 3, (0.004,) * 3),
            "the share of flat maps rose from 0.1% to 0.4%",
        ),
        (
            shift("entropy", (0.9, 0.9912, 0.999), (0.9, 0.9931, 0.999)),
            "the entropy of the heat rose from 0.991 to 0.993 (median)",
        ),
        (
            shift("spread", (0.1001, 0.2, 0.3), (0.1002, 0.2, 0.3)),
            (
                "the spread of the heat is distributed differently: the middle half of the photos "
                "was between 0.1001 and 0.3000 and is now between 0.1002 and 0.3000"
            ),
        ),
        (
            shift("spread", (0.1, 0.2, 0.3), (0.1, 0.2, 0.3)),
            "the spread of the heat has changed only outside its quartiles",
        ),
    ],
)
def test_sentences(found: Shift, sentence: str) -> None:
    assert found.sentence() == f"all classes: {sentence}"


def test_a_reference_that_was_read_compares_alike(
    rng: np.random.Generator, tmp_path_factory: pytest.TempPathFactory
) -> None:
    good: Reference = reference_of(drawn(rng, 300), ORIGIN)
    file = tmp_path_factory.mktemp("reference") / "good.parquet"
    good.write(file)
    snapshot = window_of(drawn(rng, 300, border=0.5)).snapshot()
    assert compare(read_reference(file), snapshot) == compare(good, snapshot)


def test_what_was_not_compared_is_not_known(rng: np.random.Generator) -> None:
    """A reference of 58 photos of 20 classes; the live photos, on which there is a logo, are of
    two of them."""
    good: Maps = [(number % 20, each) for number, (_, each) in enumerate(drawn(rng, 58))]
    live = shuffled(rng, drawn(rng, 114, 3, border=0.9), drawn(rng, 57, 4))
    result = compared(good, live)
    assert result.has_moved is None
    assert result.missing == (
        "all classes: nothing was compared, because 50 different photos are needed on each side "
        "and the reference has 5, weighted to the live mix of classes"
    )
    (of_class,) = (each.sentence("cat") for each in result.too_few if each.index == 3)
    assert of_class == (
        "class 'cat': nothing was compared, because 50 different photos are needed on each side "
        "and the reference has 3"
    )


def test_whether_anything_has_moved_is_known_where_all_classes_were_compared(
    rng: np.random.Generator,
) -> None:
    still = compared(drawn(rng, 300), drawn(rng, 300))
    assert (still.has_moved, still.missing) == (False, None)
    moved = compared(drawn(rng, 300), drawn(rng, 300, border=0.6))
    assert (moved.has_moved, moved.missing) == (True, None)


def test_where_flat_maps_alone_were_compared_nothing_is_known(rng: np.random.Generator) -> None:
    """20 of the reference's 60 maps are flat, so that 40 are left to be compared."""
    good = [*drawn(rng, 40), *[(0, None)] * 20]
    result = compared(good, [*drawn(rng, 200, 0, border=0.9), *[(0, None)] * 80])
    assert {each.statistic for each in result.shifts} == {"flat"}
    assert result.has_moved is None
    assert result.missing
    assert "50 different photos are needed" in result.missing


def test_a_class_that_has_not_moved_says_nothing_of_the_others(rng: np.random.Generator) -> None:
    """Class 0 alone is compared: all together, its 500 photos and the one of class 1 are worth
    few."""
    good = [*drawn(rng, 500, 0), *drawn(rng, 1, 1)]
    result = compared(good, shuffled(rng, drawn(rng, 100, 0), drawn(rng, 200, 1)))
    assert {each.index for each in result.shifts} == {0}
    assert result.has_moved is None
    assert result.missing
    found = compared(good, shuffled(rng, drawn(rng, 100, 0, border=0.8), drawn(rng, 200, 1)))
    assert found.has_moved is True
    assert found.missing


def test_a_window_with_too_few_maps_says_so(rng: np.random.Generator) -> None:
    result = compared(drawn(rng, 300), drawn(rng, 49))
    assert result.has_moved is None
    assert result.missing == (
        "all classes: nothing was compared, because 50 different photos are needed on each side "
        "and the window of live maps has 49"
    )


@pytest.mark.parametrize(
    ("counts", "worth"),
    [
        ([1000], 1000 / (1 + 1 / 1000 + 1 / 500)),
        ([29, 29], 58 / (1 + 2 / 58 + 2 / 500)),
        ([1] * 58, 58 / (2 + 58 / 500)),
    ],
)
def test_what_a_reference_is_worth(counts: list[int], worth: float) -> None:
    assert expected_worth(np.array(counts)) == pytest.approx(worth)


@pytest.mark.parametrize("classes", [1, 2, 30])
def test_as_many_photos_as_are_needed_are_worth_just_enough(classes: int) -> None:
    photos = needed_photos(classes)
    for count, enough in ((photos - 1, False), (photos, True)):
        shared = np.bincount(np.arange(count) % classes)
        assert (expected_worth(shared) >= LEAST) is enough


def test_the_expected_worth_is_that_of_comparisons(rng: np.random.Generator) -> None:
    """A reference of 58 photos of 30 equally frequent classes is worth about 40 photos."""
    expected, worth = [], []
    for _ in range(20):
        good, live = rng.integers(0, 30, 58), rng.integers(0, 30, 500)
        result = compared(
            [(int(index), each) for index, (_, each) in zip(good, drawn(rng, 58), strict=True)],
            [(int(index), each) for index, (_, each) in zip(live, drawn(rng, 500), strict=True)],
        )
        worth.append(result.too_few[0].reference)
        expected.append(expected_worth(np.unique(good, return_counts=True)[1]))
    assert np.median(worth) == pytest.approx(np.median(expected), abs=5)

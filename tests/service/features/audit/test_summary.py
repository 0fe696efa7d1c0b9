"""The summary of an audit, on records whose numbers can be followed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pytest

from cam.evaluation.chance import interval
from service.features.audit.records import ArmRecord, PhotoRecord
from service.features.audit.report import audit_page
from service.features.audit.schemas import ArmSummary, Audit
from service.features.audit.summary import summarise
from tests.service.features.audit.records import arm, record

METRICS = ("deletion", "insertion", "stability")


def summary(records: list[PhotoRecord], metrics: tuple[str, ...] = METRICS) -> Audit:
    return summarise(records, model="m", weights="w", metrics=metrics)


def of(audit: Audit, method: str) -> ArmSummary:
    (found,) = [each for each in audit.arms if each.method == method]
    return found


def points(audit: Audit) -> dict[str, float | None]:
    return {
        each.method: None if each.points is None else round(each.points.mean, 6)
        for each in audit.arms
    }


def alike(arms: Mapping[str, ArmRecord], photos: int = 20) -> list[PhotoRecord]:
    return [record(number, arms) for number in range(photos)]


def test_an_interval_is_of_the_values_that_there_are() -> None:
    found = interval([1.0, None, 3.0, 2.0])
    assert found is not None
    assert (found.mean, found.photos) == (2.0, 3)
    # t of 2 degrees of freedom is 4.303, and the error 1 / √3.
    assert (found.low, found.high) == pytest.approx((2 - 2.484, 2 + 2.484), abs=1e-3)
    few = interval([1.0, 3.0])
    assert few is not None
    assert (few.mean, few.low, few.high, few.photos) == (2.0, None, None, 2)
    assert interval([None, None]) is None
    assert interval([]) is None
    same = interval([0.25] * 5)
    assert same is not None
    assert (same.low, same.mean, same.high) == (0.25, 0.25, 0.25)


@pytest.mark.parametrize(("value", "low", "high"), [(1.0, 0.8389, 1), (0.0, 0, 0.1611)])
def test_a_share_of_all_photos_is_not_certain(value: float, low: float, high: float) -> None:
    """Wilson's interval of 20 of 20: 20 / (20 + 1.96²) = 0.8389."""
    found = interval([value] * 20, proportion=True)
    assert found is not None
    assert (found.low, found.mean, found.high) == pytest.approx((low, value, high), abs=1e-4)
    some = interval([value] * 19 + [0.5], proportion=True)
    assert some is not None
    assert some.low is not None
    assert some.high is not None
    assert some.low < some.high <= 1


@pytest.mark.parametrize("count", [3, 5, 10, 40])
@pytest.mark.parametrize("shape", [(2, 5), (5, 2), (4, 4)])
def test_an_interval_holds_the_mean_of_small_samples(
    count: int, shape: tuple[float, float]
) -> None:
    """The bootstrap's held it in 0.73 of the cases for three values: the scores of maps are shares,
    here of beta distributions."""
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(2000):
        found = interval(rng.beta(*shape, count).tolist())
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        inside += found.low <= shape[0] / sum(shape) <= found.high
    assert inside / 2000 >= 0.93


def audits_of(
    count: int, scores: Callable[[np.random.Generator, int], list[float]]
) -> Iterator[Audit]:
    """Audits of 22 methods on 20 photos.

    Args:
        scores: returns the deletion of each method on a photo.
    """
    for seed in range(count):
        rng = np.random.default_rng(seed)
        yield summary(
            [
                record(
                    number,
                    {f"m{n}@l": arm({"deletion": each}) for n, each in enumerate(scores(rng, 22))},
                )
                for number in range(20)
            ],
            ("deletion",),
        )


@pytest.mark.slow
def test_of_many_equal_methods_few_audits_call_one_worse() -> None:
    """An interval for each pair calls one of 22 methods worse in nearly all audits."""
    worse = 0
    for found in audits_of(100, lambda rng, count: rng.random(count).tolist()):
        assert found.recommendation is None
        assert found.why_none is not None
        worse += "none of them differs" not in found.why_none
    assert worse <= 10


def test_a_method_that_is_really_better_is_found_among_many() -> None:
    """It is better by its own spread; the others are equal to each other."""

    def scores(rng: np.random.Generator, count: int) -> list[float]:
        return [float(rng.normal(-2 if n == 13 else 0)) for n in range(count)]

    for found in audits_of(5, scores):
        assert found.recommendation is not None
        assert found.recommendation.method == "m13"
        assert len(found.recommendation.alike) < 8


def test_an_interval_is_as_wide_as_the_normal_one() -> None:
    values = np.random.default_rng(0).normal(size=400)
    found = interval(values.tolist())
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    half = 1.96 * values.std() / 20
    assert found.high - found.mean == pytest.approx(half, rel=0.1)
    assert found.mean - found.low == pytest.approx(half, rel=0.1)


def test_points_are_the_share_of_the_other_methods_that_are_worse() -> None:
    # Deletion: lower is better. a beats both others, b beats one of two, c none.
    arms = {"a@l": arm({"deletion": 0.1}), "b@l": arm({"deletion": 0.2})}
    arms["c@l"] = arm({"deletion": 0.3})
    assert points(summary(alike(arms))) == {"a": 1, "b": 0.5, "c": 0}


def test_higher_is_better_where_the_metric_says_so() -> None:
    arms = {"a@l": arm({"insertion": 0.1}), "b@l": arm({"insertion": 0.2})}
    assert points(summary(alike(arms))) == {"a": 0, "b": 1}


def test_methods_with_the_same_value_share_the_points() -> None:
    # a and b beat c, and half of each other: (1 + ½) / 2.
    arms = {"a@l": arm({"deletion": 0.2}), "b@l": arm({"deletion": 0.2 + 1e-7})}
    arms["c@l"] = arm({"deletion": 0.3})
    assert points(summary(alike(arms))) == {"a": 0.75, "b": 0.75, "c": 0}


def test_a_method_without_a_value_beats_none() -> None:
    arms = {"a@l": arm({"deletion": 0.9}), "b@l": arm({"deletion": None}), "c@l": arm({})}
    # b and c are equal, so each beats half of the other: ½ / 2.
    assert points(summary(alike(arms))) == {"a": 1, "b": 0.25, "c": 0.25}


def test_localisation_decides_and_faithfulness_only_where_it_is_the_same() -> None:
    arms = {
        "a@l": arm({"deletion": 0.1, "insertion": 0.5}, grids={"2": 0.9, "3": 0.1}),
        "b@l": arm({"deletion": 0.2, "insertion": 0.5}, grids={"2": 0.8, "3": 0.1}),
    }
    # a: faithfulness (1 + ½) / 2 = ¾, localisation (1 + ½) / 2 = ¾.
    assert points(summary(alike(arms))) == {"a": 0.75, "b": 0.25}
    # a localises, b is faithful: 0.9 × 1 + 0.1 × 0.
    arms["a@l"] = arm({"deletion": 0.2}, grids={"2": 0.2})
    arms["b@l"] = arm({"deletion": 0.1}, grids={"2": 0.1})
    assert points(summary(alike(arms))) == {"a": 0.9, "b": 0.1}
    # The same localisation: ½ × 0.9 each, and 0.1 for the faithful one.
    arms["b@l"] = arm({"deletion": 0.1}, grids={"2": 0.2})
    assert points(summary(alike(arms))) == {"a": 0.45, "b": 0.55}


def test_photos_without_a_grid_count_only_where_too_few_have_one() -> None:
    arms = {
        "a@l": arm({"deletion": 0.2}, grids={"2": 0.2}),
        "b@l": arm({"deletion": 0.1}, grids={"2": 0.1}),
    }
    plain = {name: each.model_copy(update={"grids": {}}) for name, each in arms.items()}
    for grids, expected in ((20, {"a": 0.9, "b": 0.1}), (19, {"a": 0.0, "b": 1.0})):
        mixed = [record(number, arms if number < grids else plain) for number in range(40)]
        found = summary(mixed)
        assert points(found) == expected
        assert of(found, "a").points is not None
        assert of(found, "a").points.photos == (20 if grids == 20 else 40)  # type: ignore[union-attr]


def test_a_recommendation_by_faithfulness_alone_says_so() -> None:
    arms = {f"{name}@l": arm({"deletion": n / 10}) for n, name in enumerate("abc")}
    best = summary(alike(arms)).recommendation
    assert best is not None
    assert best.reason == (
        "it is better than b@l and c@l on the mean of 20 photos; too few photos were in grids, so "
        "faithfulness alone decides, which does not tell whether a map finds its class"
    )


def test_stability_gives_no_points() -> None:
    arms = {
        "a@l": arm({"deletion": 0.1, "stability": 0.1}),
        "b@l": arm({"deletion": 0.2, "stability": 0.9}),
    }
    assert points(summary(alike(arms))) == {"a": 1, "b": 0}


def test_a_map_that_stays_shows_the_photo() -> None:
    arms = {
        "photo@l": arm({"deletion": 0.1}, sanity=[1.0, 0.6, 0.5]),
        "model@l": arm({"deletion": 0.2}, sanity=[0.9, 0.1, 0.2]),
        "other@l": arm({"deletion": 0.3}, sanity=[0.95, 0.1, None]),
        "unknown@l": arm({"deletion": 0.4}),
    }
    found = summary(alike(arms))
    photo, model, other = (of(found, name) for name in ("photo", "model", "other"))
    assert (photo.shows_the_model, model.shows_the_model) == (False, True)
    assert of(found, "unknown").shows_the_model is None
    assert photo.sanity_mean is not None
    assert photo.sanity_mean.mean == pytest.approx(0.7)
    # A map that is gone has changed: (0.95 + 0.1 + 0) / 3.
    assert other.sanity_mean is not None
    assert other.sanity_mean.mean == pytest.approx(0.35)
    assert other.shows_the_model is True
    assert [each["absolute"] and each["absolute"].mean for each in other.sanity] == [
        pytest.approx(0.95),
        pytest.approx(0.1),
        0,
    ]
    # Methods that show the photo are not compared with the others.
    assert points(found) == {"photo": None, "model": 1, "other": 0.5, "unknown": 0}
    assert found.recommendation is not None
    assert found.recommendation.method == "model"


def test_stages_that_a_map_cannot_see_do_not_count() -> None:
    """A map without a gradient does not depend on weights behind its layer: it stays the same, and
    is another one when the layer's own are random."""
    arms = {
        "late@l": arm({"deletion": 0.1}, sanity=[1.0, 1.0, 1.0, 0.4]),
        "photo@l": arm({"deletion": 0.2}, sanity=[1.0, 1.0, 1.0, 0.9]),
        "edges@l": arm({"deletion": 0.3}, sanity=[1.0, 1.0, 1.0, 1.0]),
    }
    found = summary(alike(arms))
    shows = [of(found, name).shows_the_model for name in ("late", "photo", "edges")]
    assert shows == [True, False, False]


def test_few_grids_rule_out_a_method_that_localises_worse() -> None:
    """Faithfulness alone has recommended a method with 0.40 of the heat in its cell before one with
    0.69."""

    def photo(number: int, *, in_grid: bool) -> PhotoRecord:
        shares = {"near": 0.69, "next": 0.66, "far": 0.40} if in_grid else {}
        deletions = {"near": 0.2, "next": 0.3, "far": 0.1}
        wobble = 0.02 * (number % 3)
        return record(
            number,
            {
                f"{name}@l": arm(
                    {"deletion": value},
                    grids={"2": shares[name] + (wobble if name == "next" else 0)}
                    if in_grid
                    else {},
                )
                for name, value in deletions.items()
            },
        )

    found = summary([photo(number, in_grid=number < 8) for number in range(40)])
    assert found.recommendation is not None
    assert found.recommendation.method == "near"
    assert "far@l has 0.40 of its heat on its class in 8 grids" in found.recommendation.reason
    none = summary([photo(number, in_grid=False) for number in range(40)])
    assert none.recommendation is not None
    assert none.recommendation.method == "far"


def test_without_a_map_of_the_model_itself_nothing_was_checked() -> None:
    arms = {"none@l": arm(sanity=[None, None], heat=None), "some@l": arm(sanity=[None, None])}
    found = summary(alike(arms))
    assert of(found, "none").shows_the_model is None
    assert of(found, "some").shows_the_model is True


def test_only_the_lower_end_of_the_interval_above_the_limit_counts() -> None:
    def correlations(values: list[float]) -> list[PhotoRecord]:
        return [
            record(number, {"a@l": arm(sanity=[each]), "b@l": arm(sanity=[0.0])})
            for number, each in enumerate(values)
        ]

    assert of(summary(correlations([0.2, 0.9, 0.2, 0.9])), "a").shows_the_model is True
    assert of(summary(correlations([0.8, 0.9, 0.8, 0.9])), "a").shows_the_model is False


@pytest.mark.parametrize(
    ("other", "blind"),
    [
        ({"photo": 0.95}, True),
        ({"photo": 0.9}, False),
        ({"grid": 0.95}, True),
        ({"photo": 1.0, "grid": 0.91}, True),
        # On a photo of one object its activations may order the positions for every class. Where
        # both classes are seen, the map tells them apart, and is on the right one.
        ({"photo": 0.95, "grid": 0.3}, False),
        ({"photo": -1.0, "grid": 1.0}, False),
        ({}, False),
    ],
)
def test_a_map_that_is_the_same_for_two_classes_is_blind(
    other: dict[str, float | None], blind: bool
) -> None:
    arms = {
        # What random logits did to the map does not matter.
        "a@l": arm(sanity=[1.0 - blind, 0, 0], other_class=other),
        "b@l": arm(sanity=[0.99, 0, 0], other_class={"photo": 0.0}),
    }
    found = summary(alike(arms))
    assert of(found, "a").class_blind is blind
    assert of(found, "b").class_blind is False
    for image, value in other.items():
        mean = of(found, "a").other_class[image]
        assert mean is not None
        assert mean.mean == pytest.approx(value)


def test_a_method_without_a_class_is_blind_though_that_was_not_measured() -> None:
    """So are the records of a former version."""
    found = summary(alike({"eigencam@l": arm(), "gradcam@l": arm()}))
    assert of(found, "eigencam").class_blind is True
    assert of(found, "gradcam").class_blind is False


def test_a_method_that_passes_the_photo_on_is_not_recommended_though_nothing_was_randomised() -> (
    None
):
    """Weights that are quantised cannot be made random. Guided backpropagation differs between two
    classes all the same."""
    best = arm({"deletion": 0.0}, grids={"2": 1.0}, other_class={"photo": 0.1})
    arms = {
        "guidedbackprop": best.model_copy(update={"sanity": []}),
        "right@l": arm({"deletion": 0.1}, grids={"2": 0.9}, other_class={"photo": 0.1}),
        "wrong@l": arm({"deletion": 0.1}, grids={"2": 0.1}, other_class={"photo": 0.1}),
    }
    found = summary(alike(arms))
    assert found.recommendation is not None
    assert found.recommendation.method == "right"


def test_a_blind_method_is_never_recommended() -> None:
    best = arm({"deletion": 0.0}, grids={"2": 1.0}, other_class={"photo": 0.99})
    arms = {
        "best@l": best,
        "right@l": arm({"deletion": 0.1}, grids={"2": 0.9}, other_class={"photo": 0.1}),
        "wrong@l": arm({"deletion": 0.1}, grids={"2": 0.1}, other_class={"photo": 0.1}),
    }
    found = summary(alike(arms))
    assert found.recommendation is not None
    assert found.recommendation.method == "right"
    assert points(found) == {"best": None, "right": 0.95, "wrong": 0.05}
    del arms["wrong@l"]
    assert summary(alike(arms)).why_none == (
        "only right@l has maps that show the model and depend on the class"
    )


@pytest.mark.parametrize(
    ("passes", "chosen"),
    [
        # Method, and its passes forwards; a pass backwards counts as two more.
        ({"a": 9, "b": 1}, "b"),
        ({"a": 1, "b": 9}, "a"),
        ({"gradcam": 1, "b": 1}, "b"),
        ({"gradcam": 1, "b": 4}, "gradcam"),
        ({"a": 1, "b": 1}, "a"),
        # What was not measured is what the formula takes: 2048 passes.
        ({"scorecam": None, "b": 9}, "b"),
    ],
)
def test_of_methods_with_the_same_points_the_one_with_the_fewest_passes_is_recommended(
    passes: dict[str, int | None], chosen: str
) -> None:
    """Times, which differ from run to run, do not matter."""
    for milliseconds in ((1.0, 9.0), (9.0, 1.0)):
        arms = {
            f"{name}@l": arm({"deletion": 0.1}, forwards=count, milliseconds=time)
            for (name, count), time in zip(passes.items(), milliseconds, strict=True)
        }
        best = summary(alike({**arms, "worse@l": arm({"deletion": 0.9})})).recommendation
        assert best is not None
        assert best.method == chosen
        assert len(best.alike) == 1


def noisy(best: int, other: int) -> list[PhotoRecord]:
    """Records of two methods, of which `best` is better on five of nine photos, and of three that
    are worse on each.

    Args:
        best, other: passes of the two methods.
    """

    def arms(number: int) -> dict[str, ArmRecord]:
        mine = 0.1 if number % 9 < 5 else 0.3
        return {
            "other@l": arm({"deletion": 0.2}, forwards=other),
            "best@l": arm({"deletion": mine}, forwards=best),
            **{f"worse{n}@l": arm({"deletion": 0.8 + n / 100}) for n in range(3)},
        }

    return [record(number, arms(number)) for number in range(27)]


@pytest.mark.parametrize(("passes", "chosen"), [(1, "best"), (10, "best"), (11, "other")])
def test_of_methods_that_are_alike_the_points_decide_up_to_ten_times_the_passes(
    passes: int, chosen: str
) -> None:
    best = summary(noisy(passes, 1)).recommendation
    assert best is not None
    assert best.method == chosen
    assert best.alike == ["other@l" if chosen == "best" else "best@l"]
    told = "best@l does not differ from it beyond chance and takes 11 times as many passes"
    assert (told in best.reason) is (chosen == "other")


def test_a_better_method_is_recommended_though_it_costs_more() -> None:
    arms = {"dear@l": arm({"deletion": 0.1}, forwards=100), "cheap@l": arm({"deletion": 0.2})}
    best = summary(alike(arms)).recommendation
    assert best is not None
    assert (best.method, best.alike) == ("dear", [])


def test_where_most_methods_are_alike_none_is_recommended() -> None:
    """Of five methods, the best one differs from none but the last beyond chance."""
    rng = np.random.default_rng(3)
    records = [
        record(
            number,
            {
                **{f"m{n}@l": arm({"deletion": float(rng.random())}) for n in range(4)},
                "worse@l": arm({"deletion": 2.0}),
            },
        )
        for number in range(20)
    ]
    found = summary(records)
    assert found.recommendation is None
    assert found.why_none == (
        "of 5 methods whose scores are not the same, 3 of them do not differ from the best one "
        "beyond chance on 20 photos; more photos may tell them apart"
    )


def test_methods_that_score_the_same_are_one() -> None:
    """Behind a pooled linear head, several methods make the same map: they are not alike by
    chance."""
    equal = {f"{name}@l": arm({"deletion": 0.1}) for name in ("gradcam", "hirescam", "xgradcam")}
    best = summary(alike({**equal, "worse@l": arm({"deletion": 0.9})})).recommendation
    assert best is not None
    assert (best.method, best.alike) == ("gradcam", ["hirescam@l", "xgradcam@l"])
    found = summary(alike(equal))
    assert found.recommendation is None
    assert found.why_none == "gradcam@l, hirescam@l and xgradcam@l score the same on each photo"


def test_a_share_of_few_methods_is_no_percentage() -> None:
    few = {f"m{n}@l": arm({"deletion": n / 10}) for n in range(5)}
    best = summary(alike(few)).recommendation
    assert best is not None
    assert best.reason.startswith("it is better than m1@l, m2@l, m3@l and m4@l on the mean of 20")
    best = summary(alike({**few, "m5@l": arm({"deletion": 0.9})})).recommendation
    assert best is not None
    assert best.reason.startswith("it beats 100% of the 5 other methods on a photo")


PHOTO = arm({"deletion": 0.1}, sanity=[1.0])
MODEL = arm({"deletion": 0.2}, sanity=[0.0])
WORSE = arm({"deletion": 0.3}, sanity=[0.0])


@pytest.mark.parametrize(
    ("arms", "photos", "reason"),
    [
        ({"a@l": MODEL, "b@l": MODEL}, 19, "19 photos were measured, and a recommendation needs"),
        ({"a@l": MODEL, "b@l": MODEL}, 1, "1 photo was measured, and a recommendation needs 20"),
        ({}, 0, "no photos were measured"),
        ({"a@l": MODEL}, 20, "only a@l was measured, and there is nothing to compare it with"),
        ({"a@l": MODEL, "b@l": PHOTO}, 20, "only a@l has maps that show the model"),
        ({"a@l": PHOTO, "b@l": PHOTO}, 20, "no method has maps that show the model"),
        ({"a@l": arm(), "b@l": arm()}, 20, "neither localisation nor a metric of faithfulness"),
    ],
)
def test_without_a_recommendation_the_cause_is_named(
    arms: dict[str, ArmRecord], photos: int, reason: str
) -> None:
    found = summary(alike(arms, photos))
    assert found.recommendation is None
    assert found.why_none is not None
    assert found.why_none.startswith(reason)


def test_methods_that_are_compared_on_few_photos_are_not_recommended() -> None:
    arms, none = {"a@l": MODEL, "b@l": MODEL}, {"a@l": arm(), "b@l": arm()}
    records = [record(number, arms if number < 7 else none) for number in range(30)]
    found = summary(records)
    assert found.recommendation is None
    assert found.why_none is not None
    assert found.why_none.startswith("the methods could be compared on 7 photos")


def test_a_recommendation_has_no_cause_of_its_absence() -> None:
    found = summary(alike({"a@l": MODEL, "b@l": WORSE}, 20))
    assert found.recommendation is not None
    assert found.why_none is None


def test_an_audit_without_photos_has_no_numbers_and_a_page() -> None:
    found = summarise([], model="m", weights="w", metrics=METRICS, failed={"a.png": "it is torn"})
    assert (found.photos, found.arms, found.recommendation) == (0, [], None)
    page = "".join(audit_page(found, []))
    assert "No method can be recommended: no photos were measured" in page
    assert "No photo could be measured. a.png: it is torn." in page


def test_the_procedure_is_told_as_it_was() -> None:
    """The time of the last measurement, the versions of all photos, and the stages there were."""
    records = [
        record(
            number,
            {"a@l": arm(sanity=[0.1, 0.2] if number < 3 else None)},
            measured=f"2026-11-24T0{number}:00:00+00:00",
            made_with={"torch": "2.9" if number else "2.8", "fit": "pad"},
        )
        for number in range(5)
    ]
    found = summary(records)
    assert found.made == "2026-11-24T04:00:00+00:00"
    assert found.made_with == {"torch": "2.8 and 2.9", "fit": "pad"}
    assert "cascading randomisation in 2 stages" in found.conventions["sanity"]
    assert "on 3 of the 5 photos" in found.conventions["sanity"]


def test_costs_are_medians() -> None:
    spent = [5.0, 1.0, None, 9.0]
    records = [
        record(number, {"a@l": arm(milliseconds=each, forwards=10 * number)})
        for number, each in enumerate(spent)
    ]
    found = of(summary(records), "a")
    assert (found.milliseconds, found.forwards) == (5.0, 15)


def test_mean_maps_are_of_the_commonest_size() -> None:
    maps = [[[0.0, 1.0]], [[0.5, 0.5]], [[1.0]]]
    records = [record(number, {"a@l": arm(heat=each)}) for number, each in enumerate(maps)]
    found = of(summary([*records, record(3, {"a@l": arm(heat=None)})]), "a")
    assert found.mean_map == [[0.25, 0.75]]
    assert found.photos == 3


def test_quantiles_are_of_methods_that_show_the_model() -> None:
    records = [
        record(
            number,
            {
                "a@l": arm({"deletion": number / 100}, sanity=[0.0]),
                "photo@l": arm({"deletion": 7.0}, sanity=[1.0]),
            },
        )
        for number in range(101)
    ]
    quantiles = summary(records).quantiles
    assert quantiles == {"deletion": pytest.approx([number / 100 for number in range(101)])}


def test_records_in_any_order_give_the_same_summary() -> None:
    records = [
        record(number, {"a@l": arm({"deletion": number / 10}), "b@l": arm({"deletion": 0.3})})
        for number in range(6)
    ]
    one, other = summary(records), summary(records[::-1])
    assert one.model_dump(exclude={"made"}) == other.model_dump(exclude={"made"})

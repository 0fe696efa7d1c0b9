"""The summary of an audit, on records whose numbers can be followed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pytest

from service.audit.bootstrap import interval
from service.audit.report import audit_page
from service.audit.summary import summarise
from service.core.audit_schemas import ArmRecord, ArmSummary, Audit, PhotoRecord
from tests.service.audit.records import arm, record

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
    assert 1 <= found.low < 2 < found.high <= 3
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
    assert some.low < some.high


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
        assert found.recommendation is not None
        worse += len(found.recommendation.alike) < 21
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


def test_points_are_the_mean_of_localisation_and_faithfulness() -> None:
    arms = {
        "a@l": arm({"deletion": 0.1, "insertion": 0.5}, grids={"2": 0.9, "3": 0.1}),
        "b@l": arm({"deletion": 0.2, "insertion": 0.5}, grids={"2": 0.8, "3": 0.1}),
    }
    # a: faithfulness (1 + ½) / 2 = ¾, localisation (1 + ½) / 2 = ¾.
    assert points(summary(alike(arms))) == {"a": 0.75, "b": 0.25}
    # Without localisation on half of the photos the points of these are faithfulness alone.
    arms["a@l"] = arm({"deletion": 0.1}, grids={"2": 0.1})
    arms["b@l"] = arm({"deletion": 0.2}, grids={"2": 0.2})
    plain = {name: each.model_copy(update={"grids": {}}) for name, each in arms.items()}
    mixed = [record(number, arms if number < 2 else plain) for number in range(4)]
    assert points(summary(mixed)) == {"a": 0.75, "b": 0.25}


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


@pytest.mark.parametrize(("first", "blind"), [(0.95, True), (0.85, False)])
def test_a_map_that_stays_at_the_first_stage_is_blind_to_the_class(
    first: float, blind: bool
) -> None:
    found = summary(alike({"a@l": arm(sanity=[first, 0, 0]), "b@l": arm(sanity=[0, 0, 0])}))
    assert of(found, "a").class_blind is blind


def test_the_cheapest_of_those_that_are_as_good_is_recommended() -> None:
    dear = arm({"deletion": 0.1}, forwards=100)
    cheap = arm({"deletion": 0.1 + 1e-7}, forwards=1)
    worse = arm({"deletion": 0.5}, forwards=1)
    found = summary(alike({"dear@l": dear, "worse@l": worse, "cheap@l": cheap}))
    best = found.recommendation
    assert best is not None
    assert (best.method, best.layer, best.alike) == ("cheap", "l", ["dear@l"])


@pytest.mark.parametrize(
    ("arms", "cheapest"),
    [
        # Times decide where they are known; times that are nearly the same are the same.
        ({"a": (1, 30.0), "b": (100, 10.0)}, "b"),
        ({"a": (1, 11.0), "b": (1, 10.0)}, "a"),
        ({"a": (1, None), "b": (9, 10.0)}, "b"),
        # A pass backwards counts as two forwards.
        ({"gradcam": (1, None), "b": (1, None)}, "b"),
        ({"gradcam": (1, None), "b": (4, None)}, "gradcam"),
        # What is not known comes last.
        ({"a": (None, None), "b": (9, None)}, "b"),
        ({"a": (None, None), "b": (None, None)}, "a"),
    ],
)
def test_cost_is_time_or_else_passes(
    arms: dict[str, tuple[int | None, float | None]], cheapest: str
) -> None:
    equal = {
        f"{name}@l": arm({"deletion": 0.1}, forwards=forwards, milliseconds=milliseconds)
        for name, (forwards, milliseconds) in arms.items()
    }
    best = summary(alike(equal)).recommendation
    assert best is not None
    assert best.method == cheapest


def test_a_better_method_is_recommended_though_it_costs_more() -> None:
    arms = {"dear@l": arm({"deletion": 0.1}, forwards=100), "cheap@l": arm({"deletion": 0.2})}
    best = summary(alike(arms)).recommendation
    assert best is not None
    assert (best.method, best.alike) == ("dear", [])


def test_where_no_method_differs_the_reason_says_so() -> None:
    equal = {f"{name}@l": arm({"deletion": 0.1}) for name in ("first", "second")}
    best = summary(alike(equal)).recommendation
    assert best is not None
    assert best.method == "first"
    assert best.reason.startswith("no method differs from the others beyond chance")


def test_of_equal_methods_the_first_one_is_recommended() -> None:
    equal = {f"{name}@l": arm({"deletion": 0.1}) for name in ("first", "second")}
    best = summary(alike({**equal, "worse@l": arm({"deletion": 0.9})})).recommendation
    assert best is not None
    assert best.method == "first"


def test_a_difference_that_depends_on_the_photo_is_chance() -> None:
    def arms(number: int) -> dict[str, ArmRecord]:
        good, bad = arm({"deletion": 0.1}, forwards=9), arm({"deletion": 0.2})
        better = number % 9 < 5  # `dear` is better on five of nine photos
        return {"dear@l": good if better else arm({"deletion": 0.3}, forwards=9), "cheap@l": bad}

    def with_a_worse_one(number: int) -> dict[str, ArmRecord]:
        return {**arms(number), "worse@l": arm({"deletion": 0.9})}

    records = [record(number, with_a_worse_one(number)) for number in range(27)]
    best = summary(records).recommendation
    assert best is not None
    assert (best.method, best.alike) == ("cheap", ["dear@l"])
    assert "dear@l does not differ from it beyond chance and takes longer" in best.reason


PHOTO = arm({"deletion": 0.1}, sanity=[1.0])
MODEL = arm({"deletion": 0.2}, sanity=[0.0])


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
    found = summary(alike({"a@l": MODEL, "b@l": MODEL}, 20))
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

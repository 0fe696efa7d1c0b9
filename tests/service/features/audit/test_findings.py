"""What an audit says about a model and its methods."""

from __future__ import annotations

import base64
from collections.abc import Callable
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from service.features.audit.findings import place_of
from service.features.audit.plan import LEAST_PHOTOS
from service.features.audit.records import PhotoRecord
from service.features.audit.schemas import Audit, Finding
from service.features.audit.summary import summarise
from tests.cam.clusters.synthetic import blobs
from tests.service.features.audit.records import arm, record


def summary(records: list[PhotoRecord]) -> Audit:
    return summarise(records, model="m", weights="w", metrics=("deletion",))


def found(audit: Audit, kind: str) -> Finding | None:
    of_kind = [each for each in audit.findings if each.kind == kind]
    assert len(of_kind) <= 1
    return of_kind[0] if of_kind else None


def test_a_model_that_gives_one_answer_ignores_the_photo() -> None:
    arms = {"a@l": arm(heat=None)}
    same = [record(number, arms, confidence=0.25, predicted=4) for number in range(3)]
    finding = found(summary(same), "ignores the photo")
    assert finding is not None
    assert "gives class 4 the probability 0.25 for each of the 3 photos" in finding.sentence


@pytest.mark.parametrize(
    "odd",
    [{"confidence": 0.250003, "predicted": 4}, {"confidence": 0.25, "predicted": 5}],
)
def test_a_model_that_gives_another_answer_once_does_not(odd: dict[str, float]) -> None:
    arms = {"a@l": arm()}
    records = [record(number, arms, confidence=0.25, predicted=4) for number in range(3)]
    records.append(record(3, arms, **odd))  # type: ignore[arg-type]
    assert found(summary(records), "ignores the photo") is None


@pytest.mark.parametrize(
    ("logit", "ignores"),
    [
        (lambda number: 20.0 + number, False),
        (lambda number: 20.0, True),
        (lambda number: None, False),
    ],
)
def test_a_sure_model_is_judged_by_its_logits(
    logit: Callable[[int], float | None], *, ignores: bool
) -> None:
    """The softmax of its logits is 1 for each photo, whatever they are."""
    arms = {"a@l": arm()}
    sure = [
        record(number, arms, confidence=1 - 1e-7 * number, predicted=4, logit=logit(number))
        for number in range(4)
    ]
    assert (found(summary(sure), "ignores the photo") is not None) == ignores


def test_a_model_that_ignores_the_photo_may_look_at_one_place() -> None:
    corner = [[1.0, *[0.0] * 7], *[[0.0] * 8 for _ in range(7)]]
    arms = {"a@l": arm(heat=corner)}
    audit = summary([record(number, arms, confidence=0.25, predicted=4) for number in range(3)])
    assert found(audit, "ignores the photo") is not None
    assert found(audit, "looks at one place") is not None


def test_a_place_is_the_box_around_most_of_the_heat() -> None:
    # 90 of 100 are in one of 25 cells: row 1, column 3 of 5.
    heat = [[10 / 24] * 5 for _ in range(5)]
    heat[1][3] = 90.0
    assert place_of(heat) == pytest.approx((3 / 5, 1 / 5, 4 / 5, 2 / 5))


def test_two_cells_far_apart_are_no_place() -> None:
    heat = [[0.0] * 5 for _ in range(5)]
    heat[0][0] = heat[4][4] = 1.0
    assert place_of(heat) is None


def test_heat_at_the_least_share_is_a_place() -> None:
    # Exactly four fifths in one cell, and the rest in the opposite corner.
    heat = [[0.0] * 5 for _ in range(5)]
    heat[0][0], heat[4][4] = 4.0, 1.0
    assert place_of(heat) == pytest.approx((0, 0, 0.2, 0.2))
    heat[0][0] = 3.9
    assert place_of(heat) is None


def test_no_heat_and_heat_everywhere_are_no_place() -> None:
    assert place_of([[0.0] * 4] * 4) is None
    assert place_of([[1.0] * 4] * 4) is None


def test_a_model_that_looks_at_one_place_is_named_with_the_place() -> None:
    corner = [[0.0] * 8 for _ in range(8)]
    corner[7][0] = 1.0
    arms = {
        "good@l": arm({"deletion": 0.1}, heat=corner),
        "bad@l": arm({"deletion": 0.9}, heat=[[1.0] * 8] * 8),
    }
    finding = found(summary([record(number, arms) for number in range(4)]), "looks at one place")
    assert finding is not None
    assert finding.place is not None
    assert finding.place.model_dump() == {"left": 0, "top": 0.875, "right": 0.125, "bottom": 1}
    assert "80% of the heat of good@l lie between 0% and 12% of the width" in finding.sentence
    assert "between 88% and 100% of the height" in finding.sentence


@pytest.mark.parametrize("seen", [False, True])
def test_a_mark_on_all_photos_of_a_class_is_told(seen: bool) -> None:
    """The photos of the second class carry a mark in the lower left corner. Records of former
    versions may have no thumbnail."""
    random = np.random.default_rng(0)
    records = []
    for number, heat in enumerate(blobs(80, 0, 8)):
        photo = random.integers(0, 256, (32, 32, 3), dtype=np.uint8).repeat(3, 0).repeat(3, 1)
        if number >= 40:
            heat *= 0.2
            heat[-3:, :3] = 1
            photo[-36:, :36] = (255, 0, 255)
        written = BytesIO()
        Image.fromarray(photo).save(written, "JPEG", quality=80)
        records.append(
            record(
                number,
                {"a@l": arm(heat=heat.tolist())},
                predicted=number // 40,
                confidence=0.5,
                label=("cross", "disc")[number // 40],
                thumbnail=base64.b64encode(written.getvalue()).decode() if seen else None,
            )
        )
    audit = summary(records)
    finding = found(audit, "a class looks at one place")
    assert finding is not None
    assert finding.arms == ["a@l"]
    shown = ", and the photos show the same thing there" if seen else ""
    assert finding.sentence == (
        "By a@l, all 40 maps of 'disc' look at the bottom left, where no other class looks"
        f"{shown}. If that is not part of the object, cover it in some photos and explain them "
        "again."
    )
    assert found(summary(records[:40]), "a class looks at one place") is None


@pytest.mark.parametrize("photos", [4, 20])
def test_a_place_is_told_of_the_best_method_though_none_is_recommended(photos: int) -> None:
    corner = [[1.0, *[0.0] * 7], *[[0.0] * 8 for _ in range(7)]]
    centre = [[1.0 if (y, x) == (4, 4) else 0.0 for x in range(8)] for y in range(8)]
    arms = {
        "photo@l": arm(heat=centre, sanity=[1.0]),
        "model@l": arm(heat=corner, sanity=[0.0]),
    }
    audit = summary([record(number, arms) for number in range(photos)])
    assert audit.recommendation is None
    finding = found(audit, "looks at one place")
    assert finding is not None
    assert finding.arms == ["model@l"]


@pytest.mark.parametrize(
    ("photos", "sentence"),
    [
        (0, "No photo was measured."),
        (1, "Only 1 photo was measured; 20 or more are needed to recommend a method."),
        (19, "Only 19 photos were measured; 20 or more are needed to recommend a method."),
        (20, None),
    ],
)
def test_too_few_photos_are_told(photos: int, sentence: str | None) -> None:
    finding = found(summary([record(n, {"a@l": arm()}) for n in range(photos)]), "too few photos")
    assert (finding and finding.sentence) == sentence


def test_methods_are_named_with_their_fault() -> None:
    arms = {
        "photo@l": arm({"deletion": 0.2}, sanity=[1.0, 1.0]),
        "blind@l": arm({"deletion": 0.2}, sanity=[0.2, 0.0], other_class={"photo": 0.95}),
        "other@l": arm({"deletion": 0.2}, sanity=[0.2, 0.0], other_class={"photo": 0.91}),
        "right@l": arm({"deletion": 0.2}, sanity=[1.0, 0.0], other_class={"photo": 0.2}),
        "empty@l": arm(heat=None),
    }
    audit = summary([record(number, arms) for number in range(4)])
    photo = found(audit, "shows the photo, not the model")
    assert photo is not None
    assert photo.arms == ["photo@l"]
    assert photo.sentence.startswith("photo@l shows the photo, not the model")
    blind = found(audit, "hardly depends on the class")
    assert blind is not None
    assert blind.arms == ["blind@l", "other@l"]
    assert blind.sentence.startswith("blind@l and other@l hardly depend on the class")
    empty = found(audit, "no map")
    assert empty is not None
    assert empty.arms == ["empty@l"]


def test_a_blind_method_is_named_though_the_weights_could_not_be_made_random() -> None:
    arms = {"blind@l": arm({"deletion": 0.2}, other_class={"photo": 0.95}), "right@l": arm()}
    finding = found(summary([record(n, arms) for n in range(4)]), "hardly depends on the class")
    assert finding is not None
    assert finding.arms == ["blind@l"]


def test_a_recommended_method_that_is_worse_than_a_baseline_says_so() -> None:
    arms = {"a@l": arm({"deletion": 0.3}), "b@l": arm({"deletion": 0.4})}
    arms["c@l"] = arm({"deletion": 0.5})
    baselines = {"edges": {"deletion": 0.2}, "gaussian": {"deletion": 0.1}}
    baselines |= {"random": {"deletion": 0.5}, "uniform": {"deletion": 0.01}}
    audit = summary([record(number, arms, baselines=baselines) for number in range(20)])
    finding = found(audit, "worse than a baseline")
    assert finding is not None
    assert finding.sentence == (
        "By deletion, the recommended a@l is worse than a centred Gaussian and an edge detector."
    )
    assert found(audit, "no better than a baseline") is None


@pytest.mark.parametrize(
    ("gap", "kind"),
    [
        # By turns 0.021 better and 0.019 worse: 0.001 better on the mean, which is chance.
        (lambda number: 0.001 + 0.02 * (-1) ** number, "no better than a baseline"),
        (lambda number: -0.001 + 0.02 * (-1) ** number, "no better than a baseline"),
        (lambda number: 0.0, "no better than a baseline"),
        # The same mean, and the same on each photo.
        (lambda number: 0.001, None),
        (lambda number: -0.001, "worse than a baseline"),
    ],
)
def test_a_baseline_is_compared_photo_by_photo(
    gap: Callable[[int], float], kind: str | None
) -> None:
    """The spread of the photos themselves, which is much larger, does not matter."""
    records = []
    for number in range(40):
        base = number / 40
        arms = {f"{n}@l": arm({"deletion": base + n}) for n in range(3)}
        edges = {"edges": {"deletion": base + gap(number)}}
        records.append(record(number, arms, baselines=edges))
    audit = summary(records)
    kinds = [each.kind for each in audit.findings if "baseline" in each.kind]
    assert kinds == ([kind] if kind else [])
    if kind == "no better than a baseline":
        finding = found(audit, kind)
        assert finding is not None
        assert finding.sentence == (
            "By deletion, the recommended 0@l does not differ from an edge detector beyond chance."
        )


def test_weights_that_cannot_be_replaced_are_told_and_no_method_shows_the_photo() -> None:
    arms = {"a@l": arm(), "b@l": arm()}
    records = [record(0, arms, sanity_problem="the weights of 'fc' are packed"), record(1, arms)]
    audit = summary(records)
    finding = found(audit, "sanity not measured")
    assert finding is not None
    assert finding.sentence.endswith("could not be measured: the weights of 'fc' are packed.")
    assert [each.shows_the_model for each in audit.arms] == [None, None]
    assert found(summary([record(0, arms)]), "sanity not measured") is None


def test_grids_without_photos_are_told() -> None:
    arms = {"a@l": arm(), "b@l": arm()}
    assert found(summary([record(0, arms)]), "no photo for grids") is not None
    arms["a@l"] = arm(grids={"2": 0.5})
    assert found(summary([record(0, arms)]), "no photo for grids") is None
    fewer = summary([record(each, arms) for each in range(LEAST_PHOTOS - 1)])
    few = found(fewer, "few photos for grids")
    assert few is not None
    assert few.sentence == "Localisation was measured on only 19 photos of 19."
    enough = summary([record(each, arms) for each in range(LEAST_PHOTOS)])
    assert found(enough, "few photos for grids") is None


def test_the_causes_of_missing_grids_are_told_with_their_numbers() -> None:
    """Of these photos the model was sure, and the grid was dropped: that is the cause."""
    causes = ["it is lost in the grid"] * 12 + ["the model is not sure"] + [None] * 2
    arms, none = {"a@l": arm(grids={"2": 0.5})}, {"a@l": arm()}
    audit = summary(
        [record(n, none if why else arms, grid_problem=why) for n, why in enumerate(causes)]
    )
    finding = found(audit, "few photos for grids")
    assert finding is not None
    assert finding.sentence == (
        "Localisation was measured on only 2 photos of 15: for 12 photos, it is lost in the grid; "
        "for 1 photo, the model is not sure."
    )

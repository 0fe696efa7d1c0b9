"""What an audit says about the model and the methods beyond their numbers."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Sequence
from io import BytesIO
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cam.clusters import own_places
from cam.counts import counted
from cam.evaluation.chance import outcome
from cam.evaluation.verdict import COMPARED, NAMED, listed
from service.features.audit.plan import LEAST_PHOTOS, name_of
from service.features.audit.records import PhotoRecord
from service.features.audit.schemas import (
    ArmSummary,
    Audit,
    Finding,
    FindingKind,
    Place,
)

SAME_OUTPUT: Final = 1e-5
"""Largest difference of a class's probability between photos at which the model ignores them, as a
share of the probability, and of its logit, as a share of the logit or of 1. A model with random
weights gives photos nearly, but not quite, the same answer."""
SATURATED: Final = 0.99
"""Probability above which it hardly depends on the logit, and so tells nothing alone."""
HEAT: Final = 0.8
"""Share of the heat that counts as its place."""
PLACE: Final = 0.15
"""Largest share of the image that is one place."""
COMPARED_SIDE: Final = 32
"""Side of the photos, in pixels, in which classes are compared."""


def findings_of(audit: Audit, records: Sequence[PhotoRecord]) -> list[Finding]:
    """Return what a reader should know, the gravest first."""
    findings = _too_few(audit) + _ignoring(records) + _one_place(audit)
    findings += _own_places(audit, records)
    findings += _methods(audit) + _beaten(audit, records)
    findings += _unchecked(records)
    findings += _grids(records)
    return findings


def _grids(records: Sequence[PhotoRecord]) -> list[Finding]:
    """Find that no photo, or too few photos, could be put into grids, with each cause."""
    count = sum(any(arm.grids for arm in record.arms.values()) for record in records)
    if not records or count >= LEAST_PHOTOS:
        return []
    causes = Counter(record.grid_problem for record in records if record.grid_problem)
    why = "; ".join(
        f"for {counted(number, 'photo')}, {cause}" for cause, number in causes.most_common()
    )
    measured = f"on only {counted(count, 'photo')} of {len(records)}"
    return [
        Finding(
            kind="few photos for grids" if count else "no photo for grids",
            sentence=(
                f"Localisation {f'was measured {measured}' if count else 'could not be measured'}"
                f"{f': {why}' if why else ''}."
            ),
        )
    ]


def _too_few(audit: Audit) -> list[Finding]:
    """Find that too few photos could be measured, or none."""
    if audit.photos >= LEAST_PHOTOS:
        return []
    if audit.photos:
        sentence = (
            f"Only {counted(audit.photos, 'photo was', 'photos were')} measured; {LEAST_PHOTOS} or "
            "more are needed to recommend a method."
        )
    elif audit.failed:
        first, *others = audit.failed
        more = f" (and {counted(len(others), 'more photo')} failed)" if others else ""
        sentence = f"No photo could be measured. {first.item}: {first.reason}{more}."
    else:
        sentence = "No photo was measured."
    return [Finding(kind="too few photos", sentence=sentence)]


def _ignoring(records: Sequence[PhotoRecord]) -> list[Finding]:
    """Find a model whose output does not depend on the photo."""
    if len(records) < 2 or len({record.predicted for record in records}) > 1:
        return []
    sure = [record.confidence for record in records]
    logits = [record.logit for record in records if record.logit is not None]
    if max(sure) - min(sure) > SAME_OUTPUT * max(sure):
        return []
    if logits and max(logits) - min(logits) > SAME_OUTPUT * max(1, *map(abs, logits)):
        return []
    if len(logits) < len(records) and max(sure) > SATURATED:
        return []
    return [
        Finding(
            kind="ignores the photo",
            sentence=(
                f"The model ignores the photo: it gives class {records[0].predicted} the "
                f"probability {sure[0]:.3g} for each of the {len(records)} photos, and no map can "
                "show a reason."
            ),
        )
    ]


def _unchecked(records: Sequence[PhotoRecord]) -> list[Finding]:
    """Find a model whose weights could not be replaced."""
    problems = [record.sanity_problem for record in records if record.sanity_problem]
    checked = any(arm.sanity for record in records for arm in record.arms.values())
    if not problems or checked:
        return []
    return [
        Finding(
            kind="sanity not measured",
            sentence=(
                "Whether the maps change when the model's weights are random could not be "
                f"measured: {problems[0]}."
            ),
        )
    ]


def _one_place(audit: Audit) -> list[Finding]:
    """Find a place where all photos have their heat."""
    arm = _best(audit)
    if arm is None or not arm.mean_map:
        return []
    place = place_of(arm.mean_map)
    if place is None:
        return []
    left, top, right, bottom = place
    return [
        Finding(
            kind="looks at one place",
            sentence=(
                f"The model looks at one place of every photo: {HEAT:.0%} of the heat of "
                f"{name_of(arm)} lie between {left:.0%} and {right:.0%} of the width and between "
                f"{top:.0%} and {bottom:.0%} of the height, whatever the photo shows."
            ),
            arms=[name_of(arm)],
            place=Place(left=left, top=top, right=right, bottom=bottom),
        )
    ]


def _own_places(audit: Audit, records: Sequence[PhotoRecord]) -> list[Finding]:
    """Find classes whose maps agree on a place of the frame at which hardly another class looks,
    such as a mark on most of a class's photos (`cam.clusters.own_places`)."""
    arm = _best(audit)
    if arm is None:
        return []
    name = name_of(arm)
    classes: dict[int, list[PhotoRecord]] = {}
    for record in records:
        if name in record.arms and record.arms[name].map is not None:
            classes.setdefault(record.target, []).append(record)
    compared = list(classes.values())
    labels = [mine[0].label or f"class {mine[0].target}" for mine in compared]
    places = own_places(
        [
            (
                [np.array(record.arms[name].map, np.float32) for record in mine],
                [_seen(record) for record in mine],
            )
            for mine in compared
        ]
    )
    said = [
        place.sentence(labels[place.class_], [labels[class_] for class_ in place.shared])
        for place in places
    ]
    return [
        Finding(
            kind="a class looks at one place",
            sentence=(
                f"By {name}, {place}. If that is not part of the object, cover it in some photos "
                "and explain them again."
            ),
            arms=[name],
        )
        for place in said
    ]


def _seen(record: PhotoRecord) -> NDArray[np.uint8] | None:
    """Return what the model saw of a photo, uint8 (`COMPARED_SIDE`, `COMPARED_SIDE`, 3); None if
    the record has no thumbnail."""
    if record.thumbnail is None:
        return None
    with Image.open(BytesIO(base64.b64decode(record.thumbnail))) as small:
        size = (COMPARED_SIDE, COMPARED_SIDE)
        return np.asarray(small.convert("RGB").resize(size, Image.Resampling.BOX))


def _best(audit: Audit) -> ArmSummary | None:
    """Return the recommended method, or else the best one that has maps and does not show the
    photo: that with the most points, or with the most maps."""
    best = audit.recommendation
    if best is not None:
        return next(arm for arm in audit.arms if name_of(arm) == name_of(best))
    able = [arm for arm in audit.arms if arm.mean_map and arm.shows_the_model is not False]
    return max(
        able,
        key=lambda arm: (arm.points.mean if arm.points else -1, arm.photos),
        default=None,
    )


def place_of(mean_map: list[list[float]]) -> tuple[float, float, float, float] | None:
    """Return the box around the hottest positions that hold `HEAT` of the heat of a mean map, as
    shares of its sides (left, top, right, bottom); None if the box is larger than `PLACE`."""
    values = np.array(mean_map)
    total = values.sum()
    if not total:
        return None
    order = np.argsort(-values, axis=None, kind="stable")
    count = int(np.searchsorted(np.cumsum(values.ravel()[order]), HEAT * total)) + 1
    rows, columns = np.unravel_index(order[:count], values.shape)
    height, width = values.shape
    left, right = columns.min() / width, (columns.max() + 1) / width
    top, bottom = rows.min() / height, (rows.max() + 1) / height
    if (right - left) * (bottom - top) > PLACE:
        return None
    return float(left), float(top), float(right), float(bottom)


def _methods(audit: Audit) -> list[Finding]:
    photo = [name_of(arm) for arm in audit.arms if arm.shows_the_model is False]
    blind = [
        name_of(arm)
        for arm in audit.arms
        if arm.class_blind and arm.photos and arm.shows_the_model is not False
    ]
    empty = [name_of(arm) for arm in audit.arms if not arm.photos]
    still = "the photo, not the model: the map hardly changes when the model's weights are random"
    alike = "on the class: the maps of two classes of one image are nearly the same"
    found: list[tuple[FindingKind, list[str], str]] = [
        ("shows the photo, not the model", photo, f"show{_s(photo)} {still}"),
        ("hardly depends on the class", blind, f"hardly depend{_s(blind)} {alike}"),
        ("no map", empty, "had no map of any photo"),
    ]
    return [
        Finding(kind=kind, sentence=f"{listed(names)} {what}.", arms=names)
        for kind, names, what in found
        if names
    ]


def _beaten(audit: Audit, records: Sequence[PhotoRecord]) -> list[Finding]:
    """Find metrics by which the recommended method is no better than a map without knowledge, by
    the differences on each photo."""
    best = audit.recommendation
    if best is None:
        return []
    name = name_of(best)
    findings = []
    for metric in audit.metrics:
        outcomes = {
            NAMED[baseline]: outcome(
                (
                    (record.arms[name].scores.get(metric), others.get(metric))
                    for record in records
                    if name in record.arms and (others := record.baselines.get(baseline))
                ),
                better=audit.better[metric],
            )
            for baseline in COMPARED
            if baseline in audit.baselines
        }
        worse = [baseline for baseline, found in outcomes.items() if found == -1]
        same = [baseline for baseline, found in outcomes.items() if found == 0]
        if worse:
            said = f"By {metric}, the recommended {name} is worse than {listed(worse)}."
            findings.append(Finding(kind="worse than a baseline", sentence=said, arms=[name]))
        if same:
            said = (
                f"By {metric}, the recommended {name} does not differ from {listed(same, 'or')} "
                "beyond chance."
            )
            findings.append(Finding(kind="no better than a baseline", sentence=said, arms=[name]))
    return findings


def _s(names: Sequence[str]) -> str:
    return "s" if len(names) == 1 else ""

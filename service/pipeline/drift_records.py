"""Conversion of a drift to the schemas of JSON answers."""

from __future__ import annotations

from typing import Final

from cam.drift.shift import Shift, TooFew
from service.backend.drift import Drift
from service.core.model_schemas import DriftDescription, ShiftDescription, TooFewDescription
from service.models.labels import Labels

NO_REFERENCE: Final = (
    "the model has no reference to compare its maps with; `gradcam reference` makes one, and "
    "`reference` in the model's entry names it"
)


def describe_drift(drift: Drift, labels: Labels) -> DriftDescription:
    """Return the JSON schema object of a drift."""
    found = drift.comparison

    def label(index: int | None) -> str | None:
        return None if index is None else labels.name(index)

    def shift(each: Shift) -> ShiftDescription:
        return ShiftDescription(
            index=each.index,
            label=label(each.index),
            statistic=each.statistic,
            psi=each.psi,
            distance=each.distance,
            p=each.p,
            before=each.before,
            after=each.after,
            reference=each.reference,
            live=each.live,
            moved=each.moved,
            sentence=each.sentence(label(each.index)),
        )

    def too_few(each: TooFew) -> TooFewDescription:
        return TooFewDescription(
            index=each.index,
            label=label(each.index),
            statistic=each.statistic,
            reference=each.reference,
            live=each.live,
            sentence=each.sentence(label(each.index)),
        )

    ordered = sorted(found.shifts, key=lambda each: not each.moved) if found else []
    return DriftDescription(
        model=drift.origin.model,
        method=drift.origin.method,
        layer=drift.origin.layer,
        made=drift.made,
        photos=drift.photos,
        recorded=drift.recorded,
        window=drift.size,
        moved=None if found is None else found.has_moved,
        missing=NO_REFERENCE if found is None else found.missing,
        unknown=None if found is None else found.unknown,
        shifts=[shift(each) for each in ordered],
        too_few=[too_few(each) for each in found.too_few] if found else [],
    )

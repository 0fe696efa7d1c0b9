"""The route that tells whether the maps of a live model have moved."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter

from cam.drift.shift import Comparison, Shift, TooFew
from service.features.drift.schemas import DriftDescription, ShiftDescription, TooFewDescription
from service.features.drift.work import CompareDrift, Drift
from service.http.about import OF_A_MODEL
from service.http.access import needs
from service.http.adapter import Added, AppParts
from service.http.contract import answers
from service.models.labels import Labels

NO_REFERENCE: Final = (
    "the model has no reference to compare its maps with; `gradcam reference` makes one, and "
    "`reference` in the model's entry names it"
)


def drift(parts: AppParts) -> Added:
    """Add the route that compares the maps of a live model with its reference."""
    manager, router = parts.manager, APIRouter()

    @needs("read")
    async def get_drift(model: str) -> DriftDescription:
        replicas = manager.replicas(model)
        compared = (await replicas.ask(CompareDrift())).value
        return describe_drift(compared, replicas.model.labels)

    router.get(
        "/v1/models/{model:model}/drift",
        tags=["models"],
        summary="Whether the maps of a live model have moved",
        description=(
            "Compares the latest maps that the model served with those of its reference, for each "
            "class and for all together. Without a reference (see `gradcam reference`), it only "
            "counts maps."
        ),
        responses=answers(DriftDescription, problems=OF_A_MODEL),
    )(get_drift)
    return Added([router])


def describe_drift(drift: Drift, labels: Labels) -> DriftDescription:
    """Return the JSON schema object of a drift."""
    found = drift.comparison or Comparison((), (), None)

    def told(one: Shift | TooFew) -> dict[str, Any]:
        label = None if one.index is None else labels.name(one.index)
        return {**vars(one), "label": label, "sentence": one.sentence(label)}

    ordered = sorted(found.shifts, key=lambda one: (not one.moved, not one.unsure))
    return DriftDescription(
        **vars(drift.origin),
        **vars(drift),
        window=drift.size,
        moved=found.has_moved,
        missing=found.missing if drift.comparison else NO_REFERENCE,
        unknown=found.unknown,
        shifts=[ShiftDescription(**told(one)) for one in ordered],
        too_few=[TooFewDescription(**told(one)) for one in found.too_few],
    )

"""The reference that a model's entry names, checked against the model."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import get_args

from cam import METHODS, CamError
from cam.drift.reference import Reference, read_reference
from service.models.catalog import ModelEntry
from service.models.info import ModelInfo, usable_layer
from service.models.preprocessing import Fit

log = logging.getLogger(__name__)


def reference_of(entry: ModelEntry, model: ModelInfo) -> Reference | None:
    """Return the reference of a model; None if its entry names none, or if it answers questions.

    Raises:
        ConfigError: if the file is not a reference, or is not one of this model.
    """
    if model.answers or entry.reference is None:
        return None
    file = entry.path(entry.reference)
    try:
        reference = read_reference(file)
    except CamError as error:
        raise entry.mistake("reference", str(error)) from None
    if reference.origin.weights != model.weights:
        raise entry.mistake(
            "reference",
            f"{file} was made with other weights or settings: its fingerprint is "
            f"{reference.origin.weights!r:.60}, and the model's is {model.weights}; make it again",
        )
    method, able = reference.origin.method, ", ".join(watchable(model.unsuited))
    if method not in METHODS:
        raise entry.mistake(
            "reference",
            f"{file} has maps of {method!r:.60}, which is not a method; it can be {able}",
        )
    if reason := unwatchable(method, model.unsuited):
        raise entry.mistake(
            "reference",
            f"{file} has maps of {method}, which are not watched: {reason}; it can be {able}",
        )
    if reference.origin.fit not in get_args(Fit):
        fits = ", ".join(get_args(Fit))
        raise entry.mistake(
            "reference", f"{file} has maps of fit {reference.origin.fit!r:.60}; it can be {fits}"
        )
    usable_layer(entry, "reference", reference.origin.layer, model.layers)
    if (fit := reference.origin.fit) != (default_fit := model.preprocessing.default_fit):
        log.warning(
            "model %s: the reference %s has maps of photos with fit=%s, and fit=%s is this model's "
            "default: only requests with fit=%s are watched; make the reference again, or set fit "
            "in the entry",
            entry.name, file, fit, default_fit, fit,
        )  # fmt: skip
    return reference.thinned()


def unwatchable(method: str, unsuited: Mapping[str, str]) -> str | None:
    """Return the reason why maps of a method cannot be watched for drift, as a clause; None if they
    can: if the method makes maps at a layer in the pass that explains a batch.

    Args:
        method: a name in `METHODS`.
        unsuited: see `ModelInfo.unsuited`.
    """
    if METHODS[method].at == "input":
        return "its maps are at the input and not at a layer"
    if METHODS[method].formula == "steps":
        return "it needs passes of its own"
    return unsuited.get(method)


def watchable(unsuited: Mapping[str, str]) -> list[str]:
    """Return the methods whose maps can be watched for drift: see `unwatchable`."""
    return [name for name in METHODS if unwatchable(name, unsuited) is None]

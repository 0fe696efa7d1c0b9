"""Models of torchvision: classifiers, segmenters and detectors."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

from service.loading.sources import Built, downloaded, unknown
from service.loading.transforms import IMAGENET_MEAN, IMAGENET_STD, preprocessing_of
from service.models.catalog import ModelEntry

DETECTOR_SIDE: Final = 640
"""Side of a detector's input in pixels; the detector resizes the input once more."""


def check(entry: ModelEntry, what: str) -> dict[str, ModuleType]:
    """Return torchvision's segmenters and detectors, with the modules that they are in.

    Raises:
        ConfigError: if torchvision has no model of that name.
    """
    from torchvision import models

    names = models.list_models(module=models)
    dense = {
        name: module
        for module in (models.segmentation, models.detection)
        for name in models.list_models(module=module)
        if not name.startswith("keypoint")
    }
    if what not in (*names, *dense):
        raise unknown(entry, what, [*names, *dense], "torchvision has no model for images")
    return dense


def build(entry: ModelEntry, what: str, classes: int | None) -> Built:
    from torchvision import models

    dense = check(entry, what)
    weights = models.get_model_weights(what).DEFAULT
    head: dict[str, Any] = {}
    if classes is not None and entry.weights != "default":
        head["num_classes"] = classes
    hub = weights if entry.weights == "default" else None
    if hub is None and what in ("googlenet", "inception_v3"):
        head["init_weights"] = True
    if hub is None and what in dense:
        head["weights_backbone"] = None
    module = downloaded(entry, lambda: models.get_model(what, weights=hub, **head))
    if what in dense:
        detects = dense[what] is models.detection
        side = DETECTOR_SIDE if detects else weights.transforms().resize_size[0]
        labels = tuple(weights.meta["categories"])
        return Built(
            module,
            preprocessing_of(
                entry,
                size=(side, side),
                shorter_side=side,
                # torchvision's detectors normalise their input themselves.
                mean=(0.0, 0.0, 0.0) if detects else IMAGENET_MEAN,
                std=(1.0, 1.0, 1.0) if detects else IMAGENET_STD,
                interpolation="bilinear",
                crop_fit="pad",
            ),
            labels if classes is None else (),
            trunk="backbone",
        )
    evaluation = weights.transforms()
    preprocessing = preprocessing_of(
        entry,
        size=(evaluation.crop_size[0], evaluation.crop_size[0]),
        shorter_side=evaluation.resize_size[0],
        mean=tuple(evaluation.mean),
        std=tuple(evaluation.std),
        interpolation=evaluation.interpolation.value,
    )
    return Built(module, preprocessing)

"""Classifiers of timm."""

from __future__ import annotations

import math

from torch import nn

from service.loading.sources import Built, downloaded, unknown
from service.loading.transforms import CROP_FITS, preprocessing_of
from service.models.catalog import ModelEntry
from service.models.preprocessing import Preprocessing


def check(entry: ModelEntry, what: str) -> None:
    import timm

    if not timm.is_model(what.partition(".")[0]):
        raise unknown(entry, what, timm.list_models(), "timm has no model")


def build(entry: ModelEntry, what: str, classes: int | None) -> Built:
    import timm

    check(entry, what)
    hub = entry.weights == "default"
    head = {} if classes is None or hub else {"num_classes": classes}
    module = downloaded(entry, lambda: timm.create_model(what, pretrained=hub, **head))
    return Built(module, preprocessing_by_timm(entry, module))


def preprocessing_by_timm(entry: ModelEntry, module: nn.Module) -> Preprocessing:
    from timm.data import resolve_data_config

    data = resolve_data_config(model=module)
    _, height, width = data["input_size"]
    return preprocessing_of(
        entry,
        size=(height, width),
        shorter_side=math.floor(min(height, width) / data["crop_pct"]),
        mean=tuple(data["mean"]),
        std=tuple(data["std"]),
        interpolation=data["interpolation"],
        crop_fit=CROP_FITS.get(data["crop_mode"], "crop"),
    )

"""Loading of vision–language models: from an entry to a model that answers questions."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch

from cam import CamError, VisionLanguageModel
from service.loading.huggingface import (
    ANSWERING,
    class_of,
    config_of,
    loaded,
    names_of,
    place_of,
    told,
    transformers_of,
)
from service.models.catalog import ModelEntry

SHAPES: Final = "embedded:shapes"
"""A vision–language model of two megabytes, which knows coloured shapes: see bench/train_shapes.py.
It is for trying and testing."""
PHOTOS: Final = 4
"""Number of photos whose encodings are kept for further questions."""
FOLDER: Final = Path(__file__).parent / "shapes"
KEYS: Final = {"name", "source", "weights", "seed", "device", "dtype", "runtime", "audit"}
"""Keys of an entry that mean something for a model that answers questions."""


def is_answering(entry: ModelEntry) -> bool:
    """Return whether the entry names a vision–language model.

    Raises:
        ConfigError: if the config.json of a Hugging Face model cannot be read.
    """
    if entry.source == SHAPES:
        return True
    kind, _, what = entry.source.partition(":")
    if kind != "hf":
        return False
    place = place_of(entry, what)
    return class_of(entry, config_of(entry, place)).__name__ in names_of(ANSWERING)


def check_answering(entry: ModelEntry) -> None:
    """Check that the entry has no key that means nothing for a model that answers questions.

    Raises:
        ConfigError: if it has one.
    """
    for key, field in ModelEntry.model_fields.items():
        if key not in KEYS and getattr(entry, key) != field.default:
            known = ", ".join(sorted(KEYS))
            raise entry.mistake(
                key, f"a model that answers questions takes no {key}; its keys are {known}"
            )


def answering(entry: ModelEntry, device: torch.device, dtype: torch.dtype) -> VisionLanguageModel:
    """Return the model of an entry with its processor, checked: see `VisionLanguageModel.check`.

    Raises:
        ConfigError: if it cannot be loaded, or cannot be explained.
    """
    check_answering(entry)
    transformers: Any = transformers_of(entry)
    what = entry.source.partition(":")[2]
    place = str(FOLDER) if entry.source == SHAPES else place_of(entry, what)
    config = config_of(entry, place)
    module = loaded(entry, place, config, class_of(entry, config), dtype)
    with told(entry, "source", f"{place} has no processor that can be used"):
        processor = transformers.AutoProcessor.from_pretrained(place, trust_remote_code=False)
    # transformers may raise anything about a picture.
    with told(entry, "source", f"the model of {place} fails on a picture"):
        try:
            frozen = module.eval().requires_grad_(False).to(device, dtype)
            model = VisionLanguageModel(frozen, processor, photos=PHOTOS)
            model.check()
        except CamError as error:
            raise entry.mistake("source", f"the model cannot be explained: {error}") from None
    return model

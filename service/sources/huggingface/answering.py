"""Loading of vision–language models: from an entry to a model that answers questions."""

from __future__ import annotations

from typing import Any, Final

import torch

from cam import CamError, VisionLanguageModel
from service.models.catalog import ModelEntry
from service.sources.huggingface.models import (
    class_of,
    config_of,
    loaded,
    told,
    transformers_of,
)

PHOTOS: Final = 4
"""Number of photos whose encodings are kept for further questions."""
KEYS: Final = {"name", "source", "weights", "seed", "device", "dtype", "runtime", "audit"}
"""Keys of an entry that mean something for a model that answers questions."""


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


def load_answering(
    entry: ModelEntry, place: str, device: torch.device, dtype: torch.dtype
) -> VisionLanguageModel:
    """Return the model of a place with its processor, checked: see `VisionLanguageModel.check`.

    Raises:
        ConfigError: if it cannot be loaded, or cannot be explained.
    """
    check_answering(entry)
    transformers: Any = transformers_of(entry)
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

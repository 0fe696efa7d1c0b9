"""The classifier of an entry's prompts, made of an image–text model."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from cam import CamError, PromptClassifier
from cam.errors import InvalidPrompt
from service.core.errors import one_line
from service.models.catalog import ModelEntry
from service.models.preprocessing import Preprocessing


def classifier_of(entry: ModelEntry, encoders: nn.Module, tokenizer: Any) -> PromptClassifier:
    """Return the classifier of the entry's prompts.

    Raises:
        ConfigError: if a prompt cannot be used, or if the module is not an image–text model.
    """
    assert entry.prompts is not None  # the check of the source raises
    try:
        return PromptClassifier(encoders.eval(), tokenizer, entry.prompts, entry.templates)
    except InvalidPrompt as error:
        raise entry.mistake("prompts", str(error)) from None
    except CamError as error:
        raise entry.mistake("source", str(error)) from None


def check_logits(entry: ModelEntry, module: PromptClassifier, preprocessing: Preprocessing) -> None:
    """Check that the logits are those of the image–text model.

    Raises:
        ConfigError: if they are others, or if the model cannot look at an image.
    """
    image = torch.randn(1, 3, preprocessing.height, preprocessing.width)
    try:
        module.check(image)
    except CamError as error:
        raise entry.mistake("source", str(error)) from None
    except Exception as error:  # the libraries may raise anything about an image
        raise entry.mistake(
            "source",
            f"{type(module.encoders).__name__} fails on an image: {type(error).__name__}: "
            f"{one_line(error)}",
        ) from None

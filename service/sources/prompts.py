"""Classifiers of an entry's prompts, for the sources that have such models."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import nn

from cam import CamError, PromptClassifier, Reading
from cam.errors import InvalidPrompt
from service.core.errors import typed_line
from service.loading.sources import Built
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
            f"{type(module.encoders).__name__} fails on an image: {typed_line(error)}",
        ) from None


def image_text(entry: ModelEntry, module: PromptClassifier, preprocessing: Preprocessing) -> Built:
    """Return an image–text model as the classifier of its prompts, whose logits are checked."""
    check_logits(entry, module, preprocessing)
    has = "no bias" if module.activation == "softmax" else "a bias"
    reason = f"the logits of the image–text model have {has}"
    return prompted(
        entry, module, preprocessing, labels=module.labels, own=module.activation, reason=reason
    )


def prompted(
    entry: ModelEntry,
    module: nn.Module,
    preprocessing: Preprocessing,
    *,
    labels: tuple[str, ...],
    own: Literal["softmax", "sigmoid"],
    reason: str,
) -> Built:
    """Return a classifier of prompts, with its own activation for the reason given, unless the
    entry sets another one."""
    activation = own if entry.activation == "auto" else entry.activation
    return Built(module, preprocessing, labels, reading=Reading(None, activation), reason=reason)

"""Models that a function of the operator returns."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from cam.hooks.inference import is_training
from cam.inputs import wrapping
from service.core.errors import typed_line
from service.loading.sources import Built
from service.loading.transforms import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    preprocessing_of,
    with_stated,
)
from service.models.catalog import ModelEntry

log = logging.getLogger(__name__)


def check(entry: ModelEntry, what: str) -> Callable[[], Any]:
    path, _, name = what.partition(":")
    try:
        module = importlib.import_module(path)
    except ImportError as error:
        raise entry.mistake("source", f"cannot import {path!r}: {error}") from None
    except SystemExit as error:
        raise entry.mistake(
            "source", f"importing {path!r} would end the process: {error}"
        ) from None
    except Exception as error:
        raise entry.mistake("source", f"importing {path!r} raised {typed_line(error)}") from None
    function: Callable[[], Any] | None = getattr(module, name, None)
    if function is None:
        raise entry.mistake("source", f"module {path!r} has no {name!r}")
    return function


def build(entry: ModelEntry, what: str, classes: int | None) -> Built:
    function = check(entry, what)
    try:
        made = function()
    except SystemExit as error:
        raise entry.mistake("source", f"{what} would end the process: {error}") from None
    except Exception as error:  # the function is the operator's own and may raise anything
        log.debug("the factory %s failed", what, exc_info=error)
        raise entry.mistake("source", f"{what} raised {typed_line(error)}") from None
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], Mapping):
        made, stated = made
        entry = with_stated(entry, what, stated)
    if not isinstance(made, nn.Module):
        kind = type(made).__name__
        raise entry.mistake("source", f"{what} returned a {kind}, not a torch.nn.Module")
    if reason := wrapping(made):
        raise entry.mistake("source", f"{what} returned what cannot be served: {reason}")
    if is_training(made):
        log.warning(
            "model %s: %s returned a module in training mode (dropout, batch norm); it is served "
            "in evaluation mode, as model.eval() makes it",
            entry.name,
            what,
        )
    of_transformers = _is_transformers_model(made)
    if of_transformers and (entry.mean is None or entry.std is None):
        log.warning(
            "model %s: %s returned a model of transformers and states no mean and std, so those of "
            "ImageNet are used, which may be others than its image processor's; state them, or set "
            'source = "hf:FOLDER or NAME", which reads them',
            entry.name,
            what,
        )
    preprocessing = preprocessing_of(
        entry,
        size=(224, 224),
        shorter_side=256,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        interpolation="bilinear",
    )
    return Built(made, preprocessing, scores=of_transformers)


def _is_transformers_model(module: nn.Module) -> bool:
    """Return whether the module is one of transformers, without importing transformers."""
    return any(
        base.__module__ == "transformers.modeling_utils" and base.__name__ == "PreTrainedModel"
        for base in type(module).__mro__
    )

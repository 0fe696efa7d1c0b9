"""Image–text models of open_clip, by the name of their configuration and of their weights."""

from __future__ import annotations

import difflib
import logging
from importlib.util import find_spec
from typing import Any, Final

from torch import nn

from cam import PromptClassifier
from cam.errors import to_install
from service.core.errors import typed_line
from service.loading.sources import Built
from service.loading.transforms import preprocessing_of
from service.loading.weights import WeightsError, check_file, load_weights, read_weights
from service.models.catalog import ModelEntry
from service.models.preprocessing import Fit, Preprocessing
from service.sources.prompts import classifier_of, image_text

FITS: Final[dict[str, Fit]] = {"shortest": "crop", "squash": "squash"}
"""Resize mode of open_clip → fit."""
log = logging.getLogger(__name__)


def check(entry: ModelEntry, what: str) -> None:
    """Check that open_clip is installed and has the model and the weights, without a download.

    Raises:
        ConfigError: if it is not, if it has not, or if the entry has no prompts.
    """
    if not find_spec("open_clip"):
        raise entry.mistake("source", to_install("open-clip"))
    import open_clip

    names = open_clip.list_models()
    if what not in names:
        near = ", ".join(difflib.get_close_matches(what, names, 3) or names[:3])
        raise entry.mistake("source", f"open_clip has no model {what!r}; there are e.g. {near}")
    if entry.prompts is None:
        raise entry.mistake("prompts", f"{entry.source} needs prompts: its classes, in words")
    _tag_of(entry, what)


def build(entry: ModelEntry, what: str, classes: int | None) -> Built:
    module = _prompted(entry, what)
    return image_text(entry, module, _prepared(entry, module))


def _prompted(entry: ModelEntry, what: str) -> PromptClassifier:
    """Return the classifier of the entry's prompts, with the weights that the entry names.

    Raises:
        ConfigError: as `check`, or if the weights or the tokenizer cannot be loaded.
    """
    check(entry, what)
    import open_clip

    tag = _tag_of(entry, what)
    try:
        encoders: nn.Module = open_clip.create_model(what, pretrained=tag, pretrained_text=False)
        tokenizer: Any = open_clip.get_tokenizer(what)
    except Exception as error:  # its downloads and configurations raise anything
        log.debug("open_clip cannot make %s", what, exc_info=error)
        raise entry.mistake(
            "source" if tag is None else "weights",
            f"open_clip cannot make {what}, its weights or its tokenizer: {typed_line(error)}",
        ) from None
    if tag is None and entry.weights != "none":
        try:
            load_weights(encoders, read_weights(entry.path(entry.weights), sha256=entry.sha256))
        except WeightsError as error:
            raise entry.mistake("weights", f"{entry.path(entry.weights)}: {error}") from None
    return classifier_of(entry, encoders, tokenizer)


def _prepared(entry: ModelEntry, module: PromptClassifier) -> Preprocessing:
    """Return the preprocessing that open_clip states for the model, overridden by the entry.

    Raises:
        ConfigError: if it resizes photos in another way than those in `FITS`.
    """
    said = module.encoders.visual.preprocess_cfg
    if said["resize_mode"] not in FITS:
        raise entry.mistake(
            "source",
            f"the model's photos are resized by {said['resize_mode']!r}, with a border of their "
            f"own; it should be {' or '.join(FITS)}",
        )
    size = said["size"]
    height, width = (size, size) if isinstance(size, int) else size
    return preprocessing_of(
        entry,
        size=(height, width),
        shorter_side=min(height, width),
        mean=tuple(said["mean"]),
        std=tuple(said["std"]),
        # What it calls random is bicubic where nothing is trained.
        interpolation="bilinear" if said["interpolation"] == "bilinear" else "bicubic",
        crop_fit=FITS[said["resize_mode"]],
    )


def _tag_of(entry: ModelEntry, what: str) -> str | None:
    """Return the tag of the pretrained weights that the entry means; None for a file or for random
    weights.

    Raises:
        ConfigError: if there are no such weights, or if they belong to another configuration.
    """
    import open_clip

    tags = open_clip.list_pretrained_tags_by_model(what)
    tag = tags[0] if entry.weights == "default" and len(tags) == 1 else entry.weights
    if tag == "none":
        return None
    if tag not in tags:
        try:
            if tag == "default":
                raise WeightsError("it has no weights of its own, or several")
            check_file(entry.path(tag))
        except WeightsError as error:
            known = ", ".join(map(repr, tags)) or "no weights"
            raise entry.mistake(
                "weights",
                f"{tag!r} is neither a name of weights of {what} nor a file: {error}; open_clip "
                f"has {known}, and 'none' takes seeded random ones",
            ) from None
        return None
    if entry.sha256:
        raise entry.mistake(
            "sha256", f"it is for a file of weights, and {tag!r} is a name of open_clip's weights"
        )
    trained = open_clip.get_pretrained_cfg(what, tag).get("quick_gelu", False)
    if trained != open_clip.get_model_config(what).get("quick_gelu", False):
        base = what.removesuffix("-quickgelu")
        raise entry.mistake(
            "source",
            f"the weights {tag!r} were trained {'with' if trained else 'without'} QuickGELU; name "
            f"open_clip:{base}{'-quickgelu' * trained}",
        )
    return tag

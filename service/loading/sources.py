"""Building the models of each source: see `service.models.sources`.

A source builds the module and states the preprocessing of the model's authors. It does not handle
devices, labels or layers.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from cam import Reading, VisionLanguageModel
from cam.methods.method import load
from service.core.errors import one_line
from service.loading.weights import (
    WeightsError,
    check_file,
    classes_of,
    load_weights,
    read_weights,
)
from service.models.catalog import ModelEntry
from service.models.preprocessing import Preprocessing
from service.models.sources import SOURCES, source_of

log = logging.getLogger(__name__)

Answering = Callable[[torch.device, torch.dtype], VisionLanguageModel]
"""Loads a model that answers questions, with its processor, on a device and in a dtype."""


@dataclass(frozen=True, eq=False)
class Built:
    """The result of a source."""

    module: nn.Module
    preprocessing: Preprocessing
    labels: tuple[str, ...] = ()
    """The authors' names of the classes, if the source provides them."""
    trunk: str = ""
    """Name of the submodule that is searched for the default layer; "" for the whole module."""
    reading: Reading | None = None
    """How the module's output is read, where that is not what the entry says of its source."""
    reason: str = ""
    """Reason for the reading's activation; "" if it is to be found out."""
    scores: bool = False
    """Whether the module is known to return scores of classes, where its source may return
    anything."""
    doubts: tuple[str, ...] = ()
    """Warnings that each answer of the model has."""
    method_layers: Mapping[str, str] = field(default_factory=dict)
    """Method → its layer, where the default layer is chosen automatically and the entry names no
    other one."""


def build(entry: ModelEntry, classes: int | None) -> Built:
    """Build the entry's module with its weights, and its evaluation preprocessing.

    Args:
        classes: number of classes of the head, unless the source's own weights are used.

    Raises:
        ConfigError: if the model cannot be built; the message names the file, the entry, the key
            and the allowed values.
    """
    source, what = source_of(entry.source)
    build_ = load(source.build)
    torch.manual_seed(entry.seed)
    if entry.weights in ("default", "none") or source.own_weights:
        return _built(entry, build_(entry, what, classes))
    file = entry.path(entry.weights)
    try:
        state = read_weights(file, sha256=entry.sha256)
        built = _built(entry, build_(entry, what, classes))
        # The head gets as many classes as the file has.
        counted = classes_of(built.module, state)
        # The two labels of a classifier with one output are of one logit.
        follows = classes is None or (classes == 2 and counted and counted.given == 1)
        if counted and follows and not source.is_code:
            built = build_(entry, what, counted.given)
        head = load_weights(built.module, state)
    except WeightsError as error:
        raise entry.mistake("weights", f"{file}: {error}") from None
    if head:
        log.warning(
            "model %s: the layer %r of the file is loaded as the model's %r; layers around it that "
            "have no weights are not in the file, and only dropout changes nothing: if there is "
            "another, such as an activation, write a factory",
            entry.name,
            head.given,
            head.own,
        )
    return built


def _built(entry: ModelEntry, built: object) -> Built:
    """Return what a source has built, if it is that: the source may be another package's."""
    if not isinstance(built, Built):
        kind = type(built).__name__
        raise entry.mistake("source", f"the source built a {kind}, not a {__name__}.Built")
    return built


def check_source(entry: ModelEntry) -> None:
    """Check the entry's source and the name of its weights, without building the model.

    Raises:
        ConfigError: if the source cannot be found, or if there is no such file of weights.
    """
    source, what = source_of(entry.source)
    if entry.prompts is not None and not (source.takes_prompts or what in source.prompted):
        kinds = ", ".join(f"{each.name}:" for each in SOURCES.values() if each.takes_prompts)
        further = ", ".join(
            f"{each.name}:{name}" for each in SOURCES.values() for name in each.prompted
        )
        raise entry.mistake(
            "prompts",
            f"prompts are the classes of image–text models ({kinds}) and of {further}",
        )
    load(source.check)(entry, what)
    if entry.weights not in ("default", "none") and not source.own_weights:
        file = entry.path(entry.weights)
        try:
            check_file(file)
        except WeightsError as error:
            raise entry.mistake("weights", f"{file}: {error}") from None


def answering_of(entry: ModelEntry) -> Answering | None:
    """Return what loads the entry's model if it answers questions, and None if it has classes.

    Raises:
        ConfigError: if what the source says of the model cannot be read.
    """
    source, what = source_of(entry.source)
    if source.answering is None:
        return None
    found: Answering | None = load(source.answering)(entry, what)
    return found


def downloaded(entry: ModelEntry, create: Callable[[], nn.Module]) -> nn.Module:
    try:
        return create()
    except (OSError, RuntimeError, ValueError, TypeError) as error:
        # The libraries raise different errors: no network, unknown weights, a broken cache.
        reason = one_line(error)
        if isinstance(error, OSError) and entry.weights == "default":
            reason += "; they come from the internet, and 'none' takes seeded random ones"
        raise entry.mistake(
            "weights",
            f"{entry.source} with weights {entry.weights!r} cannot be loaded: {reason}",
        ) from error


def unknown(entry: ModelEntry, what: str, names: Sequence[str], sentence: str) -> Exception:
    near = difflib.get_close_matches(what, names, 3) or names[:3]
    return entry.mistake("source", f"{sentence} {what!r}; there are e.g. {', '.join(near)}")

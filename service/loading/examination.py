"""What is found out about a model by running it, which is kept for the next start."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import torch
from pydantic import TypeAdapter, ValidationError
from torch import nn

from cam import Layer, Reading, survey
from cam.hooks.grids import Location
from cam.methods.abilities import unsuited
from cam.outputs.outputs import size_of
from cam.passes.batch_dependence import is_stochastic, sees_company
from cam.passes.layout import laid_out, lay_out
from cam.positions.locate import locate, remember
from service.core.disk_cache import KeyedCache
from service.loading.memory import Activations
from service.models.catalog import ModelEntry

WHAT = "examination"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Examination:
    """What a model does with an image, as `examine` has found it out."""

    reading: Reading
    """How the model's output is read, with its activation resolved."""
    activation_reason: str
    layers: tuple[Layer, ...]
    activations: Activations
    locations: dict[str, Location]
    """Where the outputs of the layers lie on the image: see `cam.positions.locate`."""
    default_layer: str | None
    no_default_layer: str | None
    """Why there is no default layer, as half a sentence; None if there is one."""
    unsuited: dict[str, str]
    """Method name → the reason why the model does not support it."""
    batching: str | None
    """Why images must be passed one by one; None if they may share a batch."""
    stochastic: str | None
    """Why two passes of one image differ; None if they do not."""
    channels_last: bool


def examine(
    entry: ModelEntry,
    module: nn.Module,
    image: torch.Tensor,
    need: Activations,
    read: tuple[Reading, str],
    choose: Callable[[tuple[Layer, ...]], tuple[str | None, str | None]],
) -> Examination:
    """Run the model to find out what it does.

    Args:
        image: (1, 3, H, W), on the model's device and in its dtype.
        need: what the activations of an image take.
        read: how the model's output is read, and the reason for its activation.
        choose: returns the default layer of all layers, or None and the reason why there is none.
    """
    started, (reading, reason) = perf_counter(), read
    log.info("model %s: examining its layers", entry.name)
    layers = tuple(survey(module, image, reading))
    default, no_default = choose(layers)
    grid = next((layer.grid for layer in layers if layer.name == default), None)
    cannot = unsuited(module, image, default, grid, reading)
    batching = None
    if entry.max_batch > 1:
        batching = sees_company(module, image, default, reading)
    stochastic = is_stochastic(module, image, reading)
    if entry.layout == "auto":
        most = 1 if batching else entry.max_batch
        channels_last = laid_out(module, image, batch=min(most, 4))
    else:
        channels_last = entry.layout == "channels-last"
        lay_out(module, channels_last=channels_last)
    located = locate(module, image).found
    log.info("model %s: examined in %.1f s", entry.name, perf_counter() - started)
    return Examination(
        reading=reading,
        activation_reason=reason,
        layers=layers,
        activations=need,
        locations=dict(located),
        default_layer=default,
        no_default_layer=no_default,
        unsuited=cannot,
        batching=batching,
        stochastic=stochastic,
        channels_last=channels_last,
    )


def keep(examination: Examination, kept: KeyedCache) -> None:
    """Keep an examination for the next start. One with a function of the caller's own cannot be
    kept."""
    if not any(
        location.grid and location.grid.reshape for location in examination.locations.values()
    ):
        kept.write(WHAT, TypeAdapter(Examination).dump_json(examination))


def recalled(kept: KeyedCache) -> Examination | None:
    """Return the examination that was kept; None if there is none."""
    content = kept.read(WHAT)
    if content is None:
        return None
    try:
        return TypeAdapter(Examination).validate_json(content)
    except ValidationError:
        return None


def apply(examination: Examination, module: nn.Module, image: torch.Tensor) -> None:
    """Bring a module into the state in which `examine` has left the one that was examined."""
    remember(module, size_of(image), examination.locations)
    if examination.channels_last:
        lay_out(module, channels_last=True)

"""From an entry of the catalog to a model that can be served."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import nn

from cam import CamError, Layer, default_layer, survey
from service.catalog import ModelEntry
from service.errors import ConfigError
from service.labels import Labels, imagenet, read_labels
from service.preprocessing import Preprocessing
from service.sources import build


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A model on its device, frozen and in eval mode, and all that is known of it."""

    name: str
    source: str
    module: nn.Module
    device: torch.device
    dtype: torch.dtype
    preprocessing: Preprocessing
    labels: Labels
    classes: int
    layers: tuple[Layer, ...]
    default_layer: str
    max_batch: int
    fingerprint: str
    """A digest of the weights and of everything else that shapes a map."""


def load(entry: ModelEntry) -> ServedModel:
    """Build the module, load its weights, put it on its device and look at its layers.

    Raises:
        ConfigError: naming file, entry, key and what is allowed.
    """
    given = _labels(entry)
    module, preprocessing = build(entry, len(given) if given else None)
    device, dtype = _device(entry), getattr(torch, entry.dtype)
    module = module.eval().requires_grad_(False).to(device, dtype)
    shape = (1, 3, preprocessing.height, preprocessing.width)
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    image = noise.to(device, dtype)
    try:
        layers = tuple(survey(module, image))
        default = _default_layer(entry, layers)
        with torch.no_grad():
            classes = _class_count(module, image)
    except ConfigError:
        raise
    except CamError as error:
        raise entry.mistake("source", f"the model cannot be explained: {error}") from None
    except Exception as error:  # the module is the operator's: whatever it raises is a mistake
        reason = " ".join(str(error).split())[:300]
        raise entry.mistake(
            "input_size", f"the model fails on an input of shape {shape}: {reason}"
        ) from error
    return ServedModel(
        name=entry.name,
        source=entry.source,
        module=module,
        device=device,
        dtype=dtype,
        preprocessing=preprocessing,
        labels=_checked(entry, given, classes),
        classes=classes,
        layers=layers,
        default_layer=default,
        max_batch=entry.max_batch,
        fingerprint=_fingerprint(entry, module, preprocessing),
    )


def _labels(entry: ModelEntry) -> Labels | None:
    """The labels that the entry names, if it names any."""
    if entry.labels is None:
        return None
    if entry.labels == "imagenet":
        return imagenet()
    file = entry.path(entry.labels)
    try:
        return read_labels(file)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise entry.mistake(
            "labels",
            f"{file} cannot be read: {reason}; it is 'imagenet' or a file, one label a line",
        ) from None


def _checked(entry: ModelEntry, labels: Labels | None, classes: int) -> Labels:
    if labels is None:
        return imagenet() if classes == 1000 else Labels.of(())
    if len(labels) != classes:
        raise entry.mistake(
            "labels",
            f"{entry.labels} has {len(labels)} labels, but the model has {classes} classes",
        )
    return labels


def _device(entry: ModelEntry) -> torch.device:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if entry.device == "auto":
        return accelerator or torch.device("cpu")
    device = torch.device(entry.device)
    count = torch.accelerator.device_count() if accelerator else 0
    missing = accelerator is None or device.type != accelerator.type or (device.index or 0) >= count
    if device.type != "cpu" and missing:
        have = ["cpu", *(f"{accelerator}:{index}" for index in range(count))]
        raise entry.mistake(
            "device", f"{entry.device!r} is not on this machine; it has {', '.join(have)}"
        )
    return device


def _default_layer(entry: ModelEntry, layers: tuple[Layer, ...]) -> str:
    if entry.layer == "auto":
        return default_layer(list(layers))
    for layer in layers:
        if layer.name == entry.layer:
            if layer.problem is None:
                return layer.name
            raise entry.mistake("layer", f"no map can be made at {layer.name!r}: {layer.problem}")
    usable = [layer.name for layer in layers if layer.explainable][-5:]
    raise entry.mistake(
        "layer", f"the model has no layer {entry.layer!r}; among its last are {', '.join(usable)}"
    )


def _class_count(module: nn.Module, image: torch.Tensor) -> int:
    from cam.targets import logits_of

    return int(logits_of(module(image)).shape[1])


def _fingerprint(entry: ModelEntry, module: nn.Module, preprocessing: Preprocessing) -> str:
    digest = hashlib.blake2b(digest_size=16)
    digest.update(f"{entry.source}|{entry.dtype}|{preprocessing}".encode())
    for name, tensor in module.state_dict().items():
        digest.update(f"|{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()

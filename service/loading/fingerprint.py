"""The fingerprint of a model: a digest of everything that its maps depend on."""

from __future__ import annotations

import hashlib

import torch
from torch import nn

from cam import Reading
from service.models.catalog import ModelEntry
from service.models.labels import Labels
from service.models.preprocessing import Preprocessing


def fingerprint_of(
    entry: ModelEntry,
    module: nn.Module,
    preprocessing: Preprocessing,
    layer: str,
    labels: Labels,
    reading: Reading,
) -> str:
    """Return a hexadecimal digest of the weights and of the settings that maps depend on."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(
        f"{entry.source}|{entry.dtype}|{preprocessing}|{entry.method_layers}|{entry.reshape}|"
        f"{entry.mode}|{entry.runtime}|{layer}|{entry.detections}|{entry.min_score}|{labels.names}|"
        f"{reading}".encode()
    )
    for name, tensor in module.state_dict().items():
        digest.update(f"|{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()

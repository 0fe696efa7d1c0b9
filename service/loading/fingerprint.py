"""The fingerprint of a model: a digest of everything that its maps depend on."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn

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
    for name, value in module.state_dict().items():
        # Quantised layers keep a tuple of tensors, and their type, which is no tensor.
        for each in value if isinstance(value, tuple) else (value,):
            if not isinstance(each, Tensor):
                digest.update(f"|{name}|{each!r}|".encode())
                continue
            digest.update(f"|{name}|{each.dtype}|{tuple(each.shape)}|".encode())
            plain = each.detach().cpu()
            plain = plain.dequantize() if plain.is_quantized else plain
            digest.update(plain.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()

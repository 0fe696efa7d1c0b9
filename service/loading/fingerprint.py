"""The fingerprint of a model: a digest of everything that its maps depend on. And the key under
which what is found out about it is kept for the next start."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, Protocol

import torch
from torch import Tensor, nn

import cam
from cam import Reading
from service.loading.devices import usable
from service.models.catalog import ModelEntry
from service.models.labels import Labels
from service.models.preprocessing import Preprocessing
from service.models.sources import SOURCES

PACKAGES: Final = {
    "torch",
    "torchvision",
    *(package for source in SOURCES.values() for package in source.packages),
    *(package for runtime in import_module("service.runtimes").OWN for package in runtime.packages),
}
"""Packages whose versions decide what a model does and how fast it does it."""
UNIMPORTANT: Final = {"name", "labels", "audit", "reference", "explain_sample"}
"""Keys of an entry that do not change what the model does."""


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
        f"{reading}{'|value' * (reading.meaning == 'value')}".encode()
    )
    _add_weights(digest, module)
    return digest.hexdigest()


def keys_of(
    entries: Iterable[ModelEntry],
    module: nn.Module,
    preprocessing: Preprocessing,
    device: torch.device,
) -> list[str]:
    """Return for each form of a model's entry a hexadecimal digest of everything that decides what
    is found out about the model: the entry, modules and weights, the versions of the packages and
    of this code, and the processor."""
    config = getattr(module, "config", None)  # of Hugging Face: what the modules do not show
    card = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(f"{(preprocessing, device.type, card, str(config))}|{_surroundings()}|".encode())
    for name, part in module.named_modules():
        digest.update(f"{name} {type(part).__module__} {type(part).__qualname__}|".encode())
    _add_weights(digest, module)
    keys = []
    for entry in entries:
        own = digest.copy()
        own.update(f"|{entry.model_dump_json(exclude=UNIMPORTANT)}".encode())
        keys.append(own.hexdigest())
    return keys


@cache
def _surroundings() -> str:
    """Return the versions of the packages, a digest of this code, and the processor."""
    versions = {}
    for name in sorted(PACKAGES):
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    code = hashlib.blake2b(digest_size=16)
    ours = Path(__file__).parent.parent
    for folder in (
        Path(cam.__file__).parent,
        *(ours / name for name in ("loading", "sources", "runtimes")),
    ):
        for file in sorted(folder.rglob("*.py")):
            code.update(file.read_bytes())
    processor, lines = platform.processor() or platform.machine(), set[str]()
    with suppress(OSError):
        lines = set(Path("/proc/cpuinfo").read_text().splitlines())
    told = sorted(line for line in lines if line.startswith(("model name", "flags", "Features")))
    return f"{versions} {code.hexdigest()} {processor} {told} {len(usable())}"


class _Digest(Protocol):
    def update(self, data: bytes | memoryview, /) -> None: ...


def _add_weights(digest: _Digest, module: nn.Module) -> None:
    for name, value in module.state_dict().items():
        # Quantised layers keep a tuple of tensors, and their type, which is not a tensor.
        for tensor in value if isinstance(value, tuple) else (value,):
            if not isinstance(tensor, Tensor):
                digest.update(f"|{name}|{tensor!r}|".encode())
                continue
            digest.update(f"|{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
            plain = tensor.detach().cpu()
            plain = plain.dequantize() if plain.is_quantized else plain
            digest.update(plain.contiguous().flatten().view(torch.uint8).numpy().data)

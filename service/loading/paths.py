"""The ways to compute a model's maps faster, which an entry allows on a device."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import nn

from cam import Reading
from cam.errors import to_install
from cam.methods.head import PooledHead
from cam.outputs.output import Kind
from cam.passes.compiled_path import CompiledPath
from cam.runtimes.compiled import FastPath
from cam.runtimes.openvino import OpenVinoPath, is_installed
from cam.runtimes.packaged import PackagedPath
from service.core.disk_cache import KeyedCache
from service.models.catalog import ModelEntry


def compiled_paths(
    entry: ModelEntry,
    module: nn.Module,
    layer: str | None,
    kind: Kind,
    device: torch.device,
    head: PooledHead | None,
    reading: Reading,
    kept: KeyedCache,
    packages: KeyedCache,
) -> tuple[CompiledPath, ...]:
    """Return the paths that the entry allows on the device.

    Raises:
        ConfigError: if the entry asks for OpenVINO, which is not installed or cannot run the model.
    """
    if entry.is_graph:
        return ()
    runtime = entry.runtime or "auto"
    openvino = runtime != "torch" and device.type == "cpu" and entry.dtype == "float32"
    if runtime == "openvino" and not (openvino and is_installed()):
        raise entry.mistake(
            "runtime",
            f"OpenVINO is not installed; {to_install('openvino')}"
            if openvino
            else f"OpenVINO runs float32 models on the CPU; this one is {entry.dtype} on {device}",
        )
    if entry.mode == "exact" or kind == "detections" or layer is None or "#" in layer:
        return ()  # the paths have the outputs of whole modules
    sizes = [*(2**power for power in range(entry.max_batch.bit_length())), entry.max_batch]
    dtype: torch.dtype = getattr(torch, entry.dtype)
    fast = entry.mode == "fast" or device.type != "cpu"  # else the maps have to be the exact ones
    if fast and dtype == torch.float32 and _has_bfloat16(device):
        dtype = torch.bfloat16
    given: dict[str, Any] = {"dtype": dtype, "sizes": sizes, "head": head, "reading": reading}
    paths: list[CompiledPath] = []
    if fast and runtime != "openvino":
        files = _packages(packages, layer, dtype, entry.max_batch)
        if head and files:
            paths.append(PackagedPath(files, layer, dtype=dtype, head=head, reading=reading))
        if not files or device.type == "cuda":  # elsewhere a compiler would take minutes again
            paths.append(FastPath(module, layer, **given))
    if openvino and is_installed():
        paths.append(OpenVinoPath(module, layer, **given, kept=kept))
    return tuple(paths)


def _packages(kept: KeyedCache, layer: str, dtype: torch.dtype, most: int) -> dict[int, bytes]:
    """Return the files that `gradcam compile` has kept, by their sizes; none if batches of `most`
    images would be too large for them."""
    sizes = json.loads(kept.read(sizes_record(layer, dtype)) or "[]")
    if max(sizes, default=0) < most:
        return {}
    found = {size: kept.read(package_record(layer, dtype, size)) for size in sizes}
    return {size: each for size, each in found.items() if each} if all(found.values()) else {}


def sizes_record(layer: str, dtype: torch.dtype) -> str:
    """Return the name under which the sizes of the compiled files are kept, a list in JSON."""
    return f"packages {layer} {dtype}"


def package_record(layer: str, dtype: torch.dtype, size: int) -> str:
    """Return the name under which the compiled file of a size is kept."""
    return f"package {layer} {dtype} {size}"


def _has_bfloat16(device: torch.device) -> bool:
    """Return whether the device supports bfloat16 in hardware, without emulation."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu":
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return False

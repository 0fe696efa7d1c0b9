"""The paths of the runtimes that an entry allows on a device."""

from __future__ import annotations

from typing import NamedTuple

import torch

from cam.methods.method import load
from cam.passes.compiled_path import CompiledPath
from service.loading.served_model import ServedModel
from service.models.catalog import ModelEntry
from service.runtimes import OWN
from service.runtimes.runtime import Runtime


class Offer(NamedTuple):
    """A path that has not been tried yet."""

    runtime: Runtime
    path: CompiledPath


def offers(entry: ModelEntry, model: ServedModel) -> list[Offer]:
    """Return the paths that an entry allows its model.

    Raises:
        ConfigError: if the entry asks for a runtime that cannot run the model.
    """
    if entry.is_graph or model.kind == "answers":
        return []
    usable = []
    for runtime in OWN:
        if entry.runtime not in (None, "auto", runtime.name):
            continue
        problem = runtime.problem and load(runtime.problem)(entry, model.device)
        if problem and entry.runtime == runtime.name:
            raise entry.mistake("runtime", problem)
        if not problem:
            usable.append(runtime)
    layer = model.default_layer
    if entry.mode == "exact" or model.kind == "detections" or layer is None or "#" in layer:
        return []  # the paths have the outputs of whole modules
    most, dtype = model.max_batch, model.dtype
    sizes = sorted({*(2**power for power in range(most.bit_length())), most})
    # Where the maps have to be the exact ones, no precision is lost.
    if not model.exact and dtype == torch.float32 and _has_bfloat16(model.device):
        dtype = torch.bfloat16
    given = {"dtype": dtype, "sizes": sizes, "head": model.head, "reading": model.reading}
    found: list[Offer] = []
    for runtime in usable:
        path = load(runtime.path)(model, [each.path for each in found], **given)
        if path is not None:
            found.append(Offer(runtime, path))
    return found


def _has_bfloat16(device: torch.device) -> bool:
    """Return whether the device supports bfloat16 in hardware, without emulation."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu":
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return False

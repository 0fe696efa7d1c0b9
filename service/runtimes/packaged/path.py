"""The path of a model whose files were compiled ahead of time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch

from cam.passes.compiled_path import CompiledPath
from cam.runtimes.packaged import PackagedPath
from service.core.disk_cache import KeyedCache
from service.loading.served_model import ServedModel
from service.runtimes.packaged import package_record, sizes_record


def path(
    model: ServedModel, others: Sequence[CompiledPath], *, sizes: Sequence[int], **given: Any
) -> PackagedPath | None:
    if model.exact or not model.head:
        return None
    files = _packages(model.packages, model.default, given["dtype"], sizes[-1])
    return PackagedPath(files, model.default, **given) if files else None


def _packages(kept: KeyedCache, layer: str, dtype: torch.dtype, most: int) -> dict[int, bytes]:
    """Return the files that `gradcam compile` has kept, by their sizes; none if batches of `most`
    images would be too large for them."""
    sizes = json.loads(kept.read(sizes_record(layer, dtype)) or "[]")
    if max(sizes, default=0) < most:
        return {}
    found = {size: kept.read(package_record(layer, dtype, size)) for size in sizes}
    return {size: each for size, each in found.items() if each} if all(found.values()) else {}

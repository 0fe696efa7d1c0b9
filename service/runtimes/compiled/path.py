"""The compiled copy of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cam.passes.compiled_path import CompiledPath
from cam.runtimes.compiled import FastPath
from service.loading.served_model import ServedModel


def path(model: ServedModel, others: Sequence[CompiledPath], **given: Any) -> FastPath | None:
    # Off a CUDA device a compiler takes minutes, also for what was compiled ahead of time.
    there = any(other.runtime == FastPath.runtime for other in others)
    if model.exact or (there and model.device.type != "cuda"):
        return None
    return FastPath(model.module, model.default, **given)

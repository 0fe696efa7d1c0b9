"""The path of a model by OpenVINO."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from cam.errors import to_install
from cam.passes.compiled_path import CompiledPath
from cam.runtimes.openvino import OpenVinoPath, is_installed
from service.loading.served_model import ServedModel
from service.models.catalog import ModelEntry


def problem(entry: ModelEntry, device: torch.device) -> str | None:
    if device.type != "cpu" or entry.dtype != "float32":
        return f"OpenVINO runs float32 models on the CPU; this one is {entry.dtype} on {device}"
    return None if is_installed() else f"OpenVINO is not installed; {to_install('openvino')}"


def path(model: ServedModel, others: Sequence[CompiledPath], **given: Any) -> OpenVinoPath:
    return OpenVinoPath(model.module, model.default, **given, kept=model.kept)

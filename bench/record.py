"""Results of measurements, written with the machine on which they were made."""

from __future__ import annotations

import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"


def record(name: str, **found: Any) -> None:
    """Into bench/results/, with the machine that it was measured on."""
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{name}.json"
    file.write_text(json.dumps({"machine": machine(), **found}, indent=1) + "\n")


def machine() -> dict[str, Any]:
    """Where it was measured."""
    packages = (
        "torch",
        "torchvision",
        "timm",
        "grad-cam",
        "torchcam",
        "captum",
        "torchxai-explain",
    )
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "accelerator": str(torch.accelerator.current_accelerator(check_available=True) or "none"),
        "python": platform.python_version(),
        **{package: _version(package) for package in packages},
    }


def _version(package: str) -> str | None:
    """The version of a package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None

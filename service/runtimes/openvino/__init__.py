"""OpenVINO on the CPU, which is often faster there than PyTorch, with maps equal up to rounding."""

from __future__ import annotations

from typing import Final

from service.runtimes.runtime import Runtime

PREPARATION_SECONDS: Final = 15.0
"""Least time for converting a model for OpenVINO and judging it: the time for EfficientNet-Lite0 on
one core."""
SAVED: Final = 0.5
"""Least share of the exact path's time that OpenVINO saves where it is used at all."""
OPENVINO: Final = Runtime(
    name="openvino",
    told="`openvino`, on the CPU",
    path=f"{__name__}.path:path",
    problem=f"{__name__}.path:problem",
    title="OpenVINO",
    packages=("openvino",),
    least_seconds=PREPARATION_SECONDS / SAVED,
    is_kept=True,
)

"""Networks in files of ONNX and OpenVINO, which OpenVINO runs on the CPU."""

from __future__ import annotations

from functools import partial
from typing import Final

from service.models.source import PLACE, Source

_graph = partial(
    Source,
    what=PLACE,
    build=f"{__name__}.build:build",
    check=f"{__name__}.build:check",
    packages=("openvino",),
    anything=True,
    is_graph=True,
    runtime="openvino",
)
ONNX: Final = _graph(name="onnx", told="`onnx:FILE.onnx` (from the TOML file's folder)")
OPENVINO: Final = _graph(name="openvino", told="`openvino:FILE.xml` (from the TOML file's folder)")

"""Where the service's own models come from: a source is a folder here, and stands in this list.

A `Source` says what the core knows of it, and names the functions that check an entry of
models.toml and build its model. The core imports none of the folders: it reads this list, and the
entry points by which packages add sources of their own.
"""

from __future__ import annotations

from typing import Final

from service.sources.embedded import EMBEDDED
from service.sources.factory import FACTORY
from service.sources.graph import ONNX, OPENVINO
from service.sources.huggingface import HUGGINGFACE
from service.sources.open_clip import OPEN_CLIP
from service.sources.timm import TIMM
from service.sources.torchvision import TORCHVISION

OWN: Final = (
    EMBEDDED,
    TORCHVISION,
    TIMM,
    OPEN_CLIP,
    HUGGINGFACE,
    ONNX,
    OPENVINO,
    FACTORY,
)

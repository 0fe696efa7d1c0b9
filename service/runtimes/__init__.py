"""The faster ways to compute maps: a runtime is a folder here, and stands in this list.

A `Runtime` says what the core knows of it, and names the functions that make its path. The core
computes maps by the exact path alone and imports none of the folders: it reads the names in this
list, and is given `service.runtimes.warming.fast_path`, which compares the path of each runtime
with the exact one and chooses the fastest.
"""

from __future__ import annotations

from typing import Final

from service.runtimes.compiled import COMPILED
from service.runtimes.openvino import OPENVINO
from service.runtimes.packaged import PACKAGED
from service.runtimes.runtime import Runtime

OWN: Final[tuple[Runtime, ...]] = (
    PACKAGED,
    COMPILED,
    OPENVINO,
)

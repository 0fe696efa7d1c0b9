"""Detectors: how their outputs are read as boxes, which box a target is about, from which layers
the boxes are computed, and the methods that explain a box.

The rest of `cam` finds this package through `cam.outputs.KINDS`, and its methods through
`cam.methods.METHODS`.
"""

from __future__ import annotations

from typing import Final

from cam.detectors.levels import with_levels
from cam.detectors.matching import find, resolved
from cam.detectors.reading import read, read_detections, unfiltered
from cam.outputs.kind import OutputKind

DETECTIONS: Final = OutputKind(
    read=read,
    declare=read_detections,
    unfiltered=unfiltered,
    resolve=resolved,
    find=find,
    with_levels=with_levels,
    choosing=frozenset({"Amax", "Clamp", "Gather", "IndexSelect", "Max", "Sqrt", "Topk"}),
    reason="a detector's scores are probabilities already",
)

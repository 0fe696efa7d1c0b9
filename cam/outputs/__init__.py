"""What a model may return, converted to one form for each kind of output.

This package reads logits (of classes or of pixels), values and features. Each further kind of
output is a package of `cam` and stands in this list. The rest of `cam` asks the list, and imports
none of these packages.
"""

from __future__ import annotations

from typing import Final

KINDS: Final[dict[str, str]] = {
    "detections": "cam.detectors:DETECTIONS",
}
"""Name of a kind → the place of its `cam.outputs.kind.OutputKind`, which needs torch and is
imported when it is first used."""

"""What a picture of a map can show: the values of the parameter `output`."""

from __future__ import annotations

from typing import Final

from cam.extensions import added
from service.pipeline import extensions
from service.pipeline.extensions import OutputForm

_RENDERING: Final = "service.pipeline.rendering"
_BUILT_IN: Final = {
    form.name: form
    for form in (
        OutputForm("overlay", "colours over the photo", f"{_RENDERING}:as_overlay"),
        OutputForm("heatmap", "the colours alone", f"{_RENDERING}:as_heatmap"),
        OutputForm("mask", "8-bit grayscale", f"{_RENDERING}:as_mask", beside=False, tiled=False),
        OutputForm("values", "float32 numbers", None, beside=False, tiled=False),
        OutputForm("contour", "lines around what is hot", f"{_RENDERING}:as_contour"),
        OutputForm(
            "panel",
            "photo, overlay, colour bar and words, to paste into a report",
            f"{_RENDERING}:as_panel",
            tiled=False,
        ),
    )
}
OUTPUTS: Final[dict[str, OutputForm]] = _BUILT_IN | {
    form.name: form
    for form in added(
        group=extensions.OUTPUTS,
        kind=OutputForm,
        where=extensions.__name__,
        taken=_BUILT_IN,
        problem=lambda form: None if form.draw else "it has no draw",
    )
}
"""Value of `output` → what it means, those of other packages last."""

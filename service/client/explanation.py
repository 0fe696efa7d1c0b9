"""The client's explanation, with arrays and bytes instead of base64."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cam.drawing.placement import Region
from service.core import schemas


@dataclass(frozen=True, eq=False)
class Explanation:
    """One map, which shows where in a photo the model sees a target.

    Attributes:
        facts: what is known of the map: all that the service sent, which is `document`, unless a
            job's results were read without maps.
        asked: the parameters of the request, by which its picture is described; empty if they are
            not known.
    """

    facts: schemas.MapFacts
    asked: Mapping[str, Any] = field(default_factory=dict)

    @property
    def document(self) -> schemas.Explanation:
        """The explanation as the service sent it.

        Raises:
            ValueError: if it was read without its map; `facts` has what is known of it.
        """
        if isinstance(self.facts, schemas.Explanation):
            return self.facts
        raise ValueError("the results were read without maps; read them with maps=True")

    @cached_property
    def map(self) -> NDArray[np.float32]:
        """The map as read-only float32 (H, W), in 0 … 1, or in −1 … 1 for a signed map. It has 255
        steps unless the request had `output="values"`. With `normalize="none"` it holds the
        formula's own numbers.

        Raises:
            ValueError: if it was read without its map.
        """
        heatmap = self.document.heatmap
        data = base64.b64decode(heatmap.data)
        if heatmap.encoding == "float32":
            values = np.frombuffer(data, "<f4").reshape(heatmap.shape).astype(np.float32)
        else:
            with Image.open(BytesIO(data)) as picture:
                gray = np.asarray(picture, np.float32)
            values = _signed(gray) if self.facts.signed else gray / np.float32(255)
        values.flags.writeable = False
        return values

    @property
    def overlay(self) -> bytes:
        """The requested picture (an overlay, heatmap, contour or panel) as PNG.

        Raises:
            ValueError: if no picture was requested, or if it was read without its map.
        """
        overlay = self.document.overlay
        if overlay is None:
            raise ValueError("the answer has no picture; ask with output='overlay'")
        return base64.b64decode(overlay.data)

    @property
    def id(self) -> str | None:
        """Id of the photo; None if it was given none."""
        return self.facts.id

    @property
    def target(self) -> schemas.ExplainedTarget:
        """The explained target."""
        return self.facts.target

    @property
    def method(self) -> str:
        """Name of the method that made the map."""
        return self.facts.method

    @property
    def layer(self) -> str:
        """Name of the layer at which the map was made."""
        return self.facts.layer

    @property
    def reason(self) -> int | None:
        """Which reason the map is, from 1, if the request asked for several; None otherwise."""
        return self.facts.reason

    @property
    def region(self) -> Region:
        """Part of the photo that the model saw; outside it the map is 0."""
        return self.facts.region

    @property
    def peak(self) -> schemas.Point | None:
        """The pixel with the highest value; None if the map is zero."""
        return self.facts.peak

    @property
    def hot(self) -> Region | None:
        """Box around the hottest region above `threshold`; None if there is none."""
        return self.facts.hot

    @property
    def agreement(self) -> dict[str, float]:
        """Method name → similarity of its map to this one, −1 … 1, for the other methods of the
        request; empty if there are none."""
        return self.facts.agreement or {}

    @property
    def scores(self) -> dict[str, schemas.Score]:
        """Metric → score of the map, for the metrics that `evaluate` named; empty without."""
        return self.facts.scores or {}

    @property
    def warnings(self) -> list[str]:
        """Sentences about possible problems of the map."""
        return self.facts.warnings

    def record(self) -> dict[str, str | int | float | None]:
        """Return what is known of the map as one flat row for a data frame, without the map. The
        names are those of the table of a batch or job: see docs/answers.md."""
        facts, target = self.facts, self.target
        return {
            "id": facts.id,
            "target_index": target.index,
            "target_label": target.label,
            "target_probability": target.probability,
            "target_score": target.score,
            "method": facts.method,
            "layer": facts.layer,
            "reason": facts.reason,
            "peak_x": facts.peak.x if facts.peak else None,
            "peak_y": facts.peak.y if facts.peak else None,
            "mass": facts.mass,
            "concentration": facts.concentration,
            "border": facts.border,
            **{f"score_{name}": score.value for name, score in self.scores.items()},
            "warning": "; ".join(facts.warnings) or None,
        }

    def __repr__(self) -> str:
        whom = self.target.label or self.target.index
        sure = "" if self.target.probability is None else f" {self.target.probability:.3f}"
        size = ""
        if isinstance(self.facts, schemas.Explanation):
            height, width = self.facts.heatmap.shape
            size = f", {height} × {width}"
        return f"<Explanation {whom}{sure}, {self.method} at {self.layer}{size}>"

    def _repr_png_(self) -> bytes:
        """What a notebook shows: the requested picture, or else the map, with a caption and, where
        it is known, a colour bar."""
        from cam.drawing.notebook import bar_of, drawn, png  # the client starts without OpenCV
        from cam.drawing.panel import panel

        sure, picture = self.target.probability, self.asked.get("output")
        title = f"{self.target.label or self.target.index}"
        title = title if sure is None else f"{title}, p = {sure:.3f}"
        lines = (f"{self.method} at {self.layer}", *self.warnings)
        if self.document.overlay is None:
            return png(
                drawn(self.map, None, signed=bool(self.facts.signed), title=title, lines=lines)
            )
        # A panel has a caption and a colour bar of its own. So may a picture of a job, of which it
        # is not known what was asked.
        if picture in ("panel", None):
            return self.overlay
        usual, ends = bar_of(signed=bool(self.facts.signed))
        colormap = self.asked.get("colormap") or usual
        with Image.open(BytesIO(self.overlay)) as shown:
            pixels = np.asarray(shown.convert("RGB"))
        return png(
            panel(
                None,
                pixels,
                title=title,
                lines=lines,
                colormap=colormap if picture in ("overlay", "heatmap") else None,
                ends=ends,
            )
        )

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        from cam.drawing.notebook import mime_bundle

        if not isinstance(self.facts, schemas.Explanation):
            return {"text/plain": repr(self)}
        return mime_bundle(self._repr_png_(), repr(self))


def _signed(gray: NDArray[np.float32]) -> NDArray[np.float32]:
    """Convert 0 … 255 to −1 … 1, with 128 as exactly 0."""
    above = gray - np.float32(128)
    return np.where(above > 0, above / np.float32(127), above / np.float32(128))

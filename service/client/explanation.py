"""An explanation as Python has it: arrays and bytes instead of base64."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from service.core import schemas


@dataclass(frozen=True, eq=False)
class Explanation:
    """One map: where in a photo the model sees a target.

    Attributes:
        document: what the service said, as it said it.
    """

    document: schemas.Explanation

    @cached_property
    def map(self) -> NDArray[np.float32]:
        """float32 (H, W), 0 … 1, or −1 … 1 of a signed map: in 255 steps unless `output="values"`
        was asked for; the formula's own numbers with `normalize="none"`. It cannot be written."""
        heatmap = self.document.heatmap
        data = base64.b64decode(heatmap.data)
        if heatmap.encoding == "float32":
            values = np.frombuffer(data, "<f4").reshape(heatmap.shape).astype(np.float32)
        else:
            with Image.open(BytesIO(data)) as picture:
                gray = np.asarray(picture, np.float32)
            values = _signed(gray) if self.document.signed else gray / np.float32(255)
        values.flags.writeable = False
        return values

    @property
    def overlay(self) -> bytes:
        """The picture that was asked for (an overlay, heatmap, contour or panel) as PNG.

        Raises:
            ValueError: if none was.
        """
        if self.document.overlay is None:
            raise ValueError("the answer has no picture; ask with output='overlay'")
        return base64.b64decode(self.document.overlay.data)

    @property
    def id(self) -> str | None:
        """The photo's, where it was given one."""
        return self.document.id

    @property
    def target(self) -> schemas.ExplainedTarget:
        """What is explained."""
        return self.document.target

    @property
    def method(self) -> str:
        """By which the map was made."""
        return self.document.method

    @property
    def layer(self) -> str:
        """At which the map was made."""
        return self.document.layer

    @property
    def region(self) -> schemas.Region:
        """What the model saw; outside it the map is 0."""
        return self.document.region

    @property
    def peak(self) -> schemas.Point | None:
        """The hottest pixel; None if the map is zero."""
        return self.document.peak

    @property
    def hot(self) -> schemas.Region | None:
        """The box around the hottest region, above `threshold`."""
        return self.document.hot

    @property
    def agreement(self) -> dict[str, float]:
        """Of several methods: for each other one how alike its map is, −1 … 1; else empty."""
        return self.document.agreement or {}

    @property
    def warnings(self) -> list[str]:
        """What to know before believing the map."""
        return self.document.warnings

    def __repr__(self) -> str:
        height, width = self.document.heatmap.shape
        whom = self.target.label or self.target.index
        sure = "" if self.target.probability is None else f" {self.target.probability:.3f}"
        return f"<Explanation {whom}{sure}, {self.method} at {self.layer}, {height} × {width}>"


def _signed(gray: NDArray[np.float32]) -> NDArray[np.float32]:
    """0 … 255 to −1 … 1, where exactly 128 is 0."""
    above = gray - np.float32(128)
    return np.where(above > 0, above / np.float32(127), above / np.float32(128))

"""The record of each photo of an audit: what was measured."""

from __future__ import annotations

from pydantic import Field

from cam.evaluation.similarity import Similarity
from service.core.schemas import Open

Numbers = dict[str, float | None]
"""Name of a metric → value; None if the metric has no value."""


class ArmRecord(Open):
    """The measurements of one method at one layer, on one photo."""

    map: list[list[float]] | None = None
    """The map, scaled to 0 … 1, with at most `MAP_SIDE` positions along each side; None if the
    method has no map of the photo, or an empty one."""
    problem: str | None = None
    """Why there is no map."""
    scores: Numbers = Field(default_factory=dict)
    sanity: list[Similarity] | None = None
    """How alike the map and that of a randomised model are, for each stage of the randomisation;
    None if the photo was not used for it."""
    grids: Numbers = Field(default_factory=dict)
    """Side of a grid, such as "2" → share of the positive heat in the photo's own cell."""
    other_class: Numbers = Field(default_factory=dict)
    """Image, `photo` or `grid` (the smallest grid) → rank correlation of the map with the map of
    another class of the same image, −1 … 1; 0 if the other map is the same everywhere. Empty if the
    photo was not used for it."""
    milliseconds: float | None = None
    forwards: int | None = None


class PhotoRecord(Open):
    """What was measured on one photo."""

    index: int
    item: str
    target: int
    """Index of the class that was explained."""
    label: str | None = None
    asked: bool = False
    """Whether the class was named with the photo, and not predicted."""
    probability: float
    predicted: int
    confidence: float
    """Probability of the predicted class."""
    logit: float | None = None
    """Its logit; None where the model's outputs are probabilities already."""
    arms: dict[str, ArmRecord]
    baselines: dict[str, Numbers] = Field(default_factory=dict)
    """Name of a baseline → its scores."""
    sanity_problem: str | None = None
    """Why the maps of randomised models could not be compared, if that was tried."""
    grid_problem: str | None = None
    """Why the photo was not in a grid, as a clause; None if it was."""
    enlarged: bool | None = None
    """Whether grids are larger than the model's input; None if no grid was made."""
    thumbnail: str | None = None
    """What the model saw, as a small JPEG in base64."""
    warnings: list[str] = Field(default_factory=list)
    measured: str | None = None
    """Time at which it was measured, in UTC."""
    made_with: dict[str, str] = Field(default_factory=dict)
    """What the numbers depend on: versions, the device, the dtype, and `fit`."""

"""One image in work: whose model, what is asked of it, and where it is worked on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic

from service.core.errors import InvalidParameter
from service.engine.replicas import Replicas
from service.engine.timings import Timings
from service.limits.pixel_budget import Lane
from service.pipeline.instances import Instance, P_co
from service.pipeline.parameters import Parameters

MOST_NUMBERS: Final = 100_000_000
"""Of maps on photos' pixels in one answer: each has five bytes in it."""


@dataclass(frozen=True, eq=False)
class WorkItem(Generic[P_co]):
    replicas: Replicas
    instance: Instance[P_co]
    timings: Timings
    """Of its request."""
    lane: Lane
    """In which the photo has room as long as the case is open."""
    pixels: int
    """Of the photo."""


def require_few_numbers(work_item: WorkItem[Parameters], among: int = 1) -> None:
    """
    Args:
        among: images of which one answer tells.

    Raises:
        InvalidParameter: if they are more than an answer may have.
    """
    parameters = work_item.instance.parameters
    as_numbers = parameters.output == "values" or parameters.normalize == "none"
    numbers = work_item.pixels * parameters.maps if as_numbers and parameters.size == "image" else 0
    if numbers > MOST_NUMBERS // among:
        where = work_item.instance.origins.get("size")
        problem = InvalidParameter(
            f"size is 'image': {parameters.maps} maps of {work_item.pixels} pixels are {numbers} "
            f"numbers, and an answer may have {MOST_NUMBERS}, of {among} images each its part; "
            "take size=model or size=layer, fewer maps or fewer images"
        )
        raise problem.at(where) if where else problem

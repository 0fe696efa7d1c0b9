"""Schemas of JSON answers about drift."""

from __future__ import annotations

from pydantic import Field

from service.core.schemas import Open


class ShiftDescription(Open):
    """How far one statistic of a class's maps has moved."""

    index: int | None = Field(None, description="The class; null for all classes together.")
    label: str | None = Field(None, description="Its name; null if it has none.")
    statistic: str = Field(examples=["border"])
    psi: float = Field(
        description="Population stability index, minus its expected value by chance.",
        examples=[1.2],
    )
    distance: float = Field(description="Kolmogorov's and Smirnov's D, 0 … 1.", examples=[0.46])
    p: float = Field(
        description="p-value of `distance`, with Holm's correction for all tests.",
        examples=[1e-12],
    )
    before: tuple[float, float, float] = Field(
        description="Quartiles of the reference.", examples=[[0.08, 0.12, 0.17]]
    )
    after: tuple[float, float, float] = Field(
        description="Quartiles of the live maps.", examples=[[0.31, 0.41, 0.5]]
    )
    reference: int = Field(description="Photos in the reference.", examples=[400])
    live: int = Field(description="Different photos in the window.", examples=[480])
    moved: bool = Field(examples=[True])
    unsure: bool = Field(
        False,
        description="Whether `p` is small but `psi` is not large: the statistic has changed, but "
        "by less than counts as moved.",
        examples=[False],
    )
    sentence: str = Field(
        examples=[
            "all classes: the share of the heat on the border rose from 0.12 to 0.41 (median)"
        ]
    )


class TooFewDescription(Open):
    """A comparison for which there are too few photos."""

    index: int | None = Field(None, description="The class; null for all classes together.")
    label: str | None = Field(None, description="Its name; null if it has none.")
    statistic: str | None = Field(None, description="Null for all statistics.")
    reference: int = Field(
        description="Number of photos in the reference; for all classes together, the effective "
        "number of the weighted photos.",
        examples=[12],
    )
    live: int = Field(description="Different photos in the window.", examples=[3])
    sentence: str = Field(
        description="How many photos a comparison needs, and which side has fewer.",
        examples=[
            (
                "class 'tabby': nothing was compared, because 50 different photos are needed on "
                "each side and the reference has 12"
            )
        ],
    )


class DriftDescription(Open):
    """The maps that a model served lately, compared with those of its reference."""

    model: str = Field(examples=["efficientnet-lite0"])
    method: str = Field(examples=["gradcam"])
    layer: str = Field(examples=["bn2"])
    fit: str = Field(
        description="How the photos of the recorded maps were fitted to the model's input.",
        examples=["squash"],
    )
    made: str | None = Field(
        description="Time when the reference was made; null without a reference.",
        examples=["2026-11-24T03:33:14+00:00"],
    )
    photos: int = Field(
        description="Photos of the reference that are compared, at most 2,000 of a class.",
        examples=[1000],
    )
    recorded: int = Field(
        description="Maps that could be compared since the model was loaded.", examples=[5210]
    )
    window: int = Field(
        description="Number of latest maps of a series that are compared.", examples=[500]
    )
    moved: bool | None = Field(
        description="Whether any statistic has moved. Null if that is not known: none has moved, "
        "but all classes together were not compared or a statistic is unsure. `missing` has the "
        "reason.",
        examples=[True],
    )
    missing: str | None = Field(
        None,
        description="Why it is not known whether a statistic has moved; null if it is known.",
        examples=[None],
    )
    unknown: float | None = Field(
        None,
        description="Share of the latest maps whose classes the reference lacks. These maps are "
        "left out of all classes together. Null without a reference or without maps.",
        examples=[0.02],
    )
    shifts: list[ShiftDescription] = Field(description="The largest shifts first.")
    too_few: list[TooFewDescription]

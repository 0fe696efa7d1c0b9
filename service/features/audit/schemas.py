"""The JSON documents of an audit: the summary of its photos."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field
from typing_extensions import TypeAliasType

from cam.evaluation.chance import Interval
from service.core.choices import Better
from service.core.schemas import Described, Open
from service.features.jobs.schemas import JobDocument, JobKind

FindingKind = TypeAliasType(
    "FindingKind",
    Literal[
        "too few photos",
        "ignores the photo",
        "looks at one place",
        "a class looks at one place",
        "shows the photo, not the model",
        "hardly depends on the class",
        "sanity not measured",
        "no photo for grids",
        "few photos for grids",
        "no map",
        "worse than a baseline",
        "no better than a baseline",
    ],
)


class ArmSummary(Described):
    """A method at a layer, over all photos."""

    method: str = Field(examples=["layercam"])
    layer: str = Field(examples=["blocks.6"])
    photos: int = Field(description="Number of photos with a map.", examples=[200])
    shows_the_model: bool | None = Field(
        description=(
            "False if the map hardly changes when the model's weights are random: it shows the "
            "photo, not the model. Null if that could not be measured."
        ),
        examples=[True],
    )
    sanity: list[dict[str, Interval | None]] = Field(
        description="Similarity to the maps of the randomised models, one entry for each stage.",
        examples=[[{"absolute": {"mean": 0.47, "low": 0.4, "high": 0.53, "photos": 50}}]],
    )
    sanity_mean: Interval | None = Field(
        description="Mean over the stages of the rank correlation without sign.",
        examples=[{"mean": 0.42, "low": 0.36, "high": 0.48, "photos": 50}],
    )
    class_blind: bool = Field(
        description=(
            "Whether the maps of two classes of one image are nearly the same, so that the map "
            "does not say why the model tells one class from another."
        ),
        examples=[False],
    )
    other_class: dict[str, Interval | None] = Field(
        default_factory=dict,
        description=(
            "Image, `photo` or `grid` → rank correlation of the map with the map of another class; "
            "1 if they are the same."
        ),
        examples=[{"photo": {"mean": 0.31, "low": 0.24, "high": 0.38, "photos": 50}}],
    )
    localisation: dict[str, Interval | None] = Field(
        description="Side of a grid → share of the positive heat in the right cell.",
        examples=[{"2": {"mean": 0.76, "low": 0.69, "high": 0.82, "photos": 160}}],
    )
    scores: dict[str, Interval | None] = Field(
        description="Metric → its mean over the photos.",
        examples=[{"deletion": {"mean": 0.074, "low": 0.05, "high": 0.103, "photos": 200}}],
    )
    forwards: int | None = Field(description="Number of forward passes for a map.", examples=[1])
    milliseconds: float | None = Field(
        description="Median time of a map that is made alone.", examples=[11.2]
    )
    points: Interval | None = Field(
        description=(
            "Mean share of the other methods that this method beats in localisation and "
            "faithfulness; only methods that show the model are compared."
        ),
        examples=[{"mean": 0.67, "low": 0.64, "high": 0.7, "photos": 200}],
    )
    mean_map: list[list[float]] | None = Field(
        None, description="Mean of the maps, each scaled to 0 … 1 and reduced to a coarse grid."
    )


class Recommendation(Open):
    method: str = Field(examples=["gradcam"])
    layer: str = Field(examples=["bn2"])
    reason: str = Field(examples=["it beats 67% of the other methods on a photo (64% to 70%)"])
    alike: list[str] = Field(
        description="Methods whose points do not differ from the best ones beyond chance.",
        examples=[["eigengradcam@bn2"]],
    )
    lines: str = Field(
        description="The line for the model's entry in models.toml.",
        examples=['audit = "audit.json"'],
    )


class Place(Open):
    """A place on the model's input; its edges are shares of the input's sides."""

    left: float = Field(examples=[0.0])
    top: float = Field(examples=[0.0])
    right: float = Field(examples=[0.25])
    bottom: float = Field(examples=[0.25])


class Finding(Open):
    """Something about the model or a method that a reader should know."""

    kind: FindingKind = Field(examples=["shows the photo, not the model"])
    sentence: str = Field(
        examples=["eigencam@bn2 shows the photo, not the model: the map hardly changes …"]
    )
    arms: list[str] = Field(
        default_factory=list, description="The methods that are concerned, as `method@layer`."
    )
    place: Place | None = Field(None, description="Where the model looks on every photo.")


class PhotoFailure(Open):
    """A photo that could not be measured."""

    item: str = Field(examples=["broken.jpg"])
    reason: str


class Audit(Described):
    """The summary of an audit."""

    version: Literal[1] = 1
    model: str = Field(examples=["efficientnet-lite0"])
    fingerprint: str = Field(
        description="Digest of the weights and of everything else that maps depend on.",
        examples=["5b1f0c9e0d6c4f5e8a7b6c5d4e3f2a1b"],
    )
    made: str = Field(
        description="Time of the last measurement, in UTC.", examples=["2026-11-24T03:33:14+00:00"]
    )
    made_with: dict[str, Any] = Field(
        default_factory=dict, description="Versions and settings that the numbers depend on."
    )
    photos: int = Field(description="Number of photos that were measured.", examples=[200])
    failed: list[PhotoFailure] = Field(default_factory=list)
    metrics: dict[str, str] = Field(
        description="Metric → its convention.", examples=[{"deletion": "Petsiuk et al. …"}]
    )
    better: dict[str, Better] = Field(
        description="Metric → whether higher or lower values are better.",
        examples=[{"deletion": "lower"}],
    )
    conventions: dict[str, str] = Field(
        description="Part of the audit → how it was measured.",
        examples=[{"interval": "95 %, by Student's distribution, from three photos on"}],
    )
    arms: list[ArmSummary] = Field(description="Each method at each layer.")
    baselines: dict[str, dict[str, Interval | None]] = Field(
        description="Baseline → metric → its mean.", examples=[{}]
    )
    chance: dict[str, float] = Field(
        description="Side of a grid → share of the heat in the right cell, for a map that knows "
        "nothing.",
        examples=[{"2": 0.25, "3": 0.1111}],
    )
    findings: list[Finding]
    recommendation: Recommendation | None = Field(
        description="Null if no method can be recommended; `why_none` then says why."
    )
    why_none: str | None = Field(
        None,
        description="Why no method is recommended, as a clause; null if one is.",
        examples=["12 photos were measured, and a recommendation needs 20 or more"],
    )
    quantiles: dict[str, list[float]] = Field(
        default_factory=dict,
        description="Metric → its 101 percentiles over all photos and methods that show the model.",
    )


class AuditDocument(JobDocument):
    """An audit: the job, and the summary of its photos."""

    kind: JobKind = Field("audit", examples=["audit"])
    audit: Audit

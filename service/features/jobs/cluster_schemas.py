"""Schemas of JSON answers about the clusters of a job's maps."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from service.core.glossary import TERMS
from service.core.schemas import Open


class ClusteredClass(Open):
    """The class that maps explain."""

    index: int | None = Field(None, description=TERMS["target_index"], examples=[285])
    label: str = Field(description="The target in words.", examples=["Egyptian cat"])


class ClusterPlace(Open):
    """Centre of a mean map's heat, from the left and the top."""

    x: float = Field(description="Share of the width, 0 … 1.", examples=[0.93])
    y: float = Field(description="Share of the height, 0 … 1.", examples=[0.93])


class MapCluster(Open):
    """Maps of one class whose heat lies at similar places."""

    cluster: int = Field(
        description="Number of the cluster in its class, from 0, the most suspicious one first.",
        examples=[0],
    )
    suspect: bool = Field(
        description=(
            "Whether the maps suggest that the model looks at something else than the class, such "
            "as a watermark. It is a reason to look at the photos, not a proof."
        ),
        examples=[True],
    )
    reasons: list[str] = Field(
        description="What is true of the cluster, in short.",
        examples=[["same pattern", "own place", "border", "isolated"]],
    )
    sentences: list[str] = Field(
        description="The same as sentences.",
        examples=[["the heat has one pattern at one fixed place"]],
    )
    items: list[str] = Field(
        description="The items whose maps are in the cluster.",
        examples=[["cats/a.jpg", "cats/b.jpg"]],
    )
    numbers: list[int] = Field(
        description="For each entry of `items`, the index of the item's explanation, from 0.",
        examples=[[0, 0]],
    )
    mean: list[list[float]] = Field(
        description="Mean of the maps, row by row, at most 14 × 14, each value 0 … 1.",
        examples=[[[0.02, 0.1], [0.1, 0.97]]],
    )
    place: ClusterPlace
    border: float = Field(
        description="Mean share of the heat near the border, 0 … 1; 0.36 for an even map.",
        examples=[0.71],
    )
    tightness: float = Field(
        description="Mean share of a map's heat that overlaps the mean heat of the cluster, 0 … 1.",
        examples=[0.86],
    )


class OwnPlace(Open):
    """A place of the frame at which most maps of one class lie, but few maps of other classes."""

    sentence: str = Field(
        description="What was found, as a sentence without a full stop.",
        examples=["all 40 maps of 'triangle' look at the bottom left, where no other class looks"],
    )
    where: str = Field(description="The place in words.", examples=["at the bottom left"])
    place: ClusterPlace
    items: list[str] = Field(
        description="The items whose maps lie there.", examples=[["cats/a.jpg", "cats/b.jpg"]]
    )
    numbers: list[int] = Field(
        description="For each entry of `items`, the index of the item's explanation, from 0.",
        examples=[[0, 0]],
    )


class ClustersOfClass(Open):
    model_config = ConfigDict(frozen=True, serialize_by_alias=True, validate_by_name=True)

    class_: ClusteredClass = Field(alias="class")
    maps: int = Field(description="Number of the class's maps, one of each item.", examples=[312])
    note: str | None = Field(
        None, description="Why the maps are not split into clusters; absent if they are."
    )
    own_place: OwnPlace | None = Field(
        None,
        description=(
            "A place of the frame where most maps of this class lie and few maps of other "
            "classes do, such as a mark on most photos of the class; absent if there is none. It "
            "is a reason to look at the photos, not a proof."
        ),
    )
    clusters: list[MapCluster]


class JobClusters(Open):
    """The clusters of a job's maps, the classes with suspect clusters first."""

    explained: int = Field(description="Number of items that are explained.", examples=[480])
    read: int = Field(description="Number of items whose maps were read.", examples=[480])
    note: str | None = Field(None, description="Why not all maps were read; absent if they were.")
    classes: list[ClustersOfClass]

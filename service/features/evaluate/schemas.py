"""Schemas of JSON answers about how good maps are: `:evaluate`."""

from __future__ import annotations

from pydantic import Field

from service.core.schemas import ExplainedTarget, FailedInstance, Open, Score


class Evaluation(Open):
    """The scores of one map."""

    instance: int = Field(description="Index of the instance in the request, from 0.", examples=[0])
    id: str | None = None
    method: str | None = Field(
        None, description="Absent for a map that was sent.", examples=["gradcam"]
    )
    layer: str | None = Field(None, description="Absent for a map that was sent.", examples=["bn2"])
    target: ExplainedTarget
    scores: dict[str, Score] = Field(
        description="Metric → score.",
        examples=[
            {
                "deletion": {
                    "value": 0.118,
                    "better": "lower",
                    "convention": "Petsiuk et al., RISE, BMVC 2018: area (trapezoid) under the …",
                    "baselines": {"random": 0.2, "gaussian": 0.17, "edges": 0.2, "uniform": 0.24},
                    "verdict": "better than chance, a centred Gaussian and an edge detector",
                }
            }
        ],
    )
    warnings: list[str] = Field([], examples=[[]])


class MeanScore(Open):
    """A metric over several images."""

    value: float = Field(description="Mean over the maps that have a value.")
    low: float | None = Field(
        None,
        description="Lower end of the mean's 95 % interval over the images, by Student's "
        "distribution; null for fewer than three images.",
    )
    high: float | None = Field(None, description="Upper end of the interval.")
    maps: int = Field(description="Number of maps that have a value.")
    baselines: dict[str, float] = Field({}, description="Means of the baselines.")
    verdict: str | None = Field(
        None,
        description=(
            "How the maps compare with each baseline, judged by the interval of the mean "
            "difference on the same image: `no better` if the interval contains 0."
        ),
        examples=["better than chance and an edge detector; no better than a centred Gaussian"],
    )


class EvaluationSummary(Open):
    """The scores of one method at one layer over all instances of the request."""

    method: str | None = None
    layer: str | None = None
    scores: dict[str, MeanScore]
    adcc_of_means: float | None = Field(
        None,
        description="The harmonic mean of the mean coherency, 1 − complexity and 1 − drop.",
    )


class EvaluateResponse(Open):
    """The scores of all maps, in the order of the instances, then by method, target and layer."""

    evaluations: list[Evaluation | FailedInstance]
    summary: list[EvaluationSummary] = Field(
        [], description="Means over the instances, if there are several.", examples=[[]]
    )

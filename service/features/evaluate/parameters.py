"""Parameters of `:evaluate`: those of `:explain`, and the metrics with their options."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator
from typing_extensions import TypeAliasType

from cam.evaluation.metrics import BASELINES, DEFAULTS, MOST_SAMPLES, MOST_STEPS, PERCENTAGES
from service.pipeline.parameters import (
    ExplainInstance,
    Instances,
    MetricNames,
    Parameters,
    known_metrics,
    listed,
)
from service.pipeline.targets import RegionObject, StrictModel, parsed

Baseline = TypeAliasType("Baseline", Literal["random", "gaussian", "edges", "uniform"])
Replacement = TypeAliasType("Replacement", Literal["zero", "blur", "mean"])


class SentMap(StrictModel):
    """A map that another program made."""

    b64: str = Field(
        description=(
            "A NumPy .npy file in base64, of real numbers (height, width): of the photo's pixels, "
            "upright, or of the model's input."
        ),
        json_schema_extra={"contentEncoding": "base64"},
    )


class EvaluateParameters(Parameters):
    """Parameters of `:evaluate`: the same names in JSON, in the query and in form fields."""

    own: ClassVar[tuple[str, ...]] = (*Parameters.own, "region", "map")

    metrics: MetricNames = Field(
        list(DEFAULTS), min_length=1, description="How the maps are judged: names of metrics."
    )
    steps: Annotated[int, Field(ge=1, le=MOST_STEPS)] | Literal["fine"] = Field(
        30,
        description=(
            "Number of steps of the curves of `insertion` and `deletion`; `fine` for steps of 224 "
            "pixels."
        ),
    )
    deletion_to: Replacement = Field(
        "zero",
        description=(
            "What `deletion` puts in a pixel's place: `zero` after preprocessing, the `blur`red "
            "photo, or the photo's `mean` colour."
        ),
    )
    insertion_from: Replacement = Field(
        "blur", description="The picture into which `insertion` puts the pixels."
    )
    percentages: list[Annotated[float, Field(gt=0, lt=100, allow_inf_nan=False)]] = Field(
        list(PERCENTAGES),
        min_length=1,
        max_length=99,
        description="Percentages of the pixels that `road` removes.",
    )
    samples: int = Field(
        10, ge=1, le=MOST_SAMPLES, description="Number of noisy images of `sensitivity`."
    )
    radius: float = Field(
        0.02,
        gt=0,
        le=10,
        allow_inf_nan=False,
        description="Largest noise of `sensitivity`, in units of the preprocessed image.",
    )
    squares: int = Field(
        32, ge=2, le=MOST_SAMPLES, description="Number of squares of `infidelity`."
    )
    scale_free: bool = Field(
        True,
        description=(
            "Whether `sensitivity` and `infidelity` do not depend on the scale of the map."
        ),
    )
    baselines: list[Baseline] = Field(
        list(BASELINES),
        max_length=len(BASELINES),
        description=(
            "Maps that are scored for comparison: `random`, the map itself turned about the "
            "centre, which is chance; a centred Gaussian (`gaussian`); an edge detector (`edges`); "
            "and a `uniform` map, whose pixels come in random order. Each costs as many passes as "
            "the map. An empty list means none."
        ),
    )
    seed: int = Field(0, ge=0, lt=2**31, description="Seed of the random numbers of all metrics.")
    region: RegionObject | None = Field(
        None, description="Where the heat should be, for `energy` and `pointing`."
    )
    map: SentMap | None = Field(
        None, description="A map to judge in place of one that the service makes."
    )

    @property
    def costly(self) -> bool:
        return True  # each map takes many passes

    @property
    def scored(self) -> bool:
        return True

    _split = field_validator("metrics", "percentages", "baselines", mode="before")(listed)
    _metrics_exist = field_validator("metrics")(known_metrics)
    _parsed = field_validator("region", "map", mode="before")(parsed)


class EvaluateInstance(ExplainInstance):
    """One photo, with its own parameters if they differ from those of the request."""

    region: RegionObject | None = None
    map: SentMap | None = None


class EvaluateRequest(StrictModel):
    instances: Instances[EvaluateInstance]
    parameters: EvaluateParameters = Field(default_factory=EvaluateParameters)

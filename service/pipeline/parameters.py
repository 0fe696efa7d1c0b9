"""Parameters of requests: the same names in JSON, in the query, in form fields and on the command
line."""

from __future__ import annotations

import ast
from functools import cache
from keyword import iskeyword
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, TypeVar

from pydantic import (
    AfterValidator,
    FailFast,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    create_model,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError
from typing_extensions import TypeAliasType

from cam import COLORMAPS, METHODS, METRICS, Question
from cam.drawing.overlay import HOTTEST, USUAL, USUAL_SIGNED, Picture
from cam.errors import did_you_mean
from cam.extensions import added
from cam.reasons.cascade import MOST_REASONS
from service.core.choices import Fuse, Normalize, Size, Smooth, WantedFit
from service.pipeline import extensions
from service.pipeline.extensions import OutputForm, Parameter
from service.pipeline.outputs import OUTPUTS
from service.pipeline.targets import (
    MAX_MAPS,
    Name,
    Photo,
    StrictModel,
    TargetParameter,
    Text,
    object_in_text,
)

OPTIONS: Final = frozenset({"context", "folder", "image", "model", "models", "photos"})
"""Options of commands, whose names an added parameter cannot have."""
MAX_INSTANCES = 1024
FEW_MAPS = 10
"""Number of maps of one image above which its parameters are costly."""
MAX_PROMPTS = 100
MAX_TEXT = 1000
"""Maximum length of a text that names several values."""
AUDITED = "auto"
"""Stands for the method that the audit of the model recommends."""
MAX_MATCHED = 16
"""Maximum number of layers that one pattern may match."""


LayerParameter = Name | Annotated[list[Name], Field(min_length=1, max_length=MAX_MAPS)]
# Without explicit names openapi-python-client gives `gradcam` and `gradcam++` one identifier. It
# then drops an operation with an inline enumeration; with a component, GRADCAM sends `gradcam++`.
Method = TypeAliasType(
    "Method",
    Annotated[
        str,
        Field(
            min_length=1,
            max_length=40,
            json_schema_extra={
                "enum": [*METHODS, AUDITED],
                "x-enum-varnames": [
                    name.replace("+", "_plus").upper() for name in (*METHODS, AUDITED)
                ],
            },
        ),
    ],
)
MethodParameter = Method | Annotated[list[Method], Field(min_length=1, max_length=len(METHODS))]
MetricName = TypeAliasType(
    "MetricName",
    Annotated[str, Field(max_length=40, json_schema_extra={"enum": list(METRICS)})],
)
MetricNames = Annotated[list[MetricName], Field(max_length=len(METRICS))]


def _known_colormap(colormap: str) -> str:
    if colormap not in COLORMAPS:
        names = ", ".join(COLORMAPS)
        raise PydanticCustomError("unknown_colormap", f"the colormaps are {names}")
    return colormap


Colormap = TypeAliasType(
    "Colormap",
    Annotated[
        str, Field(json_schema_extra={"enum": list(COLORMAPS)}), AfterValidator(_known_colormap)
    ],
)


if TYPE_CHECKING:
    Output = str
else:
    Output = TypeAliasType("Output", Literal[*OUTPUTS])


def _opacity(sent: Any, check: ValidatorFunctionWrapHandler) -> Any:
    try:
        return check(sent)
    except ValidationError:
        raise PydanticCustomError(
            "opacity", "it should be a number from 0 to 1, or heat"
        ) from None  # instead of a sentence for each alternative


Opacity = TypeAliasType(
    "Opacity",
    Annotated[
        Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | Literal["heat"],
        WrapValidator(_opacity),
    ],
)
OPACITY = (
    "Opacity of the colours over the photo; or `heat`: the opacity follows the heat (its absolute "
    f"value for a signed map), from 0 where there is none to {HOTTEST} at the hottest place."
)


def is_pattern(layer: str) -> bool:
    """Return whether the name of a layer is a pattern, as in `blocks.*.norm1`."""
    return any(sign in layer for sign in "*?[")


def no_method(name: str) -> str:
    known = ", ".join(METHODS)
    return f"there is no method {name!r}; the methods are {known}{did_you_mean(name, METHODS)}"


def listed(sent: Any) -> Any:
    """Return the parts of a text that names several values, as in `insertion,deletion`."""
    if isinstance(sent, list):
        return [part for value in sent for part in (listed(value) if _is_text(value) else [value])]
    return [part.strip() for part in sent.split(",") if part.strip()] if _is_text(sent) else sent


def _is_text(sent: Any) -> bool:
    return isinstance(sent, str) and len(sent) <= MAX_TEXT


def known_metrics(metrics: list[str]) -> list[str]:
    """Return the names of metrics without duplicates, if all exist."""
    unknown = [metric for metric in metrics if metric not in METRICS]
    if unknown:
        raise PydanticCustomError(
            "unknown_metric",
            "there is no metric {name}; the metrics are {known}",
            {"name": f"{unknown[0]!r:.80}", "known": ", ".join(METRICS)},
        )
    return list(dict.fromkeys(metrics))


class ImageParameters(StrictModel):
    """Parameters of any work on an image."""

    own: ClassVar[tuple[str, ...]] = ()
    """Names of the parameters that a single instance may set."""
    asks: ClassVar[bool] = False
    """Whether they ask a question, which a vision–language model answers."""

    @property
    def costly(self) -> bool:
        """Whether an image needs many passes through the model, or many maps."""
        return False

    @property
    def known_methods(self) -> list[str]:
        """Names of the methods that explain, without those that do not exist."""
        return []


class PredictParameters(ImageParameters):
    """Parameters of `:predict`: the same names in JSON, in the query and in form fields."""

    top_k: int = Field(5, ge=1, le=1000, description="How many labels to return, best first.")
    fit: WantedFit = Field(
        "auto",
        description=(
            "How the model sees the photo: `crop` is its own evaluation preprocessing (the edges "
            "may be cut off), `squash` the whole photo in the input's shape, `pad` the whole "
            "photo with a border, `auto` what the model's description calls `default_fit`."
        ),
    )
    prompts: list[Text] | None = Field(
        None,
        min_length=1,
        max_length=MAX_PROMPTS,
        description=(
            "For a model that takes prompts (`takes_text`): texts that replace the model's "
            "classes. Probabilities compare these texts, and a target names one of them."
        ),
    )

    @property
    def costly(self) -> bool:
        """Whether an image needs many passes through the model, or many maps."""
        return len(self.prompts or ()) > FEW_MAPS

    @field_validator("prompts", mode="before")
    @classmethod
    def _one_prompt(cls, sent: Any) -> Any:
        return [sent] if isinstance(sent, str) else sent


class Parameters(PredictParameters):
    """Parameters of `:explain`: the same names in JSON, query, form fields, and on the command
    line."""

    own: ClassVar[tuple[str, ...]] = ("target", "method", "layer")

    top_k: int = Field(
        5,
        ge=1,
        le=1000,
        description=(
            "How many labels to return, best first. For a detector without a target: how many "
            "boxes to explain, best first; if it is not given, only the best one."
        ),
    )
    method: MethodParameter = Field(
        "gradcam",
        description=(
            "The method of class activation mapping, or several methods. Several methods make "
            "one map each, at the model's default layer unless `layer` names another, and the "
            "answer has their `agreement`. `auto` is the method that the model's audit "
            "recommends, if the model's entry in models.toml names an audit."
        ),
    )
    layer: LayerParameter = Field(
        "auto",
        description=(
            "The target layer; or several, for a map of each; or a pattern like `blocks.*.norm1`, "
            f"for all explainable layers that it matches (at most {MAX_MATCHED}). `auto` is the "
            "model's default."
        ),
    )
    target: TargetParameter | None = Field(
        None,
        description=(
            "The class to explain, by index or label, or an object for contrasts and more. "
            "Several targets give several maps from one forward pass. Without it, the predicted "
            "class."
        ),
    )
    budget: int | None = Field(
        None,
        ge=1,
        le=10_000,
        description=(
            "Largest number of forward passes, for a method that needs many; without it, the "
            "method's own default."
        ),
    )
    signed: bool = Field(
        False,
        description=(
            "Also keep the values below 0, which are evidence against the target. A scaled map "
            "is then -1 … 1, and its colours have a neutral middle."
        ),
    )
    smooth: Smooth = Field(
        "none",
        description=(
            "`eigen`: the first principal component of the weighted activations instead of their "
            "sum; `augment`: the mean over the photo, mirrored and not, at three brightnesses."
        ),
    )
    fuse: Fuse = Field(
        "none",
        description="Make one map of several layers: the mean or the maximum of their scaled maps.",
    )
    reasons: int = Field(
        1,
        ge=1,
        le=MOST_REASONS,
        description=(
            "How many reasons to find, for the same target. The first is the map of the photo. "
            "Before each further one, the hot pixels of the map before it are masked. Each is an "
            "explanation with its `reason`, and the target's probability in the masked photo."
        ),
    )
    output: Output | None = Field(
        None,
        description=(
            "; ".join(f"`{name}`: {form.told}" for name, form in OUTPUTS.items())
            + ". Without it: an overlay if the answer is a picture, a mask in JSON."
        ),
    )
    threshold: float = Field(
        0.5,
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="Least value of a hot pixel: for the box around the hottest region, for "
        "contours, and for the pixels that `reasons` mask.",
    )
    colormap: Colormap | None = Field(
        None,
        description=f"The colours of heat: `{USUAL}`, or `{USUAL_SIGNED}` where it is signed.",
    )
    opacity: Opacity = Field(0.5, description=OPACITY)
    normalize: Normalize = Field(
        "minmax",
        description=(
            "`minmax` scales each map to 0 … 1; `percentile` scales it by its 99th percentile and "
            "caps larger values, so that a few pixels do not leave the others dark; `none` keeps "
            "the numbers that the method's formula gives (pictures are scaled by `minmax`)."
        ),
    )
    size: Size = Field(
        "image",
        description=(
            "Size of the map: `image`: the pixels of the upright photo; `model`: the pixels of "
            "the model's input; `layer`: the grid of the target layer."
        ),
    )
    evaluate: MetricNames = Field(
        [],
        description=(
            "Metrics by which each map is scored, with their usual options (see `:evaluate`). "
            "Each takes some hundred passes."
        ),
    )

    @property
    def boxes(self) -> int:
        """Number of a detector's boxes that are explained if no target is named: `top_k` if it was
        given, otherwise one, so that the answer is a single map."""
        return self.top_k if "top_k" in self.model_fields_set else 1

    @property
    def scored(self) -> bool:
        """Whether the maps are scored."""
        return bool(self.evaluate)

    @property
    def pictured(self) -> bool:
        """Whether a JSON answer has a picture beside the map."""
        return self.output is not None and self.form.beside

    @property
    def form(self) -> OutputForm:
        """What a picture of the map shows."""
        return OUTPUTS[self.output or "overlay"]

    @property
    def maps(self) -> int:
        """Maximum number of maps of one image that the parameters ask for."""
        targets = len(dict.fromkeys(self.target)) if isinstance(self.target, list) else 1
        named = self.layer if isinstance(self.layer, list) else [self.layer]
        layers = sum(MAX_MATCHED if is_pattern(name) else 1 for name in dict.fromkeys(named))
        return targets * self.maps_at(layers) * self.reasons

    @property
    def methods(self) -> list[str]:
        """Names of the methods, without duplicates."""
        return list(dict.fromkeys([self.method] if isinstance(self.method, str) else self.method))

    @property
    def known_methods(self) -> list[str]:
        """Names of the methods that exist, and `auto`. An instance may name others, which are
        refused later."""
        return [name for name in self.methods if name in METHODS or name == AUDITED]

    def changed_question(self, question: Question) -> Question:
        """Return the question that added parameters make of one."""
        for each in ADDED:
            if each.question:
                question = each.question(question, getattr(self, each.name))
        return question

    def changed_picture(self, picture: Picture) -> Picture:
        """Return the picture that added parameters make of one."""
        for each in ADDED:
            if each.picture:
                picture = each.picture(picture, getattr(self, each.name))
        return picture

    def maps_at(self, layers: int) -> int:
        """Return the number of maps that all methods together make of a target at `layers` layers.
        Some methods make one map for any number of layers."""
        known = [METHODS.get(name) for name in self.known_methods]  # `auto` may be any method
        one = [
            method and (self.fuse != "none" or method.at == "input" or method.levels)
            for method in known
        ]
        return sum(1 if single else layers for single in one)

    @property
    def costly(self) -> bool:
        many = any(
            name == AUDITED or METHODS[name].formula == "steps" for name in self.known_methods
        )
        augmented = self.smooth in ("augment", "both")
        many = many or augmented or self.scored or self.maps > FEW_MAPS
        return many or super().costly

    _object_in_text = field_validator("target", mode="before")(object_in_text)
    _split_names = field_validator("evaluate", mode="before")(listed)
    _metrics_known = field_validator("evaluate")(known_metrics)

    @field_validator("method")
    @classmethod
    def _method_exists(cls, method: str | list[str]) -> str | list[str]:
        for name in [method] if isinstance(method, str) else method:
            if name not in METHODS and name != AUDITED:
                raise PydanticCustomError("unknown_method", no_method(name))
        return method


def _with(*additions: Parameter) -> type[Parameters]:
    """Return the class of parameters that also has those of other packages."""
    fields: dict[str, Any] = {each.name: (each.kind, each.field) for each in additions}
    return create_model(
        "Parameters",
        __base__=Parameters,
        __module__=__name__,
        __doc__=Parameters.__doc__,
        **fields,
    )


@cache
def declared() -> set[str]:
    """Return the names of the parameters that the features declare.

    Their classes extend the class that the additions are part of, so they cannot be imported before
    the additions are checked, and the names are read from the source.
    """
    return {
        each.target.id
        for file in Path(__file__).parents[1].glob("features/*/*.py")
        if "Parameters)" in (source := file.read_text(encoding="utf-8"))
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(base).endswith("Parameters") for base in node.bases)
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }


def _problem(parameter: Parameter) -> str | None:
    if parameter.name in declared():
        return f"the name {parameter.name!r} is taken"
    if not parameter.name.isidentifier() or iskeyword(parameter.name):
        return f"its name {parameter.name!r} is not a name of Python"
    try:
        schema = _with(parameter)
        if not schema.model_fields[parameter.name].description:
            return "its field has no description"
        schema()
        schema.model_json_schema()
    except Exception as error:  # it is another package's type
        return f"its kind and its field make no parameter with a default: {error}"
    return None


ADDED: Final = tuple(
    added(
        group=extensions.PARAMETERS,
        kind=Parameter,
        where=extensions.__name__,
        taken={*Parameters.model_fields, *dir(Parameters), *OPTIONS},
        problem=_problem,
    )
)
"""The parameters of other packages."""
if ADDED and not TYPE_CHECKING:
    Parameters = _with(*ADDED)


class PredictInstance(StrictModel):
    """One photo."""

    image: Photo
    id: str | None = Field(None, max_length=200, description="The answer repeats it.")

    @model_validator(mode="before")
    @classmethod
    def _bare(cls, sent: Any) -> Any:
        """Take `{"b64": …}` for an image, as TensorFlow Serving and Vertex AI do."""
        if isinstance(sent, dict) and "b64" in sent and "image" not in sent:
            return {"image": {"b64": sent["b64"]}, **{k: v for k, v in sent.items() if k != "b64"}}
        return sent


class ExplainInstance(PredictInstance):
    """One photo, with its own parameters if they differ from those of the request."""

    target: TargetParameter | None = None
    method: MethodParameter | None = None
    layer: LayerParameter | None = None


Sent = TypeVar("Sent", bound=PredictInstance)
Instances = Annotated[list[Sent], FailFast(), Field(min_length=1, max_length=MAX_INSTANCES)]
"""The instances of a request."""


class ExplainRequest(StrictModel):
    instances: Instances[ExplainInstance]
    parameters: Parameters = Field(default_factory=Parameters)

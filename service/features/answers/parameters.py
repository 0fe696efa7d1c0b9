"""Parameters of `:answer`: the same names in JSON, in the query and in form fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, field_validator
from typing_extensions import TypeAliasType

from cam import ANSWER_METHODS
from cam.answers.answer import MAX_TOKENS
from cam.drawing.overlay import USUAL
from service.core.choices import Normalize
from service.pipeline.parameters import (
    AUDITED,
    OPACITY,
    Colormap,
    ImageParameters,
    Instances,
    Opacity,
    Output,
    Parameters,
    PredictInstance,
)
from service.pipeline.targets import RegionObject, StrictModel, parsed

# A query that holds the longest question, answer and word fits the request's head of 32 KiB, even
# if each character takes twelve bytes there.
Question = Annotated[str, Field(max_length=1000)]
GivenAnswer = Annotated[str, Field(max_length=1200)]
if TYPE_CHECKING:
    WantedAnswerMethod = str
else:
    WantedAnswerMethod = TypeAliasType("WantedAnswerMethod", Literal[*ANSWER_METHODS, AUDITED])
AnswerSize = TypeAliasType("AnswerSize", Literal["image", "layer"])


class AnswerParameters(ImageParameters):
    """Parameters of `:answer`."""

    own: ClassVar[tuple[str, ...]] = ("question", "answer", "word", "region")
    asks: ClassVar[bool] = True

    question: Question = Field("", description="The question about the photo.")
    answer: GivenAnswer | None = Field(
        None,
        description=(
            "An answer to explain as it is, in one pass. Without it, the model's own answer: the "
            "most probable token at each step."
        ),
    )
    max_tokens: int = Field(
        64, ge=1, le=MAX_TOKENS, description="Largest number of tokens in the model's own answer."
    )
    method: WantedAnswerMethod = Field(
        "tam",
        description="The method of the maps. "
        + " ".join(f"`{name}`: {says}." for name, says in ANSWER_METHODS.items())
        + " `auto`: the one that an audit of the model recommends.",
    )
    evidence: bool = Field(
        True,
        description=(
            "Whether to measure how much the photo speaks for each word, by one more pass, with "
            "the photo blurred."
        ),
    )
    alternatives: int = Field(
        3, ge=0, le=20, description="How many of the most probable tokens each token lists."
    )
    word: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        None,
        description=(
            "A word or phrase of the answer, such as `red circle`: `words` and a picture then have "
            "only this one. Without it, a picture shows all words."
        ),
    )
    evaluate: bool = Field(
        False,
        description=(
            "Whether to score the map of `word` by insertion and deletion, in 20 more passes."
        ),
    )
    region: RegionObject | None = Field(
        None,
        description="Where the heat of `word` should be: `evaluate` then also gives `energy` and "
        "`pointing`.",
    )
    output: Output | None = Field(
        None,
        description=(
            "What pictures show: see `output` of `:explain`. In JSON, a picture for each word; "
            "`values`: the maps as float32. Without it: overlays if the answer is a picture, masks "
            "in JSON."
        ),
    )
    threshold: float = Field(
        0.5, ge=0, le=1, allow_inf_nan=False, description="Least hot value, for contours."
    )
    colormap: Colormap | None = Field(None, description=f"The colours of heat: `{USUAL}`.")
    opacity: Opacity = Field(0.5, description=OPACITY)
    normalize: Normalize = Field(
        "minmax",
        description=(
            "`minmax` scales each word's map to 0 … 1; `percentile` by its 99th percentile; `none` "
            "keeps the method's numbers, by which words can be compared."
        ),
    )
    size: AnswerSize = Field(
        "layer",
        description=(
            "Size of the maps in JSON: `layer`: the grid of the image tokens; `image`: the pixels "
            "of the photo as the model gets it, its longer side at most 1024."
        ),
    )

    @property
    def costly(self) -> bool:
        return True  # a pass for each word

    @property
    def known_methods(self) -> list[str]:
        return [self.method]

    @property
    def drawn(self) -> Parameters:
        """The parameters of drawing, as those of `:explain` have them."""
        return Parameters(
            output=self.output,
            threshold=self.threshold,
            colormap=self.colormap,
            opacity=self.opacity,
            normalize=self.normalize,
            size=self.size,
        )

    _parsed = field_validator("region", mode="before")(parsed)


class AnswerInstance(PredictInstance):
    """One photo, with its own question if it differs from that of the request."""

    question: Question | None = None
    answer: GivenAnswer | None = None
    word: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    region: RegionObject | None = None


class AnswerRequest(StrictModel):
    instances: Instances[AnswerInstance]
    parameters: AnswerParameters = Field(default_factory=AnswerParameters)

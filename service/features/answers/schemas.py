"""Schemas of JSON answers to questions: `:answer`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from typing_extensions import TypeAliasType

from cam.answers.answer import Alternative, WordScores
from service.core.schemas import Described, FailedInstance, Heatmap, Open, Overlay, Point


def _with_names(schema: dict[str, Any]) -> None:
    from cam import ANSWER_METHODS  # clients do not load it

    schema["enum"] = list(ANSWER_METHODS)


AnswerMethodName = TypeAliasType(
    "AnswerMethodName", Annotated[str, Field(json_schema_extra=_with_names)]
)


class AnswerToken(Described):
    """A token of an answer."""

    text: str = Field(
        description="What the token adds to the text, including a space before it.",
        examples=[" red"],
    )
    probability: float = Field(
        description="Probability after the question and the tokens before it, 0 … 1.",
        examples=[0.97],
    )
    alternatives: list[Alternative] = Field(
        description="The most probable tokens, best first.",
        examples=[[{"text": " green", "probability": 0.02}]],
    )
    evidence: float | None = Field(
        None,
        description="How much the photo speaks for the token, in nats: its log-probability after "
        "the photo minus that after the blurred photo.",
        examples=[3.4],
    )


class AnswerWord(Described):
    """A word of an answer, or the phrase that was asked for."""

    text: str = Field(examples=["red"])
    first_token: int = Field(description="Which token is the word's first, from 0.", examples=[1])
    tokens: int = Field(description="Number of the word's tokens.", examples=[1])
    probability: float = Field(
        description="Product of the probabilities of the word's tokens.", examples=[0.97]
    )
    evidence: float | None = Field(
        None, description="Sum of the evidence for the word's tokens, in nats.", examples=[3.4]
    )
    from_language: bool | None = Field(
        None,
        description="Whether the word comes from language and not from the photo: its evidence is "
        "below 0.3. Absent if evidence was not measured.",
        examples=[False],
    )
    scores: WordScores | None = Field(None, description="Present if `evaluate` is true.")
    peak: Point | None = Field(
        None, description="Hottest pixel of the photo; absent if the map is all zero."
    )
    heatmap: Heatmap | None = Field(
        None, description="Where on the photo the model sees the word: the map covers the photo."
    )
    overlay: Overlay | None = Field(
        None, description="The picture, if `output` is `overlay`, `heatmap`, `contour` or `panel`."
    )


class Answer(Open):
    """The answer to a question about one photo."""

    instance: int = Field(examples=[0])
    id: str | None = None
    question: str = Field(examples=["what is in the picture?"])
    text: str = Field(examples=["a red circle left of a blue square"])
    method: AnswerMethodName = Field(examples=["tam"])
    finished: bool = Field(
        description="Whether the model ended the answer itself; false if `max_tokens` or the time "
        "cut it off.",
        examples=[True],
    )
    given: bool = Field(description="Whether the request gave the answer.", examples=[False])
    words: list[AnswerWord]
    tokens: list[AnswerToken]
    prompt_tokens: int = Field(
        description="Number of tokens of the photo and the question.", examples=[52]
    )
    image_tokens: int = Field(description="Number of tokens of the photo.", examples=[36])
    memory_bytes: int = Field(
        description="Largest number of bytes for the answer's keys, values and hidden states, and "
        "for what the method keeps.",
        examples=[524288],
    )
    warnings: list[str] = Field(examples=[[]])


class AnswerResponse(Open):
    """The answers, in the order of the instances."""

    answers: list[Answer | FailedInstance]


class TokenLine(Open):
    """A line of `application/x-ndjson`: one token, as soon as the model says it."""

    instance: int = Field(examples=[0])
    id: str | None = None
    number: int = Field(description="Number of the token in the answer, from 0.", examples=[1])
    token: AnswerToken
    heatmap: Heatmap | None = Field(
        None,
        description="Map of the token on the grid of the image tokens; absent for methods that "
        "make their maps after the whole answer.",
    )

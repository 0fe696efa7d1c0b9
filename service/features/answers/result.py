"""An explained answer as JSON and as pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from PIL import Image

from cam import ExplainedAnswer, Explanation, TextTarget
from cam.answers.answer import AnswerProgress, AnswerWord
from cam.answers.methods import METHODS
from cam.counts import counted
from cam.drawing.overlay import Picture
from cam.drawing.placement import Float
from cam.drawing.sheet import CaptionedPicture, sheet_of
from service.core.errors import InvalidParameter
from service.core.schemas import Point
from service.features.answers import schemas
from service.features.answers.parameters import AnswerParameters
from service.models.preprocessing import ModelInput
from service.pipeline.instances import Instance, P
from service.pipeline.parameters import Parameters
from service.pipeline.record import heatmap_of, overlay_of
from service.pipeline.rendering import Caption, Drawing, draw, encode

SHOWN: Final = 60
"""Largest number of words in a picture of all words."""
NO_TEXT: Final = np.zeros(0, np.float32)


@dataclass(frozen=True, eq=False)
class AnswerResult:
    """The explained answer to a question about one photo."""

    instance: Instance[AnswerParameters]
    answer: ExplainedAnswer
    pixels: Picture
    """The photo as the model got it."""
    photo_size: tuple[int, int]
    """Width and height of the photo as it was sent."""
    warnings: tuple[str, ...]

    @property
    def words(self) -> tuple[AnswerWord, ...]:
        """The words that the parameters ask for.

        Raises:
            InvalidParameter: if the answer does not have them.
        """
        asked = self.instance.parameters.word
        if asked is None:
            return self.answer.words
        word = self.answer.phrase(asked)
        if word is None:
            raise InvalidParameter(
                f"word is {asked[:80]!r}, which the answer does not have; the answer is "
                f"{self.answer.text[:300]!r}",
                pointer=self.instance.origins.get("word"),
            )
        return (word,)

    def as_json(self) -> schemas.Answer:
        """Return the JSON schema object of the answer."""
        answer, instance = self.answer, self.instance
        return schemas.Answer(
            **vars(answer) | {"words": [self._word(word) for word in self.words]},
            instance=instance.index,
            id=instance.id,
            memory_bytes=answer.memory,
            warnings=[*self.warnings, *_warnings(answer)],
        )

    def as_picture(self, media_type: str) -> bytes:
        """Return the word that the parameters name on the photo, or a sheet of all words.

        Raises:
            NotAcceptable: if the format cannot hold the picture.
        """
        words = self.words
        if self.instance.parameters.word is not None:
            return self._drawing(words[0], self._drawn_on_photo).encoded(media_type)
        tiles = [
            CaptionedPicture(word.text, self._drawing(word, self._tile).picture(), _told(word))
            for word in words[:SHOWN]
        ]
        lines = [f"{self.answer.question} · {self.answer.method}"]
        if len(words) > SHOWN:
            lines.append(f"the first {SHOWN} of {len(words)} words")
        return encode(sheet_of(self.pixels, tiles, self.answer.text, lines), media_type)

    @property
    def _drawn_on_photo(self) -> Parameters:
        return self.instance.parameters.drawn.model_copy(update={"size": "image"})

    @property
    def _tile(self) -> Parameters:
        """The parameters of a word on the sheet, which has no words of its own beside it."""
        asked = self._drawn_on_photo
        return asked if asked.form.tiled else asked.model_copy(update={"output": "overlay"})

    def _word(self, word: AnswerWord) -> schemas.AnswerWord:
        heatmap = overlay = peak = None
        if word.map is not None:
            heatmap = heatmap_of(self._drawing(word, self.instance.parameters.drawn))
            if (on_photo := self._drawn_on_photo).pictured:
                overlay = overlay_of(self._drawing(word, on_photo))
            if word.map.any():
                row, column = np.unravel_index(int(word.map.argmax()), word.map.shape)
                width, height = self.photo_size
                peak = Point(
                    x=int((column + 0.5) / word.map.shape[1] * width),
                    y=int((row + 0.5) / word.map.shape[0] * height),
                )
        return schemas.AnswerWord(
            **vars(word) | {"scores": self.answer.scores},  # which are of the only word
            first_token=word.start,
            tokens=word.stop - word.start,
            from_language=word.from_language,
            peak=peak,
            heatmap=heatmap,
            overlay=overlay,
        )

    def _drawing(self, word: AnswerWord, parameters: Parameters) -> Drawing:
        assert word.map is not None  # the engine makes one of every word
        return _drawing(
            word.map, self.pixels, word.text, word.probability, self.answer.method, parameters
        )


def _drawing(
    values: Float,
    pixels: Picture,
    text: str,
    probability: float,
    method: str,
    parameters: Parameters,
) -> Drawing:
    explanation = Explanation(
        TextTarget(text, "", NO_TEXT, "cosine"), probability, probability, method, "", values
    )
    lines = (f"probability {probability:.3f}", method)
    return draw(
        Image.fromarray(pixels),
        ModelInput.of(pixels),
        explanation,
        0,
        parameters,
        caption=lambda: Caption(text, lines),
    )


def describe_token_line(instance: Instance[P], progress: AnswerProgress) -> schemas.TokenLine:
    """Return the line of a token that has just been said."""
    token, asked = progress.token, instance.parameters
    assert token  # the caller looks
    assert isinstance(asked, AnswerParameters)
    heatmap = None
    if token.map is not None:
        parameters = asked.drawn.model_copy(update={"size": "layer", "output": None})
        grid = np.zeros((*token.map.shape, 3), np.uint8)
        drawing = _drawing(token.map, grid, token.text, token.probability, "", parameters)
        heatmap = heatmap_of(drawing)
    return schemas.TokenLine(
        instance=instance.index,
        id=instance.id,
        number=progress.number,
        token=schemas.AnswerToken.model_validate(token),
        heatmap=heatmap,
    )


def _warnings(answer: ExplainedAnswer) -> list[str]:
    warnings = []
    if not answer.tokens:
        warnings.append("the model ended its answer without a word")
    if not answer.finished:
        warnings.append(
            f"the answer was cut off after {counted(len(answer.tokens), 'token')}; a larger "
            "max_tokens, or a longer time, allows more"
        )
    depends_on = METHODS[answer.method].depends_on
    if depends_on == "place":
        warnings.append(f"{answer.method} does not depend on the word that is said: a baseline")
    if depends_on == "word" and (again := answer.repeated):
        warnings.append(
            f"{answer.method} cannot tell mentions of one word apart, and the answer repeats "
            f"{', '.join(map(repr, again[:10]))}: attnlrp, occlusion and attention tell them apart"
        )
    empty = [word.text for word in answer.words if word.map is not None and not word.map.any()]
    if empty:
        warnings.append(f"the maps of {', '.join(map(repr, empty[:10]))} are all zero")
    return warnings


def _told(word: AnswerWord) -> str:
    """Return what stands below a word on the sheet."""
    sure = f"p {word.probability:.2f}"
    if word.evidence is None:
        return sure
    said = "from language" if word.from_language else f"evidence {word.evidence:.1f}"
    return f"{sure} · {said}"

"""What is asked of a vision–language model, and its explained answer: tokens and words, each with a
map of the photo. Nothing here needs torch."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cam.drawing.placement import Float
from cam.errors import InvalidOption
from cam.progress import Progress

MAX_TOKENS: Final = 512
"""Largest number of tokens of an answer."""
LEAST_SIDE: Final = 16
"""Least width and height of a photo, in pixels: of a smaller one, places cannot be told."""
FROM_LANGUAGE = 0.3
"""Evidence of the photo, in nats, below which a word is said from language."""
ALONE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")
"""Characters of scripts that put no spaces between words: each token is a word of its own."""


@dataclass(frozen=True)
class AnswerOptions:
    """What is asked for of an answer."""

    answer: str | None = None
    """A given answer, which is explained as it is; None for the model's own, which is greedy: the
    most probable token at each step."""
    max_tokens: int = 64
    method: str = "tam"
    """A name in `cam.ANSWER_METHODS`."""
    evidence: bool = True
    """Whether the evidence of the photo is measured, by one more pass."""
    alternatives: int = 3
    """Number of the most probable tokens that are listed for each token."""
    word: str | None = None
    """A word or phrase of the answer: the only one that has a map of a method `of` one word, and
    the one whose map is scored."""
    evaluate: bool = False
    """Whether the map of `word` is scored: `ExplainedAnswer.scores`."""
    region: NDArray[np.bool_] | None = None
    """Where the heat of `word` should be, bool (H, W) of the photo's pixels, for its scores."""

    def check(self) -> None:
        """Check the values.

        Raises:
            InvalidOption: if one is not allowed.
        """
        from cam.answers.methods import METHODS  # what only reads answers starts without it

        if self.method not in list(METHODS):  # an unhashable value is not a name
            names = ", ".join(METHODS)
            raise InvalidOption(f"method is {self.method!r:.80}; it can be {names}")
        if self.word is None and (self.evaluate or METHODS[self.method].of == "word"):
            what = "evaluate scores" if self.evaluate else f"{self.method} explains"
            raise InvalidOption(f"{what} one word or phrase of the answer; word names none")
        if self.region is not None and not (self.evaluate and self.region.any()):
            raise InvalidOption(
                "region is where the heat of a word should be: it needs evaluate, and a pixel"
            )
        for name, value, least, most in (
            ("max_tokens", self.max_tokens, 1, MAX_TOKENS),
            ("alternatives", self.alternatives, 0, 20),
        ):
            if not isinstance(value, int) or not least <= value <= most:
                raise InvalidOption(f"{name} is {value!r:.80}; it can be {least} to {most}")


@dataclass(frozen=True)
class Alternative:
    """A token that the model could have said in place of another one."""

    text: str
    probability: float


@dataclass(frozen=True, eq=False)
class AnswerToken:
    """One token of an answer."""

    id: int
    """Number of the token in the model's vocabulary."""
    text: str
    """What the token adds to the text, with the space before it."""
    probability: float
    """Probability of the token after the question and the tokens before it, 0 … 1."""
    alternatives: tuple[Alternative, ...] = ()
    """The most probable tokens, best first."""
    map: Float | None = None
    """Where on the photo the model sees the token, float32 (h, w), at least 0; it covers the whole
    photo. None where it was not asked for or is still to come."""
    evidence: float | None = None
    """How much the photo speaks for the token, in nats: log p(token | photo, text before it) −
    log p(token | blurred photo, text before it). None where it was not measured."""


@dataclass(frozen=True)
class WordScores:
    """How good the map of a word is, as shares of the word's probability."""

    deletion: float
    """Area under the word's probability while the hottest pixels are blurred; lower is better."""
    insertion: float
    """Area under the word's probability while the hottest pixels are put into the blurred photo;
    higher is better."""
    energy: float | None = None
    """Share of the heat in `region`, 0 … 1, if a region is given and there is heat."""
    pointing: float | None = None
    """1 if the hottest pixel lies in `region`, else 0, if a region is given."""


@dataclass(frozen=True, eq=False)
class AnswerWord:
    """A word of an answer, or a phrase of several words."""

    text: str
    start: int
    """Number of its first token."""
    stop: int
    """Number of the token behind its last one."""
    probability: float
    """Probability of its tokens, 0 … 1."""
    map: Float | None
    """Mean of its tokens' maps."""
    evidence: float | None
    """Sum of its tokens' evidence, in nats."""

    @property
    def from_language(self) -> bool | None:
        """Whether the word is said from language and not from the photo: its evidence is below
        `FROM_LANGUAGE`. None where evidence was not measured."""
        return None if self.evidence is None else self.evidence < FROM_LANGUAGE


@dataclass(frozen=True, eq=False)
class ExplainedAnswer:
    """The answer to a question about a photo, with a map for each token and word."""

    question: str
    text: str
    method: str
    tokens: tuple[AnswerToken, ...]
    words: tuple[AnswerWord, ...]
    finished: bool
    """Whether the model ended the answer itself; False where `max_tokens` cut it off."""
    given: bool
    """Whether the caller gave the answer, and the model only read it."""
    prompt_tokens: int
    """Number of tokens of photo and question."""
    image_tokens: int
    memory: int
    """Bytes that the model's cache, its hidden states and what the method keeps took."""
    scores: WordScores | None = None
    """Scores of the map of the word or phrase that the options name, if they ask for them; None if
    the answer does not have it."""

    @property
    def repeated(self) -> list[str]:
        """The words that the answer says several times, each once, without those that are said from
        language.

        A token activation map (`tam`) or a logit is made of the output embedding of a token, which
        is the same wherever the answer says it: the maps of "circle" in "a circle left of a circle"
        are nearly one map. Methods that start from the place where a token is said tell the two
        apart: attention, AttnLRP, occlusion.
        """
        said = [word.text.casefold() for word in self.words if not word.from_language]
        counts = Counter(word for word in said if any(letter.isalnum() for letter in word))
        return [word for word, count in counts.items() if count > 1]

    def phrase(self, text: str) -> AnswerWord | None:
        """Return the first words of the answer that are a text, as one; None if there are none.
        Upper and lower case and spaces do not matter."""
        return phrase_of(self.tokens, text)


@dataclass(frozen=True)
class AnswerProgress(Progress):
    """Progress of an answer: the tokens that have been said, and the last one of them."""

    number: int = 0
    """Number of the token in the answer."""
    token: AnswerToken | None = None


def word_of(tokens: Sequence[AnswerToken], start: int, stop: int) -> AnswerWord:
    """Return the word or phrase of some tokens."""
    some = tokens[start:stop]
    maps = [token.map for token in some if token.map is not None]
    measured = [token.evidence for token in some if token.evidence is not None]
    return AnswerWord(
        "".join(token.text for token in some).strip(),
        start,
        stop,
        float(np.prod([token.probability for token in some])),
        np.mean(maps, axis=0, dtype=np.float32) if len(maps) == len(some) else None,
        float(sum(measured)) if len(measured) == len(some) else None,
    )


def words_of(tokens: Sequence[AnswerToken]) -> tuple[AnswerWord, ...]:
    """Group tokens to words: what stands between spaces, without the signs before and behind it,
    which are words of their own. A token with the first bytes of a letter adds no text, and belongs
    to the word of the letter; one of spaces alone belongs to none."""
    runs: list[list[tuple[int, int]]] = []  # for each token that is seen: its first one, its stop
    first, fresh = 0, True
    for number, token in enumerate(tokens):
        text = token.text.strip()
        fresh = fresh or token.text[:1].isspace() or ALONE.search(text) is not None
        if text:
            if fresh:
                runs.append([])
            runs[-1].append((first, number + 1))
            fresh = ALONE.search(text) is not None
        fresh = fresh or token.text[-1:].isspace()
        first = number + 1 if token.text else first
    words: list[AnswerWord] = []
    for run in runs:
        spoken = [each for each in run if any(map(str.isalnum, tokens[each[1] - 1].text))]
        end = run[-1][1]
        begin, stop = (spoken[0][0], spoken[-1][1]) if spoken else (end, end)
        for one, other in ((run[0][0], begin), (begin, stop), (stop, end)):
            if one < other:
                words.append(word_of(tokens, one, other))
    return tuple(words)


def phrase_of(tokens: Sequence[AnswerToken], text: str) -> AnswerWord | None:
    """Return the first words of some tokens that are a text: see `ExplainedAnswer.phrase`."""
    wanted, words = _squeezed(text), words_of(tokens)
    for number, first in enumerate(words):
        found = ""
        for last in words[number:]:
            found += _squeezed(last.text)
            if found == wanted:
                return word_of(tokens, first.start, last.stop)
            if len(found) > len(wanted):
                break
    return None


def _squeezed(text: str) -> str:
    return "".join(text.casefold().split())

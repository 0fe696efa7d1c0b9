"""Answer a question about a photo, and explain each word: which places of the photo say it, and how
much the photo speaks for it.

model = VisionLanguageModel(module, processor)
answer = explain_answer(model, photo, "what is in the picture?")
answer.phrase("red circle").map
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import torch
from torch import Tensor

from cam.answers.answer import (
    READ_OFF,
    Alternative,
    AnswerMethod,
    AnswerOptions,
    AnswerProgress,
    AnswerToken,
    ExplainedAnswer,
    phrase_of,
    word_of,
    words_of,
)
from cam.answers.image_tokens import on_photo
from cam.answers.methods import OWN_PASSES, blurred, eagle, kept_by, likely, log_probabilities
from cam.answers.scores import scores_of
from cam.answers.token_maps import activation, rank_gaussian, without_interference
from cam.answers.vision_language import Asked, Photo, Read, VisionLanguageModel
from cam.counts import counted
from cam.drawing.placement import Float
from cam.errors import InvalidOption
from cam.progress import finish

MAX_BYTES: Final = 4 << 30
"""Largest number of bytes that one answer may take."""


def explain_answer(
    model: VisionLanguageModel, photo: Photo, question: str, options: AnswerOptions | None = None
) -> ExplainedAnswer:
    """Answer a question about a photo and explain the answer: see `answer_in_steps`."""
    return finish(answer_in_steps(model, photo, question, options or AnswerOptions()))


def answer_in_steps(
    model: VisionLanguageModel,
    photo: Photo,
    question: str,
    options: AnswerOptions,
    stop: Callable[[], bool] = lambda: False,
) -> Generator[AnswerProgress, None, ExplainedAnswer]:
    """Answer a question about a photo, and explain each token of the answer. Other passes of the
    model may run between two steps.

    Args:
        photo: RGB uint8 (H, W, 3).
        stop: called after each token; the model's own answer ends if it returns True.

    Yields:
        Each token, with its map if the method needs no pass of its own; then each such pass.

    Raises:
        InvalidImages: if the photo is too small.
        InvalidPrompt: if the question or the answer cannot be read.
        InvalidOption: if an option is not allowed, or if the answer would take too much memory.
        ModelError: if the places of the image tokens cannot be found.
    """
    options.check()
    if options.region is not None and options.region.shape != photo.shape[:2]:
        raise InvalidOption(
            f"the region has {options.region.shape} pixels; the photo has {photo.shape[:2]}"
        )
    with torch.no_grad():
        asked = model.ask(photo, question)
        given = None if options.answer is None else model.tokens_of(asked, options.answer)
        most = len(given) if given is not None else options.max_tokens
        most = min(most, model.longest - asked.length)
        memory = model.bytes_of(asked.length + most, **kept_by(model, options.method))
        if memory > MAX_BYTES:
            raise InvalidOption(
                f"an answer of {counted(most, 'token')} after {asked.length} of photo and question "
                f"would take {memory:,} bytes; at most {MAX_BYTES:,} are allowed: fewer tokens, or "
                "a smaller photo"
            )
    own = OWN_PASSES.get(options.method)
    maps = _TokenMaps(model, asked) if options.method in READ_OFF else None
    tokens: list[AnswerToken] = []
    logs: list[float] = []
    text, ended = _Text(model), False
    steps = _forced(model, asked, given) if given is not None else _greedy(model, asked, most)
    for read, logits, token in steps:
        if token is None:
            ended = True
            break
        with torch.no_grad():
            said, log = _said(text, logits, token, options.alternatives)
            if maps:
                said = replace(said, map=maps.map_of(token, read, options.method))
        tokens.append(said)
        logs.append(log)
        yield AnswerProgress(len(tokens), most, None, len(tokens) - 1, said)
        if given is None and stop():
            break
    if own and tokens:
        found = yield from own(model, asked, [one.id for one in tokens])
        tokens = [replace(one, map=one_map) for one, one_map in zip(tokens, found, strict=True)]
    word = None if options.word is None else phrase_of(tokens, options.word)
    if word and options.method == "eagle":
        some = slice(word.start, word.stop)
        heat = yield from eagle(model, asked, [one.id for one in tokens], some)
        tokens[some] = [replace(one, map=heat) for one in tokens[some]]
    if options.evidence and tokens:
        tokens = _with_evidence(model, asked, tokens, logs)
    answer = ExplainedAnswer(
        question=question.strip(),
        text="".join(token.text for token in tokens).strip(),
        method=options.method,
        tokens=tuple(tokens),
        words=words_of(tokens),
        finished=ended or given is not None,
        given=given is not None,
        prompt_tokens=asked.length,
        image_tokens=len(asked.image),
        memory=memory,
    )
    if word is None or not options.evaluate:
        return answer
    word = word_of(tokens, word.start, word.stop)
    ids = [token.id for token in tokens]
    scores = yield from scores_of(model, asked, ids, word, options.region)
    return replace(answer, scores=scores)


def _greedy(
    model: VisionLanguageModel, asked: Asked, most: int
) -> Generator[tuple[Read, Tensor, int | None], None, None]:
    """Yield what was read last, the logits of the next token (V,) and the most probable one; None
    for the token that ends the answer."""
    with torch.no_grad():
        read, past = model.read(asked, use_cache=True, by_prefix=True)
    turns = model.turns
    for number in range(most):
        token = int(read.logits[-1].argmax())
        yield read, read.logits[-1], None if token in model.ends else token
        if number + 1 < most:
            with torch.no_grad():
                model.turns = turns
                read, past = model.read_on(token, past)


def _forced(
    model: VisionLanguageModel, asked: Asked, tokens: Sequence[int]
) -> Generator[tuple[Read, Tensor, int | None], None, None]:
    """Yield the same of given tokens, which are read in one pass."""
    with torch.no_grad():
        read, _ = model.read(asked, tokens, by_prefix=True)
    for number, token in enumerate(tokens):
        stop = asked.length + number
        first = 0 if number == 0 else stop - 1
        part = Read(read.hidden[first:stop], read.logits[number : number + 1])
        yield part, read.logits[number], token


class _TokenMaps:
    """The maps of an answer's tokens from the hidden states of the passes that were made anyway."""

    def __init__(self, model: VisionLanguageModel, asked: Asked) -> None:
        self._model, self._asked = model, asked
        self._heard: dict[int, tuple[Float, Float]] = {}
        """Token → its output embedding (D,), and its activation at the image tokens (N,)."""
        self._image: Float | None = None
        self._words: list[tuple[int, Float]] = []
        """The text before the next token: each token of the question with its last hidden state
        (D,), and each of the answer with the state that it was said from, as the authors' code
        does."""

    def map_of(self, token: int, read: Read, method: AnswerMethod) -> Float:
        """Return the map of the next token, float32 (h, w).

        Args:
            read: what was read since the last token: the question, then one token at a time.
        """
        asked = self._asked
        hidden = read.hidden
        if self._image is None:
            ids = asked.inputs["input_ids"][0]
            self._image = _numpy(hidden[asked.image])
            self._words = [
                (int(ids[place]), _numpy(hidden[place])) for place in asked.words.tolist()
            ]
        row, own = self._of(token)
        if method == "tam":
            others = [(word, state) for word, state in self._words if word != token]
            own = without_interference(
                own,
                [self._of(word)[1] for word, _ in others],
                [max(float(state @ row), 0.0) for _, state in others],
            )
            smooth = np.zeros_like(own)
            for tile in asked.tiles:
                smooth[tile.tokens] = rank_gaussian(own[tile.tokens])
            own = smooth
            self._words.append((token, _numpy(hidden[-1])))
        return on_photo(own, asked.tiles)

    def _of(self, token: int) -> tuple[Float, Float]:
        if token not in self._heard:
            assert self._image is not None  # the question has been read
            row = _numpy(self._model.head.weight[token])
            self._heard[token] = row, activation(self._image, row)
        return self._heard[token]


def _numpy(values: Tensor) -> Float:
    found: Float = values.detach().float().cpu().numpy()
    return found


class _Text:
    """What each token adds to the text of an answer."""

    def __init__(self, model: VisionLanguageModel) -> None:
        self._model = model
        self._ids: list[int] = []
        self._text = ""

    def added(self, token: int) -> str:
        """Return what a token adds, and append it."""
        new = self.with_token(token)
        self._ids.append(token)
        self._text += new
        return new

    def with_token(self, token: int) -> str:
        """Return what a token would add."""
        whole = self._model.tokenizer.decode(
            [*self._ids, token], skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        # The bytes of a letter may be spread over several tokens: the last one adds the letter, and
        # the space before it, so that all of them belong to one word.
        if whole.endswith("\ufffd"):
            whole = whole.rstrip("\ufffd ")
        return str(whole[len(self._text) :])


def _said(text: _Text, logits: Tensor, token: int, alternatives: int) -> tuple[AnswerToken, float]:
    """Return a token, and its log-probability."""
    logs = log_probabilities(logits, [token])
    probabilities = logits.softmax(-1)
    best = probabilities.topk(min(alternatives, len(probabilities)))
    others = tuple(
        Alternative(text.with_token(int(index)), float(value))
        for value, index in zip(best.values, best.indices, strict=True)
    )
    said = AnswerToken(token, text.added(token), float(probabilities[token]), others)
    return said, float(logs[0])


def _with_evidence(
    model: VisionLanguageModel, asked: Asked, tokens: list[AnswerToken], logs: Sequence[float]
) -> list[AnswerToken]:
    """Return the tokens with the evidence of the photo, by one pass of the blurred photo.

    Args:
        logs: the tokens' log-probabilities.
    """
    blind = model.with_photo(asked, blurred(asked.photo), kept=True)
    without = likely(model, blind, [token.id for token in tokens])
    return [
        replace(token, evidence=log - float(other))
        for token, log, other in zip(tokens, logs, without, strict=True)
    ]

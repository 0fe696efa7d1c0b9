"""Answer a question about a photo, and explain each word: which places of the photo say it, and how
much the photo speaks for it.

model = VisionLanguageModel(module, processor)
answer = explain_answer(model, photo, "what is in the picture?")
answer.phrase("red circle").map
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from cam.answers.answer import (
    Alternative,
    AnswerOptions,
    AnswerProgress,
    AnswerToken,
    ExplainedAnswer,
    phrase_of,
    word_of,
    words_of,
)
from cam.answers.methods import METHODS
from cam.answers.passes import blurred, likely, log_probabilities, number_of
from cam.answers.scores import scores_of
from cam.answers.vision_language import Asked, Photo, Read, VisionLanguageModel
from cam.counts import counted
from cam.drawing.placement import Float
from cam.errors import InvalidOption, MethodUnsuited
from cam.methods.method import load
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
        MethodUnsuited: if the function of an added method returns something else than maps.
    """
    options.check()
    method = METHODS[options.method]
    function = load(method.function)
    if options.region is not None and options.region.shape != photo.shape[:2]:
        raise InvalidOption(
            f"the region has {options.region.shape} pixels; the photo has {photo.shape[:2]}"
        )
    with torch.no_grad():
        asked = model.ask(photo, question)
        given = None if options.answer is None else model.tokens_of(asked, options.answer)
        most = len(given) if given is not None else options.max_tokens
        most = min(most, model.longest - asked.length)
        memory = model.bytes_of(
            asked.length + most,
            graded=number_of(model, method.graded),
            attended=number_of(model, method.attended),
        )
        if memory > MAX_BYTES:
            raise InvalidOption(
                f"an answer of {counted(most, 'token')} after {asked.length} of photo and question "
                f"would take {memory:,} bytes; at most {MAX_BYTES:,} are allowed: fewer tokens, or "
                "a smaller photo"
            )
    map_of = function(model, asked) if method.of == "token" else None
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
            if map_of:
                (one_map,) = _required(options.method, [map_of(token, read)], 1)
                said = replace(said, map=one_map)
        tokens.append(said)
        logs.append(log)
        yield AnswerProgress(len(tokens), most, None, len(tokens) - 1, said)
        if given is None and stop():
            break
    ids = [token.id for token in tokens]
    if method.of == "answer" and tokens:
        found = _required(options.method, (yield from function(model, asked, ids)), len(ids))
        tokens = [replace(one, map=one_map) for one, one_map in zip(tokens, found, strict=True)]
    word = None if options.word is None else phrase_of(tokens, options.word)
    if word and method.of == "word":
        some = slice(word.start, word.stop)
        heat = yield from function(model, asked, ids, some)
        (heat,) = _required(options.method, [heat], 1)
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
    scores = yield from scores_of(model, asked, ids, word, options.region)
    return replace(answer, scores=scores)


def _required(method: str, maps: Any, count: int) -> list[Float]:
    """Return the maps that the function of a method has made.

    Raises:
        MethodUnsuited: if they are not so many arrays (h, w) of one shape.
    """
    made = list(maps) if np.iterable(maps) else [maps]
    shapes = dict.fromkeys(map(np.shape, made))
    if len(made) != count or [len(shape) for shape in shapes] != [2]:
        raise MethodUnsuited(
            f"the function of {method!r} returned {counted(len(made), 'map')} of the shapes "
            f"{', '.join(map(str, shapes)) or '()'}; it must return {counted(count, 'map')} (h, w)"
        )
    return made


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

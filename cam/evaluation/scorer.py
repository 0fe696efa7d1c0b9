"""The `Scorer`, which runs the model on changed versions of one image."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cam.drawing.heatmap import minmax
from cam.errors import CamError, NothingDetected, TargetMismatch
from cam.evaluation.metrics import MetricOptions
from cam.explanation import ExplainedImage, Explanation, Map, Question
from cam.outputs.reading import AUTO, Reading
from cam.passes.stepwise import explain_in_steps
from cam.progress import Completeness
from cam.targets import Target

Answering = Callable[[Tensor, Sequence[Question]], Sequence[ExplainedImage | CamError]]
"""Answers one question for each image (n, C, H, W), as `cam.explain_batch` does."""
Value = TypeVar("Value")
Forwards = Generator[int, None, Value]
"""Work that yields after some forward passes, and says how many images they had."""
Again = Callable[[Tensor, Sequence[Target]], Forwards[list[Map | CamError]]]
"""Makes the maps of changed images (n, C, H, W), with a target for each."""
OUTPUT: Final = Question((), "gradcam", ())
"""A question for the model's output alone."""


@dataclass(frozen=True, eq=False)
class Judged:
    """A map that is scored: the one that was asked about, or a baseline."""

    small: Map
    """The map as it was made, float32 (h, w)."""
    values: Map
    """The map at the size of the model's input, float32 (H, W)."""
    again: Again | None
    """Makes the map anew for changed images; None if the way in which it was made is not known."""
    completeness: Completeness | None = None

    @property
    def scaled(self) -> Map:
        """The map scaled to 0 … 1 by its minimum and maximum, (H, W)."""
        if float(np.ptp(self.values)) == 0 and self.values.flat[0] > 0:
            return np.ones_like(self.values)  # the same heat everywhere covers the whole image
        return minmax(self.values)


@dataclass(frozen=True, eq=False)
class Scorer:
    """The model, one image and one target, for which it gives probabilities and maps."""

    model: nn.Module
    image: Tensor
    """float (C, H, W), preprocessed, on the model's device and in its dtype."""
    target: Target
    """A resolved target that has a probability."""
    whole: float
    """Probability of the target for the image as it is."""
    answer: Answering
    options: MetricOptions
    chunk: int
    """Maximum number of images in one forward pass."""
    reading: Reading = AUTO
    pixels: NDArray[np.uint8] | None = None
    """The image before preprocessing, RGB (H, W, 3), if it is known."""
    normalise: Callable[[NDArray[np.uint8]], Tensor] | None = None
    """Preprocesses pixels (n, H, W, 3) to (n, C, H, W)."""
    known: dict[Any, Any] = field(default_factory=dict)
    """What several metrics use and is computed once."""

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the image."""
        return int(self.image.shape[-2]), int(self.image.shape[-1])

    def rng(self) -> np.random.Generator:
        """Return a new generator of random numbers from the seed."""
        return np.random.default_rng(self.options.seed)

    def ranks(self, judged: Judged) -> Tensor:
        """Return the rank of each of a map's values, (H, W), which all curves of the map share."""
        key = ("ranks", id(judged))
        if key not in self.known:
            ranked = torch.from_numpy(ranks(judged.values, self.rng()))
            self.known[key] = ranked.to(self.image.device)
        known: Tensor = self.known[key]
        return known

    def probabilities(self, count: int, make: Callable[[slice], Tensor]) -> Forwards[list[float]]:
        """Return the target's probability for `count` images.

        Args:
            make: returns some of the images, (n, C, H, W), when their turn comes.

        Raises:
            CamError: if the model's output for one of them is not finite.
        """
        probabilities: list[float] = []
        for start in range(0, count, self.chunk):
            images = make(slice(start, min(start + self.chunk, count))).to(self.image)
            for answer in self.answer(images, [OUTPUT] * len(images)):
                if isinstance(answer, CamError):
                    raise answer
                likely = self.target.probability(answer.output)
                if likely is None:
                    raise TargetMismatch("the target has no probability in a changed image")
                probabilities.append(likely)
            yield len(images)
        return probabilities

    def remembered(self, key: Any, work: Callable[[], Forwards[Value]]) -> Forwards[Value]:
        """Return the result of `work`, which is done only for the first caller of this key."""
        if key not in self.known:
            self.known[key] = yield from work()
        value: Value = self.known[key]
        return value

    def maps(
        self, question: Question, turn: int, images: Tensor, targets: Sequence[Target]
    ) -> Forwards[list[Map | CamError]]:
        """Return the map of each of the images (n, C, H, W), made as `question` says.

        Args:
            turn: index of the layer among the question's explanations of one target.
        """
        maps: list[Map | CamError] = []
        asked = [replace(question, targets=(target,)) for target in targets]
        if question.in_steps:
            for image, query in zip(images, asked, strict=True):
                steps = explain_in_steps(
                    self.model, image, query, chunk=self.chunk, reading=self.reading
                )
                done = 0
                while True:
                    try:
                        progress = next(steps)
                    except StopIteration as stop:
                        maps.append(_map_of(stop.value, turn))
                        break
                    yield progress.done - done
                    done = progress.done
            return maps
        for start in range(0, len(images), self.chunk):
            some = images[start : start + self.chunk]
            answers = self.answer(some, asked[start : start + self.chunk])
            maps += [_map_of(answer, turn) for answer in answers]
            yield len(some)
        return maps


def ranks(values: Map, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the rank of each value, from 0 for the greatest; equal values are in random order.

    Without the random order, the zeros of a rectified map would be taken row by row.
    """
    flat = values.ravel()
    order = np.lexsort((rng.permutation(flat.size), -flat.astype(np.float64)))
    places = np.empty(flat.size, np.int64)
    places[order] = np.arange(flat.size)
    return places.reshape(values.shape)


def _map_of(answer: ExplainedImage | CamError, turn: int) -> Map | CamError:
    if isinstance(answer, CamError):
        return answer
    explanations: tuple[Explanation, ...] = answer.explanations
    if turn >= len(explanations):
        return NothingDetected("the changed image does not show the target")
    return explanations[turn].map

"""Targets computed from a layer's output: a unit's value, and the similarity to another image or
to a text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
from numpy.typing import NDArray

from cam.errors import ChannelOutOfRange

if TYPE_CHECKING:
    from torch import Tensor

    from cam.outputs.output import Output

LEAST_NORM = 1e-8
"""Least norm of an embedding, as in torch.nn.functional.cosine_similarity."""
FLAT: Final = 0.75
"""Entropy of the weights of a mixture of classes, as a share of that of even weights, above which a
text names none of the classes."""
NAMES_NOTHING: Final = (
    "{text!r} names nothing that the model knows: it is as near to many classes, so the map is "
    "that of whatever the photo shows"
)


@dataclass(frozen=True)
class UnitTarget:
    """A target that explains what drives a unit: y is channel `channel` of the layer's output,
    averaged over the positions if the output has positions."""

    layer: str
    channel: int
    against: bool = False
    """Whether to explain −y instead of y."""

    index: None = field(default=None, init=False, repr=False)
    """Always None: a unit is not a class."""

    @property
    def layers(self) -> tuple[str, ...]:
        return (self.layer,)

    def resolve(self, output: Output) -> UnitTarget:
        """Return the target after checking its channel.

        Raises:
            ChannelOutOfRange: if the layer has no such channel. The message gives the range.
        """
        channels = self._channels(output.layers[self.layer])
        if not 0 <= self.channel < channels:
            raise ChannelOutOfRange(
                f"channel {self.channel} is out of range; layer {self.layer!r} has channels 0 to "
                f"{channels - 1}"
            )
        return self

    def score(self, output: Output) -> Tensor:
        values = output.layers[self.layer]
        unit = values[:, self.channel] if values.ndim == 2 else values[self.channel]
        score = unit.float().mean()
        return -score if self.against else score

    def probability(self, output: Output) -> None:
        return None

    @staticmethod
    def _channels(values: Tensor) -> int:
        """Return the number of channels. They are the last dimension of tokens (N, D) and the first
        dimension of vectors and feature maps."""
        return int(values.shape[1] if values.ndim == 2 else values.shape[0])


@dataclass(frozen=True, eq=False)
class SimilarityTarget:
    """A target that explains what makes an image similar to another: y is the cosine of the angle
    between their embeddings, which are the outputs of `layer`, averaged over the positions if the
    output has positions."""

    layer: str
    embedding: NDArray[np.float32]
    """Embedding of the other image, (D,): see `cam.embed`."""
    against: bool = False
    """Whether to explain −y instead of y."""

    index: None = field(default=None, init=False, repr=False)
    """Always None: a similarity is not a class."""

    @property
    def layers(self) -> tuple[str, ...]:
        return (self.layer,)

    def resolve(self, output: Output) -> SimilarityTarget:
        return self

    def score(self, output: Output) -> Tensor:
        mine = embedding_of(output.layers[self.layer])
        other = mine.new_tensor(self.embedding)
        norms = [vector.norm().clamp(min=LEAST_NORM) for vector in (mine, other)]
        score: Tensor = (mine * other).sum() / (norms[0] * norms[1])
        return -score if self.against else score

    def probability(self, output: Output) -> None:
        return None


@dataclass(frozen=True)
class TextTarget:
    """A target that explains what in an image fits a text: y is the logit that the text would have
    as a class of a model that takes prompts. `minus` makes it a contrast, y minus the logit of that
    other text.

    Such a model makes it: see `cam.PromptClassifier.text_target`.
    """

    text: str
    layer: str
    """The layer whose output the logit is computed from, one vector v for each image."""
    weights: NDArray[np.float32] = field(compare=False, repr=False)
    """One row for the text; in a contrast, one for the other text; and one for the text without
    each of `words`: w (D,)."""
    form: Literal["cosine", "mixture"]
    """How a logit follows from v: w · v / |v| + `bias`, or log Σ_c exp(v_c + w_c)."""
    bias: float = 0.0
    minus: str | None = None
    against: bool = False
    """Whether to explain −y instead of y."""
    words: tuple[str, ...] = ()
    """The words of the text, if their importance is asked for."""

    index: None = field(default=None, init=False, repr=False)
    """Always None: a text is not a class."""

    @property
    def layers(self) -> tuple[str, ...]:
        return (self.layer,)

    def resolve(self, output: Output) -> TextTarget:
        return self

    def score(self, output: Output) -> Tensor:
        logits = self._logits(output)
        score: Tensor = logits[0] if self.minus is None else logits[0] - logits[1]
        return -score if self.against else score

    def importances(self, output: Output) -> tuple[float, ...]:
        """Return the importance of each of `words`: y minus the y of the text without that word
        (leave one out)."""
        if not self.words:
            return ()
        logits = self._logits(output)
        falls = logits[0] - logits[-len(self.words) :]
        return tuple((-falls if self.against else falls).tolist())

    def _logits(self, output: Output) -> Tensor:
        vector = embedding_of(output.layers[self.layer])
        rows = vector.new_tensor(self.weights)
        logits: Tensor
        if self.form == "cosine":
            logits = rows @ (vector / vector.norm().clamp(min=LEAST_NORM)) + self.bias
        else:
            logits = (rows + vector).logsumexp(1)
        return logits

    def probability(self, output: Output) -> None:
        return None

    @property
    def doubts(self) -> tuple[str, ...]:
        """Warnings about the texts: those that are like no class of a mixture in particular."""
        if self.form != "mixture":
            return ()
        texts = (self.text,) if self.minus is None else (self.text, self.minus)
        return doubts_of(texts, self.weights)


def doubts_of(texts: Sequence[str], log_weights: NDArray[np.float32]) -> tuple[str, ...]:
    """Return a warning about each text that names none of the classes of a mixture.

    Args:
        log_weights: of the classes, a row for each text, and perhaps more rows, float32 (T, C).
    """
    return tuple(
        NAMES_NOTHING.format(text=text)
        for text, row in zip(texts, log_weights, strict=False)
        if _is_flat(row)
    )


def _is_flat(log_weights: NDArray[np.float32]) -> bool:
    """Return whether the weights of a mixture of classes, float32 (C,), are spread over so many of
    them that the text names none: their entropy is above `FLAT` of that of even weights. Words that
    do not exist have 0.76 to 0.95 of it for ImageNet's 1,000 classes, "something to drink from"
    0.53, and "nature", which no class is, 0.88."""
    weights = np.exp(log_weights.astype(np.float64))
    entropy = -float(weights @ log_weights.astype(np.float64))
    return entropy > FLAT * math.log(len(weights))


def embedding_of(values: Tensor) -> Tensor:
    """Return a layer's output for one image as one float32 vector. Feature maps (K, h, w) and
    tokens (N, D) are averaged over the positions; a vector (D,) is unchanged."""
    values = values.float()
    if values.ndim == 3:
        return values.mean(dim=(1, 2))
    return values.mean(dim=0) if values.ndim == 2 else values.flatten()

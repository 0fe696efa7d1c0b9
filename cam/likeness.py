"""Targets made of a layer's output: what drives a unit, what makes an image like another."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor
from torch.nn.functional import cosine_similarity

from cam.errors import ChannelOutOfRange
from cam.outputs.output import Output


@dataclass(frozen=True)
class UnitTarget:
    """What drives a unit: y is channel `channel` of the layer's output, its mean over positions
    where it has any."""

    layer: str
    channel: int
    against: bool = False

    index: None = field(default=None, init=False, repr=False)
    """It is no class."""

    @property
    def layers(self) -> tuple[str, ...]:
        return (self.layer,)

    def resolve(self, output: Output) -> UnitTarget:
        """
        Raises:
            ChannelOutOfRange: naming how many there are.
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
        """Tokens (N, D) have their channels last, vectors and feature maps first."""
        return int(values.shape[1] if values.ndim == 2 else values.shape[0])


@dataclass(frozen=True, eq=False)
class SimilarityTarget:
    """What makes an image like another: y is the cosine of the angle between their embeddings, the
    outputs of `layer`, averaged over positions where it has any."""

    layer: str
    embedding: Tensor
    """The other image's: see `embedding_of`."""
    against: bool = False

    index: None = field(default=None, init=False, repr=False)

    @property
    def layers(self) -> tuple[str, ...]:
        return (self.layer,)

    def resolve(self, output: Output) -> SimilarityTarget:
        return self

    def score(self, output: Output) -> Tensor:
        mine = embedding_of(output.layers[self.layer])
        score = cosine_similarity(mine, self.embedding.to(mine), dim=0)
        return -score if self.against else score

    def probability(self, output: Output) -> None:
        return None


def embedding_of(values: Tensor) -> Tensor:
    """A layer's output for one image as one vector, float32: feature maps (K, h, w) and tokens
    (N, D) averaged over positions, a vector (D,) as it is."""
    values = values.float()
    if values.ndim == 3:
        return values.mean(dim=(1, 2))
    return values.mean(dim=0) if values.ndim == 2 else values.flatten()

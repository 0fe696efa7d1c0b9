"""What several runtimes need: batches of the sizes that are compiled, and answers from a graph that
begins at a leaf in the place of a layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cam.explanation import Question
from cam.outputs.outputs import outputs_of_logits, size_of
from cam.outputs.reading import Reading
from cam.passes.batch_answer import BatchAnswer
from cam.passes.onepass import answer
from cam.positions.locate import locate


@torch.inference_mode(False)
def padded(images: Tensor, sizes: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return a batch in `dtype`, channels last, with images of zeros behind it: as many as the next
    of the ascending sizes. It is not an inference tensor: autograd accepts none in a graph."""
    size = next(capacity for capacity in sizes if capacity >= len(images))
    filled = images.to(dtype)
    if size > len(images):
        filled = torch.cat([filled, filled.new_zeros(size - len(images), *images.shape[1:])])
    filled = filled.contiguous(memory_format=torch.channels_last)
    return filled.clone() if filled.is_inference() else filled


class AtLeaf:
    """A layer's activation, and the gradient at a leaf of the graph that stands for the layer, as
    `cam.passes.maps.Signals`."""

    def __init__(self, layer: str, leaf: Tensor, activation: Tensor) -> None:
        self._layer, self._leaf = layer, leaf
        self.activations = self.outputs = {layer: activation}
        self.reached: dict[str, Tensor] = {}

    def backward(self, score: Tensor, *, retain_graph: bool = False) -> None:
        (gradient,) = torch.autograd.grad(
            score, self._leaf, retain_graph=retain_graph, allow_unused=True
        )
        self.reached = {} if gradient is None else {self._layer: gradient}


def answer_at_leaf(
    model: nn.Module,
    signals: AtLeaf,
    questions: Sequence[Question],
    logits: Tensor,
    images: Tensor,
    reading: Reading,
    *,
    count: int,
) -> BatchAnswer:
    """Answer one question or several for each of the first `count` images, from a graph that begins
    at a leaf in the place of a layer.

    Args:
        logits: (B, …), of the graph.
        images: float (B, C, H, W). Those after the first `count` only fill the batch.
        reading: how the model's output is read, with the activation resolved.
    """
    grids = locate(model, images[:1], list(signals.activations)).grids(signals.activations, images)
    outputs = outputs_of_logits(logits, reading, size=size_of(images))[:count]
    return answer(questions, outputs, signals, grids)

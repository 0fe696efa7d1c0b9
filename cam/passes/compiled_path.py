"""What another way than the exact one to compute the maps of a model's layer must do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from cam.explanation import Question
from cam.passes.batch_answer import BatchAnswer


class CompiledPath(Protocol):
    """Another way to compute the maps of a model's layer: see `cam.runtimes`."""

    runtime: str
    """What runs the model."""
    layer: str
    dtype: torch.dtype
    sizes: tuple[int, ...]
    way: str
    """How the path is faster, in words, for the log."""

    def takes(self, question: Question) -> bool:
        """Return whether the path can answer the question: a question of one pass that needs only
        the layer and the logits.

        How well it answers is measured for each method, without `smooth`: the exact path answers
        questions with `smooth`.
        """
        return (
            bool(question.targets)
            and not question.in_steps
            and question.smooth == "none"
            and set(question.layers) == {self.layer}
            and not question.looks_at
        )

    def settle(self, image: Tensor) -> str | None: ...

    def explain(self, images: Tensor, questions: Sequence[Question]) -> BatchAnswer: ...

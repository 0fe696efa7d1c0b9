"""What an audit alone asks of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from cam import Question
from service.backend.work import Pixels, Running, Steps, StepWork
from service.core.pool import Priority

Stage = list[NDArray[np.float32] | None]
"""The maps of one stage of a randomisation, one for each question and layer."""


@dataclass(frozen=True, eq=False)
class Randomise(StepWork[list[Stage]]):
    """Explains one image by the model with more and more random weights, at background priority:
    see `cam.evaluation.randomisation`. The result has the maps of each stage, and None for a map
    that the changed model does not have. Meanwhile the model's own weights answer other
    questions."""

    pixels: Pixels
    questions: Sequence[Question]
    """Questions with one resolved target each."""
    stages: int
    seed: int
    priority: ClassVar[Priority] = "background"
    at_once: ClassVar[int | None] = 1
    """Each holds a second copy of the weights."""

    def steps(self, running: Running) -> Steps[list[Stage]]:
        from cam import explain_batch, randomised_in_steps

        model = running.model
        return (
            yield from randomised_in_steps(
                model.module,
                running.input([self.pixels])[0],
                self.questions,
                stages=self.stages,
                seed=self.seed,
                answer=partial(explain_batch, model.module, reading=model.reading),
                chunk=running.group,
                reading=model.reading,
            )
        )

"""What `:activations` asks of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cam import Concept, Observation, Target
from service.backend.work import Pixels, Running, Steps, StepWork


@dataclass(frozen=True, eq=False)
class Observe(StepWork[list[Observation]]):
    """Observes layers while the model processes one image."""

    pixels: Pixels
    layers: tuple[str, ...]
    target: Target
    prompts: tuple[str, ...] = ()
    heavy: ClassVar[bool] = True

    def steps(self, running: Running) -> Steps[list[Observation]]:
        from cam import observe

        yield from ()
        images, model = running.input([self.pixels]), running.model
        return observe(model.module, images, self.layers, self.target, reading=model.reading)


@dataclass(frozen=True, eq=False)
class Factorise(StepWork[list[Concept]]):
    """Factorises a layer's activations for one image into `count` concepts."""

    pixels: Pixels
    layer: str
    count: int
    heavy: ClassVar[bool] = True

    def steps(self, running: Running) -> Steps[list[Concept]]:
        from cam import factorise

        yield from ()
        images, model = running.input([self.pixels]), running.model
        return factorise(model.module, images, self.layer, self.count, reading=model.reading)

"""An operation in one file, with work of its own for the process of the models."""

from dataclasses import dataclass

from pydantic import BaseModel, Field

from service.backend.work import Pixels, Running, Steps, StepWork
from service.http.operation import InstanceContext, Operation
from service.pipeline.parameters import PredictParameters


@dataclass(frozen=True, eq=False)
class Largest(StepWork[float]):
    pixels: Pixels

    def steps(self, running: Running) -> Steps[float]:
        yield from ()
        return float(running.model.module(running.input([self.pixels])).max())


class Seen(BaseModel):
    instance: int = Field(examples=[0])
    width: int = Field(examples=[451])
    largest: float = Field(examples=[9.5])


async def measured(context: InstanceContext[PredictParameters]) -> list[Seen]:
    request, instance = context.request, context.instance
    async with context.pipeline.opened(request.replicas, instance, request.timings) as opened:
        photo, seen = await opened.seen()
        outcome = await request.replicas.ask(Largest(seen.pixels))
    return [Seen(instance=instance.index, width=photo.width, largest=outcome.value)]


MEASURE = Operation(
    name="measure", summary="Widths", parameters=PredictParameters, entry=Seen, work=measured
)

"""A photo for whose pixels there is room, and the steps on it: decode → preprocess → engine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from typing import Generic

import numpy as np
from PIL import Image

from cam import Explanation, Question, SimilarityTarget, Target
from cam.reasons.cascade import Cascade, layer_of
from service.backend.interface import Listener, ModelBackend
from service.backend.outcome import Outcome, ServedAnswer
from service.backend.timings import Timings
from service.backend.work import Embed, Explain, ReadText
from service.core.errors import Problem
from service.core.metrics import Metrics
from service.core.pool import Priority
from service.limits.pixel_budget import PhotoPool
from service.models.info import ModelInfo
from service.models.preprocessing import ModelInput
from service.pipeline.images import EncodedPhoto, picture_of
from service.pipeline.instances import Instance, P_co
from service.pipeline.parameters import Parameters, PredictParameters
from service.pipeline.resolve import cheapest, placed, questions_of
from service.pipeline.targets import TargetObject, TargetParameter


@dataclass(frozen=True, kw_only=True, eq=False)
class OpenedPhoto(Generic[P_co]):
    """The photo of an instance, while room for its pixels is held: see `Pipeline.opened`. The
    decoded photo is not kept here."""

    instance: Instance[P_co]
    replicas: ModelBackend
    model: ModelInfo
    """The model as the instance asks it: its prompts are the classes."""
    encoded: EncodedPhoto
    pool: PhotoPool
    """Its threads work on this photo."""
    large: PhotoPool
    """Its threads work on other photos of the request, whose sizes are not known yet."""
    timings: Timings
    metrics: Metrics
    max_pixels: int
    priority: Priority

    @property
    def prompts(self) -> tuple[str, ...]:
        """The texts that are the classes: see `Explain`."""
        parameters = self.instance.parameters
        if not isinstance(parameters, PredictParameters):
            return ()
        return tuple(parameters.prompts or ())

    async def seen(self: OpenedPhoto[PredictParameters]) -> tuple[Image.Image, ModelInput]:
        """Return the decoded photo, and the model's input.

        Raises:
            Problem: if the photo cannot be decoded.
        """

        def work() -> tuple[Image.Image, ModelInput]:
            with self.timings.phase("decode", self.metrics):
                photo = self.encoded.decode()
            with self.timings.phase("preprocess", self.metrics):
                fit = self.instance.parameters.fit
                return photo, self.model.preprocessing.apply(photo, fit)

        try:
            return await self.pool.run(work)
        except Problem as problem:
            raise problem.at(self.instance.pointer) from None

    async def placed(
        self: OpenedPhoto[PredictParameters],
        question: Question,
        sent: TargetParameter | None,
        photo: Image.Image,
        seen: ModelInput,
    ) -> tuple[Target, ...]:
        """Return the question's targets. Boxes and masks are converted to pixels of the model's
        input, and other photos to embeddings.

        Args:
            sent: the targets as the request names them.

        Raises:
            Problem: if a target is not valid.
        """
        every = sent if isinstance(sent, list) else [sent]
        if not any(isinstance(one, TargetObject) for one in every):  # which points at the photo
            return question.targets
        model, limit = self.replicas.model, self.max_pixels
        place = partial(placed, model, question, sent, photo, seen, max_pixels=limit)
        # The sizes of a mask and of another photo are not known yet, so both count as large.
        question, others = await self.large.run(place)
        targets = list(question.targets)

        def look(b64: str) -> ModelInput:
            other = picture_of(b64, "target's like", max_pixels=limit)
            return model.preprocessing.apply(other, self.instance.parameters.fit)

        for turn, other in others.items():  # one by one, so that only one photo is in memory
            if isinstance(other, ReadText):
                targets[turn] = (await self.replicas.ask(other)).value
                continue
            like = await self.large.run(partial(look, other.b64))
            outcome = await self.replicas.ask(Embed(like.pixels, other.layer))
            targets[turn] = SimilarityTarget(other.layer, outcome.value, other.against)
        return tuple(targets)

    async def explained(
        self: OpenedPhoto[Parameters],
        *,
        progress: Listener | None = None,
        until: float | None = None,
        watched: bool = False,
        used: bool = False,
        blank: bool = False,
    ) -> tuple[Image.Image, ModelInput, tuple[Question, ...], ServedAnswer]:
        """Return the decoded photo, the model's input, the questions that the parameters ask, and
        their answer.

        Args:
            progress, until, used: see `Pipeline.explain`.
            watched: see `Explain`.
            blank: whether only the targets and the prediction matter, so any method will do.

        Raises:
            Problem: if this instance cannot be explained.
        """
        parameters = self.instance.parameters
        try:
            questions = questions_of(self.model, parameters)
            if blank:
                questions = cheapest(self.model, questions)
            photo, seen = await self.seen()
            targets = await self.placed(questions[0], parameters.target, photo, seen)
        except Problem as problem:
            raise self.instance.blame(problem) from None
        questions = tuple(replace(each, targets=targets, used=used) for each in questions)
        first = part_of(until, parameters.reasons)
        work = Explain(seen, questions, self.priority, first, watched, self.prompts)
        answer = await self._ask(work, progress)
        if parameters.reasons > 1:
            work = replace(work, until=until, watched=False)
            found = await self._reasons(work, answer, progress)
            answer = replace(answer, explanations=found)
        return photo, seen, questions, answer

    async def _ask(self, work: Explain, progress: Listener | None) -> ServedAnswer:
        outcome: Outcome[ServedAnswer] = await self.replicas.ask(work, progress=progress)
        self.timings.note_outcome(outcome)
        return outcome.value

    async def _reasons(
        self: OpenedPhoto[Parameters],
        work: Explain,
        answer: ServedAnswer,
        progress: Listener | None,
    ) -> tuple[Explanation, ...]:
        """Return the answer's explanations, each followed by its further reasons. To find them, the
        masked pixels of the photo are set to the mean colour: see `cam.reasons`.

        Args:
            work: the work that gave the answer.
        """
        parameters, seen, until = self.instance.parameters, work.seen, work.until
        asked = {question.method: question for question in work.questions}
        blank = np.array(self.replicas.model.preprocessing.blank, np.uint8)
        height, width = seen.pixels.shape[:2]
        found: list[Explanation] = []
        for turn, explanation in enumerate(answer.explanations):
            question = replace(asked[explanation.method], targets=(explanation.target,))
            if name := layer_of(explanation, question.fuse):
                question = replace(question, layers=(name,))
            cascade = Cascade((height, width), parameters.reasons, parameters.threshold)
            cascade.add(explanation)
            while cascade.open:
                pixels = np.where(cascade.masked[..., None], blank, seen.pixels)
                left = (len(answer.explanations) - turn) * parameters.reasons
                further = replace(
                    work,
                    seen=ModelInput.of(pixels, seen.box, seen.fit),
                    questions=(question,),
                    until=part_of(until, left - len(cascade.reasons)),
                )
                (next_one,) = (await self._ask(further, progress)).explanations
                cascade.add(replace(next_one, turn=explanation.turn))
            found += cascade.reasons
        return tuple(found)


def part_of(until: float | None, parts: int) -> float | None:
    """Divide the time that is left into equal parts, and return the end of the first one. A map has
    to be ready by then if work such as scoring follows."""
    now = monotonic()
    return None if until is None else now + (until - now) / parts

"""The result of one image, as JSON or as a picture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from PIL import Image

from cam.evaluation.metrics import MetricOptions, Scores
from service.backend.outcome import ServedAnswer
from service.backend.timings import Timings
from service.core import schemas
from service.core.errors import InvalidParameter, NotAcceptable
from service.core.metrics import Metrics
from service.limits.pixel_budget import PhotoPool
from service.models.info import ModelInfo
from service.models.preprocessing import ModelInput
from service.pipeline.evaluation import describe_scores
from service.pipeline.instances import Instance
from service.pipeline.json_records import caption_of, predict
from service.pipeline.parameters import Parameters
from service.pipeline.record import MapRecord, record_of
from service.pipeline.rendering import Drawing, draw, encode_values

NPY: Final = "application/x-npy"
MOST_NUMBERS: Final = 4_000_000
"""Maximum count of numbers in one JSON answer: a map of a photo in full HD has two million."""
JSON_BYTES: Final = 20
"""Bytes of memory for each number of a JSON answer, until it has been sent."""
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class AnswerBudget:
    """What the numbers of the maps in one answer may take. They are counted before they are made.

    Args:
        images: number of images in the answer; each has an equal share.
        hold: is called with bytes that the answer takes in addition. It raises `Overloaded` if the
            service has no memory for them.
        most: maximum count of numbers; None: `MOST_NUMBERS`.
        bytes_each: bytes of memory for each number, until it has been sent.
        always: whether maps are sent as numbers whatever `output` and `normalize` are.
        otherwise: what else a caller may do, for the error's sentence.
    """

    images: int = 1
    hold: Callable[[int], None] = lambda size: None
    most: int | None = None
    bytes_each: int = JSON_BYTES
    always: bool = False
    otherwise: str = "another output than values"

    def check(self, instance: Instance[Parameters], numbers: int) -> None:
        """Check that the maps of one image are not too large, if they are sent as numbers.

        Args:
            numbers: number of numbers that the maps have together.

        Raises:
            InvalidParameter: if they have more numbers than the image's share of the answer.
        """
        share = (self.most or MOST_NUMBERS) // self.images
        if self._has_numbers(instance) and numbers > share:
            problem = InvalidParameter(
                f"with size={instance.parameters.size}, the maps of an image have {numbers} "
                f"numbers, and this answer may have {share} for each image; take size=model or "
                f"size=layer, {self.otherwise}, fewer maps or fewer images"
            )
            where = instance.origins.get("size")
            raise problem.at(where) if where else problem

    def take(self, instance: Instance[Parameters], numbers: int) -> None:
        """Check the maps of one image, and count their memory if they are sent as numbers.

        Raises:
            InvalidParameter: if they have more numbers than the image's share of the answer.
            Overloaded: if the service has no memory for them.
        """
        self.check(instance, numbers)
        if self._has_numbers(instance):
            self.hold(numbers * self.bytes_each)

    def _has_numbers(self, instance: Instance[Parameters]) -> bool:
        asked = instance.parameters
        return self.always or asked.output == "values" or asked.normalize == "none"


@dataclass(frozen=True, eq=False)
class ImageResult:
    """The maps of one image, with its photo.

    Use it only within the block of `Pipeline.explain`, which keeps the photo's share of the pixel
    budget. The maps are drawn in the threads that decoded the photo.
    """

    instance: Instance[Parameters]
    model: ModelInfo
    photo: Image.Image
    """The decoded photo, RGB and upright."""
    seen: ModelInput
    answer: ServedAnswer
    scores: tuple[Scores, ...]
    """Scores of each of the answer's maps; empty if the parameters name no metrics."""
    decoder_warnings: tuple[str, ...]
    pool: PhotoPool
    timings: Timings
    metrics: Metrics

    @property
    def numbers(self) -> int:
        """Number of numbers that the maps have together, on the pixels that `size` asks for."""
        maps, size = self.answer.explanations, self.instance.parameters.size
        if size == "layer":
            return sum(explanation.map.size for explanation in maps)
        height, width = self.seen.pixels.shape[:2]
        pixels = self.photo.width * self.photo.height if size == "image" else height * width
        return pixels * len(maps)

    async def as_json(self) -> list[schemas.Explanation]:
        """Return the JSON schema objects of the explanations."""
        return await self.each(lambda record, drawing: record.as_json(drawing))

    def prediction(self) -> schemas.Prediction:
        """Return the JSON schema object of the model's prediction for the image."""
        return predict(self.answer, self.model, self.seen, self.instance)

    async def as_picture(self, media_type: str) -> bytes:
        """Return the only map as a picture, or as a NumPy file (`NPY`).

        Raises:
            NotAcceptable: if there is not exactly one map, or the format cannot hold the picture.
        """
        count = len(self.answer.explanations)
        if count != 1:  # a detector's answer has one map for each box
            raise NotAcceptable(
                f"{media_type} holds exactly one map, and the answer has {count}; ask "
                "for application/json or application/x-ndjson"
            )

        def work(drawing: Drawing, record: object) -> bytes:
            if media_type != NPY:
                return drawing.encoded(media_type)
            return encode_values(drawing.numbers)

        (file,) = await self._drawn(work)
        return file

    async def each(self, work: Callable[[MapRecord, Drawing], T]) -> list[T]:
        """Return the results of `work`, which may block, on each map's record and drawing. One
        drawing is held at a time."""
        return await self._drawn(lambda drawing, record: work(record(), drawing))

    async def _drawn(self, work: Callable[[Drawing, Callable[[], MapRecord]], T]) -> list[T]:
        """Do the same, with a function that makes the record: a picture needs none, and measuring
        the map at the photo's size is a third of the work."""
        with self.timings.phase("render", self.metrics):
            # Maps are drawn one by one, so that a cancelled request stops between two maps.
            return [
                await self.pool.run(partial(self._one, work, number))
                for number in range(len(self.answer.explanations))
            ]

    def _one(self, work: Callable[[Drawing, Callable[[], MapRecord]], T], number: int) -> T:
        explanation, instance = self.answer.explanations[number], self.instance
        scores = None
        if self.scores:
            scores = describe_scores(
                self.scores[number], MetricOptions(), self.model.audited, self.seen.fit
            )
        caption = partial(caption_of, explanation, self.model, self.seen, scores)
        drawing = draw(
            self.photo, self.seen, explanation, number, instance.parameters, caption=caption
        )
        record = partial(
            record_of,
            drawing,
            self.answer,
            self.model,
            self.seen,
            instance,
            scores,
            self.photo.size,
        )
        return work(drawing, record)

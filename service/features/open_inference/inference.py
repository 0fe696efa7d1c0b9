"""One inference: named tensors and parameters in, named tensors out, whichever door they use.

The input `image` is BYTES [N], encoded photos, or UINT8 [N, H, W, 3], their pixels. Of N images,
K best classes and T maps, the outputs are

- `probabilities` FP32 [N, K] and `labels` BYTES [N, K], best first: of a detector the scores of its
  boxes, of a segmenter the shares of pixels, of a regression its values;
- `heatmap` FP32 [N, T, H, W], the numbers that `:explain` answers as `application/x-npy`;
- `overlay` BYTES [N, T], PNG;
- `explanation` BYTES [N, T], the JSON of `:explain` without its picture.

A model that answers questions takes the input `question` BYTES [N] beside the image, and has the
outputs of `service.features.open_inference.answering`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final

import numpy as np
from anyio import to_thread
from numpy.typing import NDArray
from PIL import Image
from starlette.datastructures import ImmutableMultiDict

from cam.counts import counted
from service.backend.interface import Backend
from service.core import schemas
from service.core.errors import (
    InvalidParameter,
    MalformedRequest,
    Problem,
    TooManyInstances,
    UnknownModel,
)
from service.core.json_text import read_json
from service.core.schemas import dump
from service.features.answers.parameters import AnswerParameters
from service.features.open_inference.answering import ANSWERS, answer_questions
from service.features.open_inference.tensors import Tensor
from service.http.reception import Reception, RequestContext
from service.http.responses import together
from service.limits.admission import AdmittedRequest
from service.pipeline.images import decode_base64
from service.pipeline.instances import Instance, P
from service.pipeline.parameters import Parameters
from service.pipeline.pipeline import Pipeline
from service.pipeline.record import MapRecord
from service.pipeline.rendering import Drawing
from service.pipeline.result import AnswerBudget
from service.pipeline.targets import MAX_MAPS
from service.pipeline.validation import read_parameters

VERSION: Final = "1"
"""A model has one version."""
IMAGE = "image"
OUTPUTS: Final[Mapping[str, tuple[str, tuple[int, ...]]]] = {
    "probabilities": ("FP32", (-1, -1)),
    "labels": ("BYTES", (-1, -1)),
    "heatmap": ("FP32", (-1, -1, -1, -1)),
    "overlay": ("BYTES", (-1, -1)),
    "explanation": ("BYTES", (-1, -1)),
}
"""Name of an output → its datatype and shape."""
EVERY: Final = frozenset({*OUTPUTS, *ANSWERS})
"""The outputs of all models."""
DATA_TYPES: Final = {"BYTES": "TYPE_STRING"}
"""Datatype → its name in a configuration, where that is not `TYPE_` and the datatype."""
DEFAULT: Final = ("probabilities", "labels", "heatmap")
"""The outputs of a request that names none, of a model that explains."""
OF_MAPS: Final = frozenset({"heatmap", "overlay", "explanation"})
MOST_RAW_NUMBERS: Final = 16_000_000
"""Maximum count of numbers in the heatmaps of an answer in raw bytes."""
RAW_BYTES: Final = 12
"""Bytes of memory for each of them: the map, all maps in one array, and the message."""
TRANSPORT: Final = frozenset(
    {"binary_data_output", "content_type", "headers", "priority", "timeout", "explain_parameters"}
    | {"sequence_id", "sequence_start", "sequence_end", "triton_enable_empty_final_response"}
)
"""Parameters of the protocol and its clients that do not belong to an explanation."""


@dataclass(frozen=True, eq=False)
class InferRequest:
    """What a request asks, read from JSON or a message."""

    model: str
    version: str
    id: str
    parameters: Mapping[str, Any]
    inputs: Sequence[Tensor]
    outputs: Sequence[str]
    binary: frozenset[str]
    """The outputs that are sent as raw bytes; the others are sent as JSON."""


@dataclass(frozen=True, eq=False)
class ImageOutputs:
    """The outputs of one image."""

    ranking: list[tuple[float, str]]
    """Value and label of each class, box, segment or value."""
    maps: list[tuple[NDArray[np.float32] | None, bytes, bytes]]
    """Heatmap, overlay and explanation of each map, as far as they are asked for."""


class Inference:
    """Answers inference requests with the pipeline that answers `:predict` and `:explain`."""

    def __init__(self, reception: Reception, pipeline: Pipeline, manager: Backend) -> None:
        self._reception = reception
        self._pipeline = pipeline
        self._manager = manager

    def metadata(self, model: str, version: str = "") -> dict[str, Any]:
        """Return a model's metadata as the protocol's JSON has them.

        Raises:
            UnknownModel: if there is no such model, or no such version of it.
            Unavailable, ModelFailed: if it is not loaded.
        """
        require_version(model, version)
        answers = self._manager.replicas(model).model.answers
        outputs = [
            {"name": name, "datatype": datatype, "shape": list(shape)}
            for name, (datatype, shape) in (ANSWERS if answers else OUTPUTS).items()
        ]
        inputs = (IMAGE, "question") if answers else (IMAGE,)
        return {
            "name": model,
            "versions": [VERSION],
            "platform": "pytorch",
            "inputs": [{"name": name, "datatype": "BYTES", "shape": [-1]} for name in inputs],
            "outputs": outputs,
        }

    def configuration(self, model: str, version: str = "") -> dict[str, Any]:
        """Return a model's configuration as Triton's message ModelConfig has it.

        Raises:
            UnknownModel, Unavailable, ModelFailed: see `metadata`.
        """
        described, replicas = self.metadata(model, version), self._manager.replicas(model)

        def tensors(which: str) -> list[dict[str, Any]]:
            # The first dimension is the number of images, which `max_batch_size` implies.
            return [
                {
                    "name": one["name"],
                    "data_type": DATA_TYPES.get(one["datatype"], f"TYPE_{one['datatype']}"),
                    "dims": one["shape"][1:],
                }
                for one in described[which]
            ]

        group = {
            "name": model,
            "kind": "KIND_CPU" if "cpu" in replicas.devices else "KIND_GPU",
            "count": replicas.copies,
        }
        batching = {"dynamic_batching": {"preferred_batch_size": [replicas.model.max_batch]}}
        return {
            "name": model,
            "platform": described["platform"],
            "max_batch_size": self._reception.max_instances,
            "input": tensors("inputs"),
            "output": tensors("outputs"),
            "instance_group": [group],
            **(batching if replicas.model.max_batch > 1 else {}),
        }

    async def answer(
        self,
        request: InferRequest,
        *,
        seconds: float,
        place: AdmittedRequest | None,
        hold: Callable[[int], None],
        told: dict[str, Any] | None = None,
    ) -> list[Tensor]:
        """Return the outputs that a request asks for.

        Args:
            seconds: seconds that the request may take.
            place: the place that the guard has given to the request.
            hold: counts the memory of the answer, see `RequestContext`.
            told: takes what the log tells of the request.

        Raises:
            Problem: if the request cannot be read or answered, for one of its images at least: the
                protocol has no answer for some images.
        """
        require_version(request.model, request.version)
        answers = self._manager.replicas(request.model).model.answers
        known, usual = (ANSWERS, tuple(ANSWERS)) if answers else (OUTPUTS, DEFAULT)
        names = tuple(dict.fromkeys(request.outputs)) or usual
        for name in names:
            if name not in known:
                raise InvalidParameter(
                    f"there is no output {name[:80]!r}; they are {', '.join(known)}"
                )
        if "timeout" in request.parameters:
            seconds = min(seconds, _seconds(request.parameters["timeout"]))

        def admitted(
            parameters: type[P], beside: str
        ) -> AbstractAsyncContextManager[RequestContext[P]]:
            async def read() -> list[Instance[P]]:
                most = self._reception.max_instances
                return await to_thread.run_sync(read_images, request, parameters, beside, most)

            return self._reception.admitted(
                request.model, read, seconds=seconds, place=place, hold=hold, told=told
            )

        if answers:
            async with admitted(AnswerParameters, "question") as asked:
                return await answer_questions(self._pipeline, asked, names)
        async with admitted(Parameters, "target") as context:
            if sum(instance.parameters.maps for instance in context.instances) > MAX_MAPS:
                raise InvalidParameter(f"the request asks for more than {MAX_MAPS} maps")

            if "overlay" in names and any(
                instance.parameters.output == "values" for instance in context.instances
            ):
                raise InvalidParameter("output is 'values', which is not a picture; leave it out")

            wanted = OF_MAPS.intersection(names)
            budget = _budget(request, len(context.instances), hold) if "heatmap" in names else None

            async def work(instance: Instance[Parameters]) -> ImageOutputs:
                return await self._outputs(context, instance, wanted, budget)

            images = []
            for outputs in await together(work, context.instances):
                if isinstance(outputs, Problem):
                    raise outputs
                images.append(outputs)
            return await to_thread.run_sync(tensors_of, images, names)

    async def _outputs(
        self,
        context: RequestContext[Parameters],
        instance: Instance[Parameters],
        wanted: frozenset[str],
        budget: AnswerBudget | None,
    ) -> ImageOutputs:
        """Return the outputs of one image; without a map, they take a prediction alone."""
        if not wanted:
            said = await self._pipeline.predict(context.replicas, instance, context.timings)
            return ImageOutputs(ranking_of(said), [])

        def draw(record: MapRecord, drawing: Drawing) -> tuple[Any, bytes, bytes]:
            heatmap = None
            if "heatmap" in wanted:
                heatmap = drawing.numbers
            overlay = drawing.encoded("image/png") if "overlay" in wanted else b""
            facts = dump(record.facts) if "explanation" in wanted else b""
            return heatmap, overlay, facts

        async with self._pipeline.explain(
            context.replicas,
            instance,
            timings=context.timings,
            budget=budget,
            until=context.passes_until,
        ) as result:
            maps = await result.each(draw)
            # In JSON a picture is in base64, and stands there and in the body.
            context.hold(3 * sum(len(overlay) + len(facts) for _, overlay, facts in maps))
            return ImageOutputs(ranking_of(result.prediction()), maps)


def read_images(
    request: InferRequest, parameters: type[P], beside: str, most: int
) -> list[Instance[P]]:
    """Read the images of a request with their parameters.

    Args:
        parameters: schema of the parameters.
        beside: name of the parameter that an input may give each image.
        most: maximum number of images.

    Raises:
        Problem: if an input or a parameter is wrong.
    """
    named = {tensor.name: tensor for tensor in request.inputs}
    if len(request.inputs) == 1 and beside not in named:
        named = {IMAGE: request.inputs[0]}  # clients call their only input as they like
    if unknown := [name for name in named if name not in (IMAGE, beside)]:
        raise InvalidParameter(
            f"there is no input {unknown[0][:80]!r}; the inputs are {IMAGE} and {beside}"
        )
    if IMAGE not in named:
        raise MalformedRequest(f"the request has no input {IMAGE!r}")
    tensor = named[IMAGE]
    count = tensor.shape[0] if tensor.shape else 0
    if tensor.numbers is not None and tensor.numbers.ndim == 3:
        count = 1
    if count > most:
        raise TooManyInstances(
            f"the request has {count} images; at most {counted(most, 'is', 'are')} allowed"
        )
    if not count:
        raise MalformedRequest("the input has no image")
    base = _parameters(request.parameters, parameters)
    given = [None] * count
    if beside in named:
        given = _values(named[beside], count, parameters, beside)
    origins = {name: f"/parameters/{name}" for name in base.model_fields_set}
    return [
        Instance(
            index,
            request.id or None,
            image,
            f"/inputs/{IMAGE}/{index}",
            base if value is None else base.model_copy(update={beside: value}),
            origins if value is None else {**origins, beside: f"/inputs/{beside}/{index}"},
        )
        for index, (image, value) in enumerate(zip(_images(tensor), given, strict=True))
    ]


def _images(tensor: Tensor) -> list[bytes]:
    """Return each image as an encoded file: BMP of pixels, which are only copied."""
    if tensor.numbers is None:
        if len(tensor.strings) != tensor.shape[0]:
            raise MalformedRequest(f"the shape of the images is {list(tensor.shape)}, not [N]")
        return [_encoded(one) for one in tensor.strings]
    pixels = tensor.numbers
    if pixels.ndim == 3:
        pixels = pixels[None]
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[3] != 3 or not pixels.size:
        raise InvalidParameter(
            f"the images are {tensor.datatype} of shape {list(tensor.shape)}; send BYTES [N] of "
            "encoded images, or UINT8 [N, H, W, 3] of pixels"
        )
    files = []
    for one in pixels:
        file = BytesIO()
        Image.fromarray(one).save(file, "BMP")
        files.append(file.getvalue())
    return files


def _encoded(sent: bytes) -> bytes:
    """Return an image's bytes. Base64, as in JSON, is decoded. An image file cannot be mistaken for
    base64, because each format has bytes that are not letters of base64."""
    try:
        return decode_base64(sent.decode("ascii"))
    except ValueError:
        return sent


def _values(tensor: Tensor, count: int, parameters: type[P], name: str) -> list[Any]:
    """Return the value of a parameter for each image."""
    values: list[Any] = (
        [one.decode("utf-8", "replace") for one in tensor.strings]
        if tensor.numbers is None
        else tensor.numbers.ravel().tolist()
    )
    if len(values) != count:
        raise MalformedRequest(
            f"{counted(len(values), f'{name} is', f'{name}s are')} given for "
            f"{counted(count, 'image')}"
        )
    return [
        getattr(_of_input(name, index, value, parameters), name)
        for index, value in enumerate(values)
    ]


def _of_input(name: str, index: int, value: Any, parameters: type[P]) -> P:
    """Read the parameter that an input gives an image; a problem points to the input."""
    try:
        return read_parameters(parameters, ImmutableMultiDict({name: value}), "")
    except Problem as problem:
        problem.pointer = f"/inputs/{name}/{index}"
        raise


def _parameters(sent: Mapping[str, Any], parameters: type[P]) -> P:
    """Read the parameters of a request, and those that MLServer's clients nest in it."""
    nested = sent.get("explain_parameters", {})
    if isinstance(nested, str):  # a message has no objects
        nested = read_json(nested, what="explain_parameters")
    if not isinstance(nested, dict):
        raise InvalidParameter("explain_parameters is not an object of parameters")
    own = {name: value for name, value in sent.items() if name not in TRANSPORT}
    return read_parameters(parameters, ImmutableMultiDict({**own, **nested}), "/parameters")


def _budget(request: InferRequest, images: int, hold: Callable[[int], None]) -> AnswerBudget:
    """Return what the heatmaps of a request's answer may take."""
    if "heatmap" in request.binary:
        return AnswerBudget(images, hold, most=MOST_RAW_NUMBERS, bytes_each=RAW_BYTES, always=True)
    otherwise = "binary_data for the output heatmap, or other outputs"
    return AnswerBudget(images, hold, always=True, otherwise=otherwise)


def _seconds(timeout: Any) -> float:
    """Return the seconds of the parameter `timeout`, which is in microseconds."""
    if isinstance(timeout, bool) or not isinstance(timeout, int) or not 0 < timeout < 2**63:
        raise InvalidParameter(
            f"timeout is {str(timeout)[:40]!r}; it is a number of microseconds above 0"
        )
    return timeout / 1e6


def ranking_of(said: schemas.Prediction) -> list[tuple[float, str]]:
    """Return value and label of what a prediction lists, in its order."""
    pairs: list[tuple[float, int, str | None]] = [
        *((one.probability, one.index, one.label) for one in said.classes or ()),
        *((one.share, one.index, one.label) for one in said.segments or ()),
        *((one.score, one.index, one.label) for one in said.detections or ()),
        *((one.value, one.index, one.label) for one in said.values or ()),
    ]
    return [(value, str(index) if label is None else label) for value, index, label in pairs]


def tensors_of(images: Sequence[ImageOutputs], names: Sequence[str]) -> list[Tensor]:
    """Return the named outputs of all images as tensors.

    Raises:
        InvalidParameter: if they differ in number or size, so that no tensor holds them.
    """
    count = len(images)

    def equal(sizes: Sequence[object], what: str, advice: str) -> None:
        if len(set(sizes)) > 1:
            raise InvalidParameter(f"the images have {what} of {set(sizes)}; {advice}"[:390])

    def strings(name: str, rows: Sequence[Sequence[bytes]], *, is_text: bool) -> Tensor:
        flat = [one for row in rows for one in row]
        return Tensor(name, (count, len(rows[0])), strings=flat, is_text=is_text)

    if {"probabilities", "labels"}.intersection(names):
        sizes = [len(image.ranking) for image in images]
        equal(sizes, "numbers of results", "send them in requests of their own")
    if OF_MAPS.intersection(names):
        equal([len(image.maps) for image in images], "numbers of maps", "send them one by one")
    made: dict[str, Tensor] = {}
    for name in names:
        if name == "probabilities":
            values = np.array([[v for v, _ in image.ranking] for image in images], "<f4")
            made[name] = Tensor(name, values.shape, values)
        elif name == "labels":
            rows = [[label.encode() for _, label in image.ranking] for image in images]
            made[name] = strings(name, rows, is_text=True)
        elif name == "heatmap":
            maps = [one for image in images for one, _, _ in image.maps if one is not None]
            equal([one.shape for one in maps], "maps", "take size=model, or send them one by one")
            stacked = (
                np.stack(maps).astype("<f4", copy=False) if maps else np.empty((0, 0, 0), "<f4")
            )
            shape = (count, len(maps) // count, *stacked.shape[1:])
            made[name] = Tensor(name, shape, stacked.reshape(shape))
        elif name == "overlay":
            made[name] = strings(name, [[o for _, o, _ in i.maps] for i in images], is_text=False)
        else:
            made[name] = strings(name, [[e for _, _, e in i.maps] for i in images], is_text=True)
    return list(made.values())


def require_known_extensions(name: str, parameters: Mapping[str, Any]) -> None:
    """Check that a tensor's parameters name no extension that the service does not have.

    Raises:
        InvalidParameter: if they name a region of shared memory or ask for a classification.
    """
    if "shared_memory_region" in parameters:
        raise InvalidParameter(
            f"tensor {name[:80]!r} names a shared_memory_region, and the service has no shared "
            "memory with its callers; send the bytes of the tensor"
        )
    if "classification" in parameters:
        raise InvalidParameter(
            f"output {name[:80]!r} asks for a classification, and the service has no such "
            "extension; the output labels names the best classes, as many as top_k says"
        )


def require_version(model: str, version: str) -> None:
    """Check that a model has a version.

    Raises:
        UnknownModel: if it has not.
    """
    if version not in ("", VERSION):
        raise UnknownModel(
            f"model {model[:80]!r} has no version {version[:40]!r}, only {VERSION!r}"
        )

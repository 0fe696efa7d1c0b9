"""A client of the service: its photos, its models and its jobs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Self, TypeVar, Unpack

import httpx2
import numpy as np
from numpy.typing import NDArray

from service.client import calls, job_calls, responses
from service.client._async.job import AsyncJob
from service.client._async.transport import AsyncLine
from service.client.explanation import Explanation
from service.client.failures import ClientError, Failure, Overloaded, ServiceError, Unreachable
from service.client.options import (
    AnswerOptions,
    AuditOptions,
    EvaluateOptions,
    MediaType,
    Options,
    PredictOptions,
)
from service.client.photos import Photo
from service.client.retries import Retries
from service.client.settings import settings
from service.client.tasks import Later, call_blocking, call_early, concurrent_map
from service.core import model_schemas, schemas
from service.features.answers import schemas as answer_schemas
from service.features.drift.schemas import DriftDescription
from service.features.evaluate.schemas import Evaluation
from service.features.jobs.schemas import JobDocument, JobList, JobState

P = TypeVar("P", bound=Photo)


class AsyncClient:
    """A gradcam-service, from asyncio: `async with AsyncClient("http://…:8000") as client: …`

    Calls are made again where the service has no room or is not ready (429, 503), no sooner than
    it says, and where the connection fails; never after any other error.
    For one asyncio loop.

    Args:
        address: of the service, http://… or https://…; a path in it comes before all routes, and
            `name:password@` before the host is sent as `Authorization: Basic`, in place of a key.
            It has no query and no fragment.
        key: an API key; spaces and line ends around it are left out.
        model: which calls ask that name none; without it the service's first, asked for once.
        timeout: seconds that a call may take in all, tries and pauses; up to a day. What uploads or
            downloads a whole job, or follows one, may take longer: it is then of silence.
        retries: tries after the first one.
        transport: how requests travel, where that is not httpx2's own way: for other certificates
            or proxies, for tests.

    Raises:
        ValueError: if an argument does not have the form described above.
    """

    def __init__(
        self,
        address: str = "http://127.0.0.1:8000",
        *,
        key: str | None = None,
        model: str | None = None,
        timeout: float = 60.0,
        retries: int = 5,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        rule = Retries(retries, timeout)
        self._http = httpx2.AsyncClient(transport=transport, **settings(address, key))
        self._line = AsyncLine(self._http, rule)
        self._model = model

    async def __aenter__(self) -> Self:
        try:
            await self._http.__aenter__()
        except BaseException:
            await self._http.aclose()
            raise
        return self

    async def __aexit__(self, *raised: Any) -> None:
        await self._http.__aexit__(*raised)

    async def close(self) -> None:
        """Close its connections, where there is no `async with`."""
        await self._http.aclose()

    async def ready(self) -> bool:
        """Return whether the service can explain images now. It is also False if nothing answers
        at the address, or a proxy answers with a status of 500 or more. The client tries once.

        Raises:
            ServiceError: if it refuses to say so: 401, 403, 404.
        """
        once = AsyncLine(self._http, Retries(0, self._line.rule.timeout))
        try:
            await once.send(calls.get("/readyz"))
        except Unreachable:
            return False
        except ServiceError as error:
            if error.status < 500 and not isinstance(error, Overloaded):
                raise
            return False
        return True

    async def models(self) -> list[str]:
        """The models' names."""
        answer = await self._line.send(calls.get("/v1/models"))
        return responses.parsed(model_schemas.ModelList, answer.body).models

    async def model(self, name: str | None = None) -> model_schemas.ModelDescription:
        """A model's input, classes, labels, default layer and methods."""
        answer = await self._line.send(calls.get(calls.model_path(await self._named(name))))
        return responses.parsed(model_schemas.ModelDescription, answer.body)

    async def layers(self, name: str | None = None) -> list[model_schemas.LayerDescription]:
        """A model's modules in the order in which they run, and which can be explained."""
        path = calls.model_path(await self._named(name))
        answer = await self._line.send(calls.get(f"{path}/layers"))
        return responses.parsed(model_schemas.LayerList, answer.body).layers

    async def drift(self, name: str | None = None) -> DriftDescription:
        """Whether a model's maps still look as those of its reference; `made` is None if it has
        none."""
        path = calls.model_path(await self._named(name))
        answer = await self._line.send(calls.get(f"{path}/drift"))
        return responses.parsed(DriftDescription, answer.body)

    async def ask(
        self, verb: str, /, *photos: Photo, model: str | None = None, **parameters: Any
    ) -> dict[str, Any]:
        """The answer in JSON of any operation on images, `POST /v1/models/{model}:VERB`, also of
        those that have no method here. The methods of the others ask by this one. Requests that are
        under way at the same time share the service's batches, and so do the photos of a request.

        Args:
            photos: one or more. If all fail, the first one's error is raised; otherwise, the answer
                has an entry with the `problem` in the place of each that failed.
            parameters: of the operation, as docs/http-api.md names them.

        Raises:
            OSError, TypeError, ValueError: if there is no photo, one cannot be read here, or the
                parameters are too long.
            ClientError: if there is no answer, or it is an error.
        """
        answer = await self._about(verb, photos, model, parameters, calls.JSON)
        return responses.document(answer)

    async def predict(
        self, photo: Photo, *, model: str | None = None, **parameters: Unpack[PredictOptions]
    ) -> schemas.Prediction:
        """The top classes of a photo (segments of a segmenter, detections of a detector).

        Raises:
            OSError, TypeError, ValueError: if the photo cannot be read here, or the parameters are
                too long.
            ClientError: if there is no answer, or it is an error.
        """
        return responses.prediction(await self.ask("predict", photo, model=model, **parameters))

    async def explain(
        self, photo: Photo, *, model: str | None = None, **parameters: Unpack[Options]
    ) -> Explanation:
        """Where in a photo the model sees a class: one map, with an overlay unless `output` says
        otherwise.

        Raises:
            OSError, TypeError, ValueError: if the photo cannot be read here, several maps were
                asked for, or the parameters are too long.
            ClientError: if there is no answer, or it is an error.
        """
        return responses.only(await self.explain_each(photo, model=model, **parameters))

    async def explain_each(
        self, photo: Photo, *, model: str | None = None, **parameters: Unpack[Options]
    ) -> list[Explanation]:
        """As `explain`, a map for each of the methods, targets and layers, in this order. Methods
        of one pass share it; `agreement` says how alike the methods' maps are."""
        asked: Mapping[str, Any] = {"output": "overlay", **parameters}
        return responses.explanations(await self.ask("explain", photo, model=model, **asked), asked)

    async def evaluate(
        self,
        photo: Photo,
        *,
        judged: NDArray[np.floating[Any]] | None = None,
        model: str | None = None,
        **parameters: Unpack[EvaluateOptions],
    ) -> list[Evaluation]:
        """How good the maps of a photo are by the metrics that are named: the scores of each map.

        Args:
            judged: a map that was made elsewhere, real numbers (H, W) of the photo's pixels or of
                the model's input, in place of one that the service makes.

        Raises:
            OSError, TypeError, ValueError: if the photo cannot be read here, or the parameters are
                too long.
            ClientError: if there is no answer, or it is an error.
        """
        asked: Mapping[str, Any] = dict(parameters)
        if judged is not None:
            asked = {**asked, "map": calls.sent_map(judged)}
        return responses.evaluations(await self.ask("evaluate", photo, model=model, **asked))

    async def answer(
        self,
        photo: Photo,
        question: str,
        *,
        model: str | None = None,
        **parameters: Unpack[AnswerOptions],
    ) -> answer_schemas.Answer:
        """The answer of a vision–language model to a question about a photo, word by word: where
        on the photo the model sees each word, and how much the photo speaks for it.

        Raises:
            OSError, TypeError, ValueError: if the photo cannot be read here, or the parameters are
                too long.
            ClientError: if there is no answer, or it is an error.
        """
        document = await self.ask("answer", photo, model=model, question=question, **parameters)
        return responses.answer(document)

    async def overlay(
        self,
        photo: Photo,
        *,
        model: str | None = None,
        media_type: MediaType = "image/png",
        **parameters: Unpack[Options],
    ) -> bytes:
        """The picture of `explain` alone, as a file of `media_type` has it.

        Raises:
            As `explain`.
        """
        answer = await self._about("explain", (photo,), model, parameters, media_type)
        return answer.require_picture()

    def explain_many(
        self,
        photos: Iterable[P] | AsyncIterable[P],
        *,
        model: str | None = None,
        in_flight: int = 8,
        ordered: bool = True,
        **parameters: Unpack[Options],
    ) -> AsyncGenerator[tuple[P, Explanation | Failure]]:
        """Each photo with its explanation, as they become ready, in their order; of several
        methods, targets or layers one after the other. Where one fails, the error stands in its
        place, not raised, and the others go on.

        However many there are, at most `in_flight` requests are under way, and photos are read at
        most as many ahead. Without an `output` there is the map alone, and no overlay.

        Closing it early cancels the requests that are under way.

        Args:
            photos: as `explain` takes them; they may have no end.
            ordered: False gives each as soon as it is ready, whatever its place.

        Raises:
            TypeError, ValueError: if an item is not a photo, or the parameters are too long.
            ClientError: if `model` is to be asked for, and there is no answer.
            Exception: whatever reading `photos` raises, after the results of those read before.
        """
        if in_flight < 1:
            raise ValueError(f"in_flight is {in_flight}; it should be 1 or more")
        named = call_early(self._named, model)
        return self._explained(photos, named, in_flight, ordered, parameters)

    async def _explained(
        self,
        photos: Iterable[P] | AsyncIterable[P],
        named: Later[str],
        in_flight: int,
        ordered: bool,
        parameters: Options,
    ) -> AsyncGenerator[tuple[P, Explanation | Failure]]:
        name = await named()

        async def work(photo: P) -> list[Explanation] | Failure:
            try:
                document = await self.ask("explain", photo, model=name, **parameters)
                return responses.explanations(document, parameters)
            except (ClientError, OSError) as error:
                return error

        async with aclosing(concurrent_map(work, photos, in_flight, ordered=ordered)) as results:
            async for photo, result in results:
                for explanation in result if isinstance(result, list) else [result]:
                    yield photo, explanation

    async def submit(
        self,
        photos: job_calls.Photos,
        *,
        model: str | None = None,
        idempotency_key: str | None = None,
        **parameters: Unpack[Options],
    ) -> AsyncJob:
        """Have many photos explained while nobody waits.

        Args:
            photos: an archive's or a manifest's path, photos by their ids, or photos, whose paths
                are their ids. An iterator is read into a list, so give paths rather than pixels.
            idempotency_key: the same key and content give the same job again; without one each
                call makes its own job, once, however often it has to be sent.

        Raises:
            OSError, TypeError, ValueError: if what is submitted cannot be read here, or the
                parameters are too long.
            ClientError: if there is no answer, or it is an error.
        """
        call = job_calls.submit(photos, model or self._model, parameters, idempotency_key)
        return self._job(await self._line.send(call))

    async def audit(
        self,
        photos: job_calls.Photos,
        *,
        model: str | None = None,
        idempotency_key: str | None = None,
        **parameters: Unpack[AuditOptions],
    ) -> AsyncJob:
        """Have the service measure which methods and layers explain a model. The audit is a job:
        `AsyncJob.audit` has its summary, and `AsyncJob.report` its page.

        Args:
            photos: at least twenty, as `submit` takes them.
            idempotency_key: as in `submit`.

        Raises:
            As `submit`.
        """
        named = model or self._model
        call = job_calls.submit(photos, named, parameters, idempotency_key, path=job_calls.AUDITS)
        return self._job(await self._line.send(call))

    async def job(self, name: str) -> AsyncJob:
        """A job by its id.

        Raises:
            NotFound: if there is none.
            ValueError: if the id is empty.
        """
        return self._job(await self._line.send(job_calls.document(name)))

    async def jobs(
        self, state: JobState | None = None, *, page: int = 50
    ) -> AsyncGenerator[AsyncJob]:
        """The jobs that there are, the latest first, `page` of them fetched at a time."""
        call = job_calls.listed(state, page)
        while True:
            answer = await self._line.send(call)
            page_ = responses.parsed(JobList, answer.body)
            for document in page_.jobs:
                yield AsyncJob(self._line, document)
            if page_.next is None:
                return
            call = job_calls.listed_next(page_.next)

    async def _about(
        self,
        verb: str,
        photos: Sequence[Photo],
        model: str | None,
        parameters: Mapping[str, Any],
        accept: str,
    ) -> responses.Response:
        name = await self._named(model)
        # Reading photos and encoding pictures block.
        call = await call_blocking(calls.about_photos, verb, name, photos, parameters, accept)
        return await self._line.send(call)

    def _job(self, answer: responses.Response) -> AsyncJob:
        return AsyncJob(self._line, responses.parsed(JobDocument, answer.body))

    async def _named(self, model: str | None) -> str:
        if model is None and self._model is None:
            self._model = responses.first(await self.models())
        return model or self._model or ""

    def __repr__(self) -> str:
        return f"<AsyncClient of {self._http.base_url}>"

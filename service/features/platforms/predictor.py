"""KServe's predictor: asked which class to explain, where a request names none.

An InferenceService may have the model as its predictor and this service, with the same weights, as
its explainer. The explanation is then of the class that callers were given.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import httpx2

from service.core.errors import Unavailable, Unexplainable
from service.pipeline.instances import Instance, P


class Predictor:
    """The predictor of an InferenceService, reached by KServe's V1 protocol.

    Args:
        host: its host, with a port if it is not 80.
        seconds: longest time that an answer may take.
    """

    def __init__(self, host: str, *, seconds: float) -> None:
        self._host = host
        self._seconds = seconds
        self._trust = ssl.create_default_context()

    async def choose(self, model: str, instances: Sequence[Instance[P]]) -> list[Instance[P]]:
        """Return the instances, each with the predictor's class as its target unless it has one, or
        classes of its own.

        Raises:
            Unavailable: if the predictor does not answer.
            Unexplainable: if its answer says no class.
        """
        wanting = [
            one
            for one in instances
            if isinstance(one.image, bytes)
            and getattr(one.parameters, "target", 0) is None
            and getattr(one.parameters, "prompts", None) is None
        ]
        if not wanting:
            return list(instances)
        images = [base64.b64encode(one.image).decode() for one in wanting]  # type: ignore[arg-type]
        body = {"instances": [{"image": {"b64": image}} for image in images]}
        address = f"http://{self._host}/v1/models/{model}:predict"
        try:
            async with (
                asyncio.timeout(self._seconds),
                httpx2.AsyncClient(
                    verify=self._trust, trust_env=False, timeout=None, follow_redirects=True
                ) as client,
            ):
                response = await client.post(address, json=body)
            said = response.json()["predictions"] if response.status_code == 200 else None
        except (
            TimeoutError,
            httpx2.HTTPError,
            httpx2.InvalidURL,
            ExceptionGroup,  # of anyio, for a port that there cannot be
            ValueError,
            KeyError,
            TypeError,
        ):
            said = None
        if not isinstance(said, list) or len(said) != len(wanting):
            raise Unavailable(f"the predictor at {self._host} gives no prediction for each image")
        targets = {one.index: class_of(value) for one, value in zip(wanting, said, strict=True)}
        return [
            replace(
                one, parameters=one.parameters.model_copy(update={"target": targets[one.index]})
            )
            if one.index in targets
            else one
            for one in instances
        ]


def class_of(prediction: Any) -> int | str:
    """Return the index or label of a prediction: an index, a label, the numbers of all classes, or
    an object of this service.

    Raises:
        Unexplainable: if it is not one of these.
    """
    if isinstance(prediction, dict) and prediction.get("classes"):
        return int(prediction["classes"][0]["index"])
    if isinstance(prediction, int | str) and not isinstance(prediction, bool):
        return prediction
    if isinstance(prediction, list) and prediction:
        try:
            return max(range(len(prediction)), key=[float(one) for one in prediction].__getitem__)
        except (TypeError, ValueError):
            pass
    raise Unexplainable(f"the predictor's answer names no class: {str(prediction)[:80]}")

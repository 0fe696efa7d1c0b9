"""Vertex AI: a prediction holds its explanations, because Vertex passes on `predictions` alone.

A request is `{"instances": […], "parameters": {…}}`, as for `:explain`. Requests that are not JSON
(`rawPredict`), and answers that are not, pass unchanged.
"""

from __future__ import annotations

from typing import Any

from anyio import to_thread
from pydantic_core import from_json, to_json
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class NestExplanations:
    """Middleware that moves each explanation of an answer into the prediction of its image.

    Args:
        path: the path that Vertex prescribes for predictions.
    """

    def __init__(self, app: ASGIApp, *, path: str) -> None:
        self._app = app
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != self._path:
            await self._app(scope, receive, send)
            return
        start: Message = {}
        body = bytearray()

        async def send_nested(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                is_json = Headers(raw=message["headers"]).get("content-type") == "application/json"
                if is_json and message["status"] == 200:
                    start = message
                    return
            elif start:
                body.extend(message.get("body", b""))
                if message.get("more_body"):
                    return
                nested = await to_thread.run_sync(nest, bytes(body))
                headers = MutableHeaders(raw=start["headers"])
                headers["Content-Length"] = str(len(nested))
                await send({**start, "headers": headers.raw})
                message = {"type": "http.response.body", "body": nested}
            await send(message)

        await self._app(scope, receive, send_nested)


def nest(body: bytes) -> bytes:
    """Return the JSON of an answer of `:explain` with each explanation in its prediction, or that
    of `:answer` with the answers as predictions. An instance that failed stays as it is: its
    `error` and `problem` say why."""
    answer = from_json(body)
    if "answers" in answer:
        return to_json({"predictions": answer["answers"]})
    predictions: dict[int, Any] = {one["instance"]: one for one in answer["predictions"]}
    for explanation in answer.pop("explanations", ()):
        if "problem" not in explanation:
            predictions[explanation["instance"]].setdefault("explanations", []).append(explanation)
    return to_json(answer)

"""What openapi/openapi.json says beyond the schemas: texts, forms of bodies, worked examples."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel

from service.core.model_schemas import ModelState
from service.core.schemas import (
    ActivationResponse,
    ExplainResponse,
    PredictResponse,
    ProblemDocument,
)
from service.http.examples import (
    ACTIVATION_EXAMPLE,
    EXPLAINED,
    LAYER_EXAMPLE,
    MODEL_EXAMPLE,
    TINY_PNG,
)
from service.http.parameter_schemas import inlined, parameter_schemas
from service.models.catalog import NewModel
from service.pipeline.parameters import (
    ActivationParameters,
    ActivationRequest,
    ExplainRequest,
    Parameters,
    PredictParameters,
    PredictRequest,
)

DESCRIPTION: Final = """\
Explains what vision models look at: class activation maps of PyTorch models over HTTP.

The native API is KServe V1, so the service is a drop-in KServe explainer. Every error is an
RFC 9457 problem whose `detail` names the bad value and what is allowed.
"""
SECURITY_SCHEMES: Final = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key."},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    "basic": {"type": "http", "scheme": "basic", "description": "For browsers: as the password."},
}
SECURITY: Final[list[dict[str, list[str]]]] = [{"bearer": []}, {"header": []}, {"basic": []}, {}]
"""One of them, or none: a service may have no keys."""
TAGS: Final = [
    {"name": "explain", "description": "Predictions and explanations."},
    {"name": "jobs", "description": "Many images, when there is time."},
    {"name": "models", "description": "What is served."},
    {"name": "operations", "description": "Health and metrics."},
]

_REASONS: Final = {
    400: ("The request cannot be read", "malformed-request", "the body is empty"),
    404: ("There is no such model", "unknown-model", "there is no model 'resnet'"),
    401: ("An API key is needed", "unauthorized", "send an API key"),
    403: ("That is not allowed", "forbidden", "the key 'app' has the scope explain"),
    409: (
        "The models that there are leave no place for it",
        "conflict",
        "there is a model 'resnet50' already",
    ),
    406: ("The answer has no form that Accept allows", "not-acceptable", "Accept is 'text/plain'"),
    408: ("The request came in too slowly", "too-slow", "the request was not here after 10 s"),
    413: ("The body is too large", "body-too-large", "the body has 11000000 bytes"),
    415: ("The body's media type is not supported", "unsupported-media-type", "no Content-Type"),
    422: ("The model has no class of that name", "unknown-label", "no class is called 'catt'"),
    431: ("The request's head is too large", "head-too-large", "101 headers"),
    500: ("The service failed", "internal-error", "the service failed; its log has the cause"),
    429: ("Too many requests are waiting", "queue-full", "256 items are waiting"),
    424: (
        "The model could not be loaded",
        "model-failed",
        "model 'x' could not be loaded: cannot import 'x'; DELETE it, and add it again",
    ),
    503: ("The service is not ready", "unavailable", "still loading: efficientnet-lite0"),
    504: ("The answer took too long", "deadline-exceeded", "not ready after 30 s"),
    507: ("There is no room on the disk", "insufficient-storage", "the disk is full"),
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI responses for these statuses."""
    found: dict[int | str, dict[str, Any]] = {}
    for status in statuses:
        title, kind, detail = _REASONS[status]
        example = {
            "type": f"urn:gradcam-service:{kind}",
            "title": title,
            "status": status,
            "detail": detail,
            "error": detail,
        }
        content = {"application/problem+json": {"schema": _PROBLEM, "example": example}}
        found[status] = {"description": title, "content": content}
        if status in (429, 503):
            found[status]["headers"] = {
                "Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}
            }
    return found


def _ok(example: Any) -> dict[int | str, dict[str, Any]]:
    return {200: {"content": {"application/json": {"example": example}}}}


def _body(request: type[BaseModel], parameters: type[BaseModel], example: Any) -> dict[str, Any]:
    """The three forms of a request body, and the parameters that the query takes with any."""
    picture = {"schema": {"type": "string", "format": "binary"}}
    fields = inlined(parameters)["properties"]
    image = {"type": "array", "minItems": 1, "items": {"type": "string", "format": "binary"}}
    form = {
        "type": "object",
        "required": ["image"],
        "additionalProperties": False,
        "properties": {"image": image, **fields},
    }
    return {
        "parameters": parameter_schemas(parameters),
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": inlined(request), "example": example},
                "multipart/form-data": {"schema": form},
                **{f"image/{kind}": picture for kind in ("jpeg", "png", "webp", "*")},
            },
        },
    }


_PROBLEM: Final = {"$ref": f"#/components/schemas/{ProblemDocument.__name__}"}
_BYTES: Final = {"schema": {"type": "string", "format": "binary"}}
_SERVING: Final = (400, 401, 403, 404, 406, 408, 413, 415, 422, 424, 429, 431, 500, 503, 504)
_INSTANCE: Final = {"image": {"b64": TINY_PNG}}

PAGE: Final[dict[str, Any]] = {
    "tags": ["operations"],
    "summary": "A page to drop a photo on",
    "responses": {200: {"content": {"text/html": {"example": "<!doctype html>…"}}}},
}
HEALTHZ: Final[dict[str, Any]] = {
    "tags": ["operations"],
    "summary": "Whether the process lives",
    "responses": _ok({"status": "ok"}),
}
READYZ: Final[dict[str, Any]] = {
    "tags": ["operations"],
    "summary": "Whether it can explain: models warm, workers alive, not draining",
    "responses": {**_ok({"status": "ok"}), **problems(503)},
}
METRICS: Final[dict[str, Any]] = {
    "tags": ["operations"],
    "summary": "Metrics for Prometheus",
    "responses": {
        200: {
            "content": {
                "text/plain": {
                    "schema": {"type": "string"},
                    "example": 'gradcam_queue_depth{model="efficientnet-lite0"} 0.0\n',
                }
            }
        }
    },
}
MODELS: Final[dict[str, Any]] = {
    "tags": ["models"],
    "summary": "The models' names",
    "responses": _ok({"models": ["efficientnet-lite0"]}),
}
MODEL: Final[dict[str, Any]] = {
    "tags": ["models"],
    "summary": "One model: its input, classes, default layer and methods",
    "responses": {**_ok(MODEL_EXAMPLE), **problems(401, 404, 424, 503)},
}
LAYERS: Final[dict[str, Any]] = {
    "tags": ["models"],
    "summary": "The model's layers in execution order, and which can be explained",
    "responses": {**_ok({"layers": [LAYER_EXAMPLE]}), **problems(401, 404, 424, 503)},
}
ADD_MODEL: Final[dict[str, Any]] = {
    "tags": ["models"],
    "summary": "Load one more model",
    "description": (
        "For keys of scope `admin`. It loads in the background; until then `GET` of its `Location` "
        "answers 503, or 424 where it could not be loaded. No file is named: weights are the "
        "source's own, or seeded random."
    ),
    "responses": {
        202: {
            "description": "It is loading.",
            "content": {"application/json": {"example": {"name": "r50", "state": "loading"}}},
            "headers": {
                "Location": {"description": "The model.", "schema": {"type": "string"}},
                "Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}},
            },
        },
        **problems(400, 401, 403, 408, 409, 413, 415, 422, 429, 431),
    },
    "response_model": ModelState,
    "openapi_extra": {
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": inlined(NewModel),
                    "example": {"name": "r50", "source": "torchvision:resnet50"},
                }
            },
        }
    },
}
REMOVE_MODEL: Final[dict[str, Any]] = {
    "tags": ["models"],
    "summary": "Finish a model's requests and let it go",
    "description": "For keys of scope `admin`. Answers when the last request is done.",
    "responses": {204: {"description": "It is gone."}, **problems(401, 403, 404, 409, 429)},
}
PREDICT: Final[dict[str, Any]] = {
    "tags": ["explain"],
    "summary": "The most probable classes of each image",
    "response_model": PredictResponse,
    "responses": {
        **_ok({"predictions": EXPLAINED["predictions"]}),
        **problems(*_SERVING),
    },
    "openapi_extra": _body(
        PredictRequest,
        PredictParameters,
        {"instances": [_INSTANCE], "parameters": {"top_k": 3, "fit": "squash"}},
    ),
}
ACTIVATIONS: Final[dict[str, Any]] = {
    "tags": ["explain"],
    "summary": "What hooks on layers see: inputs, outputs and gradients",
    "description": (
        "Answers by `Accept`: `application/json` (default) with statistics; for one image "
        "`application/x-npz` with the arrays, and for one layer `image/png`, `image/jpeg` or "
        "`image/webp` with a gallery of its strongest feature maps."
    ),
    "response_model": ActivationResponse,
    "responses": {
        200: {
            "content": {
                "application/json": {"example": {"activations": [ACTIVATION_EXAMPLE]}},
                **{f"image/{kind}": _BYTES for kind in ("png", "jpeg", "webp")},
                "application/x-npz": _BYTES,
            },
        },
        **problems(*_SERVING),
    },
    "openapi_extra": _body(
        ActivationRequest,
        ActivationParameters,
        {"instances": [_INSTANCE], "parameters": {"layer": ["blocks.0", "bn2"]}},
    ),
}
EXPLAIN: Final[dict[str, Any]] = {
    "tags": ["explain"],
    "summary": "Where in each image the model sees a class",
    "description": (
        "Answers by `Accept`: `application/json` (default), `application/x-ndjson` (an "
        "explanation a line, as each is ready), or, for exactly one map, `image/png`, "
        "`image/jpeg`, `image/webp` (a picture) or `application/x-npy` (float32 numbers)."
    ),
    "response_model": ExplainResponse,
    "responses": {
        200: {
            "content": {
                "application/json": {"example": EXPLAINED},
                "application/x-ndjson": {"schema": {"type": "string"}},
                **{f"image/{kind}": _BYTES for kind in ("png", "jpeg", "webp")},
                "application/x-npy": _BYTES,
            },
            "headers": {
                name: {"description": text, "schema": {"type": "string"}}
                for name, text in {
                    "ETag": "Equal for the same images, weights and parameters.",
                    "Server-Timing": "Milliseconds per phase.",
                }.items()
            },
        },
        304: {"description": "The caller's `If-None-Match` names this very answer."},
        **problems(*_SERVING),
    },
    "openapi_extra": _body(
        ExplainRequest,
        Parameters,
        {
            "instances": [{**_INSTANCE, "id": "a", "target": "Egyptian cat"}, _INSTANCE],
            "parameters": {"method": "gradcam", "output": "overlay", "fit": "squash"},
        },
    ),
}

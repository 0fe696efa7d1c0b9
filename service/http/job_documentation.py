"""What openapi/openapi.json says of jobs."""

from __future__ import annotations

import json
from typing import Any, Final

from starlette.responses import Response

from service.http.documentation import problems
from service.http.examples import EXPLAINED, TINY_PNG
from service.http.parameter_schemas import inlined, parameter_schemas
from service.jobs.documents import ItemResult, JobDocument, JobList
from service.jobs.manifest import JobRequest
from service.pipeline.parameters import Parameters

_ID: Final = "019acd1b2f008a4be1c95a0df7b2"
JOB_EXAMPLE: Final[dict[str, Any]] = {
    "id": _ID,
    "state": "running",
    "model": "efficientnet-lite0",
    "parameters": {"fit": "squash"},
    "counts": {"total": 1000, "done": 310, "failed": 4, "left": 686},
    "created": "2026-11-21T20:00:00Z",
    "started": "2026-11-21T20:00:00.120000Z",
    "rate": 25.1,
    "eta_seconds": 27.3,
}
RESULT_EXAMPLE: Final[dict[str, Any]] = {
    "index": 3,
    "item": "cats/a.jpg",
    "prediction": EXPLAINED["predictions"][0],
    "explanations": EXPLAINED["explanations"][:1],
    "cursor": 17,
}
_BYTES: Final = {"schema": {"type": "string", "format": "binary"}}
_RETRY: Final = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}
_READING: Final = (401, 403, 404, 422, 429, 503)


def _query(name: str, description: str, **schema: Any) -> dict[str, Any]:
    return {
        "name": name,
        "in": "query",
        "required": False,
        "description": description,
        "schema": schema,
    }


_MODEL: Final = _query("model", "Without it the service's first.", type="string", minLength=1)
_IDEMPOTENCY: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "The same key with the same job gives the same job again.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[ -~]+$"},
}
SUBMIT: Final[dict[str, Any]] = {
    "tags": ["jobs"],
    "summary": "Explain many images when there is time",
    "description": (
        "Takes inline images, a form, a zip or tar, or lines that name images, reads them as they "
        "stream in, and answers when they are on the disk: what was accepted is not lost. Items "
        "fail alone."
    ),
    "response_model": JobDocument,
    "status_code": 202,
    "responses": {
        202: {
            "content": {"application/json": {"example": JOB_EXAMPLE}},
            "headers": {
                "Location": {"description": "The job.", "schema": {"type": "string"}},
                **_RETRY,
            },
        },
        **problems(400, 401, 403, 404, 408, 413, 415, 422, 424, 429, 431, 500, 503, 507),
    },
    "openapi_extra": {
        "parameters": [_MODEL, *parameter_schemas(Parameters), _IDEMPOTENCY],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": inlined(JobRequest),
                    "example": {
                        "instances": [{"image": {"b64": TINY_PNG}, "id": "a"}],
                        "parameters": {"fit": "squash"},
                    },
                },
                "application/x-ndjson": {
                    "schema": {"type": "string", "format": "binary"},
                    "example": '{"image": {"path": "cats/a.jpg"}}\n{"image": {"path": "b.jpg"}}\n',
                },
                "multipart/form-data": {
                    "schema": {
                        "type": "object",
                        "required": ["image"],
                        "additionalProperties": False,
                        "properties": {
                            "image": {
                                "type": "array",
                                "minItems": 1,
                                "items": {"type": "string", "format": "binary"},
                            },
                            "model": {"type": "string"},
                            **inlined(Parameters)["properties"],
                        },
                    }
                },
                "application/zip": _BYTES,
                "application/x-tar": _BYTES,
                "application/gzip": _BYTES,
            },
        },
    },
}
LIST: Final[dict[str, Any]] = {
    "tags": ["jobs"],
    "summary": "The jobs, the latest first",
    "response_model": JobList,
    "responses": {
        200: {"content": {"application/json": {"example": {"jobs": [JOB_EXAMPLE]}}}},
        **problems(401, 403, 422, 429, 503),
    },
    "openapi_extra": {
        "parameters": [
            _query("limit", "How many.", type="integer", minimum=1, maximum=200, default=50),
            _query("before", "Those that came before this one.", type="string"),
            _query(
                "state",
                "Those of this state.",
                type="string",
                enum=["waiting", "running", "done", "cancelled"],
            ),
        ]
    },
}
SHOW: Final[dict[str, Any]] = {
    "tags": ["jobs"],
    "summary": "How far a job is",
    "response_model": JobDocument,
    "responses": {
        200: {"content": {"application/json": {"example": JOB_EXAMPLE}}},
        **problems(*_READING),
    },
}
CANCEL: Final[dict[str, Any]] = {
    "tags": ["jobs"],
    "summary": "Cancel a job, or remove it",
    "description": (
        "What is finished stays, until the job expires; a job that has ended stays as it is. With "
        "`purge=true` the job and its results are gone."
    ),
    "response_model": JobDocument,
    "responses": {
        200: {"content": {"application/json": {"example": {**JOB_EXAMPLE, "state": "cancelled"}}}},
        204: {"description": "It is gone."},
        **problems(*_READING, 507),
    },
    "openapi_extra": {"parameters": [_query("purge", "Remove it.", type="boolean", default=False)]},
}
EVENTS: Final[dict[str, Any]] = {
    "tags": ["jobs"],
    "response_class": Response,
    "summary": "A job's progress, as server-sent events",
    "description": (
        "`progress` whenever something has changed, `end` when the job has ended; the data of each "
        "is the job as `GET /v1/jobs/{job}` shows it."
    ),
    "responses": {
        200: {
            "content": {
                "text/event-stream": {
                    "example": 'event: progress\ndata: {"id": "…"}\n\n',
                }
            }
        },
        **problems(*_READING, 406),
    },
}
RESULTS: Final[dict[str, Any]] = {
    "tags": ["jobs"],
    "response_class": Response,
    "summary": "What is finished of a job, a line each",
    "description": (
        "In the order in which items were finished; `X-Next-Cursor` is the `after` of the next "
        "request. Of a job that runs it is what there is by now."
    ),
    "responses": {
        200: {
            "content": {
                "application/x-ndjson": {
                    "schema": {"type": "string"},
                    "example": json.dumps(RESULT_EXAMPLE) + "\n",
                }
            },
            "headers": {
                "X-Next-Cursor": {
                    "description": "Where to go on.",
                    "schema": {"type": "integer"},
                }
            },
        },
        **problems(*_READING, 406),
    },
    "openapi_extra": {
        "parameters": [
            _query("after", "Lines after this cursor.", type="integer", minimum=0, default=0),
            _query(
                "limit", "Most lines.", type="integer", minimum=1, maximum=10_000, default=10_000
            ),
        ]
    },
}
RESULT: Final[dict[str, Any]] = {
    "tags": ["jobs"],
    "summary": "What came of one item",
    "response_model": ItemResult,
    "responses": {
        200: {
            "content": {
                "application/json": {"example": RESULT_EXAMPLE},
                **{f"image/{kind}": _BYTES for kind in ("png", "jpeg", "webp")},
            }
        },
        **problems(*_READING, 406, 409),
    },
}
ARCHIVE: Final[dict[str, Any]] = {
    "tags": ["jobs"],
    "response_class": Response,
    "summary": "All results of a job that has ended, in one file",
    "responses": {
        200: {
            "content": {"application/zip": _BYTES, "application/vnd.apache.parquet": _BYTES},
        },
        **problems(*_READING, 406, 409),
    },
    "openapi_extra": {
        "parameters": [
            _query(
                "format",
                "A picture for each map and lines about them, or a table.",
                type="string",
                enum=["zip", "parquet"],
                default="zip",
            )
        ]
    },
}

"""Texts and examples of openapi/openapi.json for the service as a whole and for its requests."""

from __future__ import annotations

import json
from typing import Any, Final

from service.core.job_schemas import ItemResult
from service.core.schemas import TINY_PNG, Explanation, Prediction
from service.http.contract import takes, worked_example
from service.http.job_queries import JobParameters, SubmitQuery
from service.jobs.manifest import JobRequest
from service.models.catalog import NewModel

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
"""One of the schemes, or none, because a service may have no keys."""
TAGS: Final = [
    {"name": "explain", "description": "Predictions and explanations."},
    {"name": "jobs", "description": "Many images, when there is time."},
    {"name": "audits", "description": "Which method and layer to trust, measured on photos."},
    {"name": "models", "description": "What is served."},
    {"name": "operations", "description": "Health and metrics."},
]

EXPLANATION: Final = worked_example(Explanation)
RESULT: Final[dict[str, Any]] = {
    **worked_example(ItemResult),
    "prediction": worked_example(Prediction),
    "explanations": [EXPLANATION],
}
RESULT_LINE: Final = json.dumps(RESULT) + "\n"
CLUSTER_LINES: Final = (
    "id,number,class,cluster,suspect,reasons,x,y\r\n"
    "cats/a.jpg,0,Egyptian cat,0,true,same pattern; border; isolated,15.4,7.15\r\n"
)

_INSTANCE: Final = {"image": {"b64": TINY_PNG}}
SUBMIT: Final = takes(
    SubmitQuery,
    JobRequest,
    example={"instances": [{**_INSTANCE, "id": "a"}], "parameters": {"fit": "squash"}},
    form=JobParameters,
    files={
        "application/x-ndjson": '{"image": {"path": "cats/a.jpg"}}\n{"image": {"path": "b.jpg"}}\n',
        **dict.fromkeys(("application/zip", "application/x-tar", "application/gzip")),
    },
)
AUDIT: Final = takes(
    SubmitQuery,
    JobRequest,
    example={
        "instances": [{"image": {"path": "cats/a.jpg"}, "target": "Egyptian cat"}],
        "parameters": {"method": ["gradcam", "layercam"]},
    },
    form=JobParameters,
    files={
        "application/x-ndjson": '{"image": {"path": "cats/a.jpg"}}\n{"image": {"path": "b.jpg"}}\n',
        **dict.fromkeys(("application/zip", "application/x-tar", "application/gzip")),
    },
)
ADD_MODEL: Final = takes(body=NewModel, example={"name": "r50", "source": "torchvision:resnet50"})

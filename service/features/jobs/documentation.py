"""Examples of openapi/openapi.json for jobs."""

from __future__ import annotations

import json
from typing import Any, Final

from service.core.schemas import TINY_PNG, Explanation, Prediction
from service.features.jobs.manifest import JobRequest
from service.features.jobs.queries import JobParameters, SubmitQuery
from service.features.jobs.schemas import ItemResult, JobDocument
from service.http.contract import answers, takes, worked_example

READING_JOBS: Final = (401, 403, 404, 422, 429, 503)
ACCEPTED: Final = answers(
    JobDocument,
    status=202,
    headers=["Location", "Retry-After"],
    problems=[400, 401, 403, 404, 408, 413, 415, 422, 424, 429, 431, 500, 503, 507],
)
"""What is answered to what is to be processed later."""
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


def submission(example: dict[str, Any]) -> dict[str, Any]:
    """Return how a request with a job's images is described.

    Args:
        example: one in JSON.
    """
    lines = '{"image": {"path": "cats/a.jpg"}}\n{"image": {"path": "b.jpg"}}\n'
    archives = dict.fromkeys(("application/zip", "application/x-tar", "application/gzip"))
    files = {"application/x-ndjson": lines, **archives}
    return takes(SubmitQuery, JobRequest, example=example, form=JobParameters, files=files)


SUBMIT: Final = submission(
    {
        "instances": [{"image": {"b64": TINY_PNG}, "id": "a"}],
        "parameters": {"fit": "squash"},
    }
)

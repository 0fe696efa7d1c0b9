"""A typed client of the service.

    with Client("http://127.0.0.1:8000") as client:
        explanation = client.explain("cat.jpg", target="tabby", fit="squash")
        explanation.map, explanation.overlay, explanation.target.label

`AsyncClient` has the same methods as coroutines. Neither client loads PyTorch.
"""

from service.client._async.client import AsyncClient
from service.client._async.job import AsyncJob
from service.client._sync.client import Client
from service.client._sync.job import Job
from service.client.explanation import Explanation
from service.client.failures import (
    ClientError,
    Failure,
    NotFinished,
    NotFound,
    Overloaded,
    Refused,
    ServiceError,
    UnexpectedAnswer,
    Unreachable,
)
from service.client.options import (
    AnswerOptions,
    AuditOptions,
    EvaluateOptions,
    Options,
    PredictOptions,
    TargetObject,
)
from service.client.responses import Result
from service.features.jobs.schemas import JobDocument

__all__ = [
    "AnswerOptions",
    "AsyncClient",
    "AsyncJob",
    "AuditOptions",
    "Client",
    "ClientError",
    "EvaluateOptions",
    "Explanation",
    "Failure",
    "Job",
    "JobDocument",
    "NotFinished",
    "NotFound",
    "Options",
    "Overloaded",
    "PredictOptions",
    "Refused",
    "Result",
    "ServiceError",
    "TargetObject",
    "UnexpectedAnswer",
    "Unreachable",
]

"""What the service does: a feature is a folder here, and stands in `OPERATIONS` or `ADAPTERS`.

An operation is what a model does with images. From the list come the routes, what they require of a
caller, and what `openapi/openapi.json` says. A folder has the operation's parameters, its work and
what it answers. An adapter is another way in to the same operations: a platform's contract, or
another protocol. Nothing below this package knows of a feature, and `pyproject.toml` says which of
them needs which.
"""

from __future__ import annotations

from typing import Any, Final

from service.features.activations import ACTIVATIONS
from service.features.answers import ANSWER
from service.features.evaluate import EVALUATE
from service.features.explain import EXPLAIN
from service.features.jobs import jobs_and_audits
from service.features.open_inference import v2
from service.features.platforms import addresses, kserve, sagemaker, vertex
from service.features.predict import PREDICT
from service.http.adapter import Adapter
from service.http.operation import Operation

OPERATIONS: Final[tuple[Operation[Any, Any], ...]] = (
    PREDICT,
    EXPLAIN,
    EVALUATE,
    ACTIVATIONS,
    ANSWER,
)
ADAPTERS: Final[tuple[Adapter, ...]] = (
    jobs_and_audits,
    v2,
    addresses,
    sagemaker,
    vertex,
    kserve,
)
"""Where two of them know a path, the later one has it."""

"""What the service does with images: an operation is a folder here, and stands in `OPERATIONS`.

From the list come the routes, what they require of a caller, and what `openapi/openapi.json` says.
A folder has the operation's parameters, its work and what it answers. Nothing below this package
knows of an operation; one imports from another only where that stands above it in the list.
"""

from __future__ import annotations

from typing import Any, Final

from service.features.activations import ACTIVATIONS
from service.features.answers import ANSWER
from service.features.evaluate import EVALUATE
from service.features.explain import EXPLAIN
from service.features.predict import PREDICT
from service.http.operation import Operation

OPERATIONS: Final[tuple[Operation[Any, Any], ...]] = (
    PREDICT,
    EXPLAIN,
    EVALUATE,
    ACTIVATIONS,
    ANSWER,
)

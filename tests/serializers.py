"""Bodies that schemathesis does not know how to send: as they are."""

from __future__ import annotations

import json
from typing import Any

import schemathesis
from schemathesis import SerializationContext


@schemathesis.serializer(
    *("application/x-ndjson", "application/gzip", "application/x-tar", "application/zip"),
    *("image/avif", "image/bmp", "image/tiff"),
)
def as_it_is(context: SerializationContext, value: Any) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode()

"""The client's requests as plain values that both clients use."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from service.client.photos import Named, Photo, field_of, read

JSON = "application/json"
ANY_IMAGE = "image/x-unknown"
"""Media type that is sent with a photo; the service detects the format from the bytes."""


@dataclass(frozen=True)
class Request:
    """One request, which can be repeated.

    Attributes:
        body: the bytes; or a function that returns a new iterator over them, called for each try.
        bulky: whether the request may take any time as long as data is transferred.
    """

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | Callable[[], Iterator[bytes]] | None = None
    bulky: bool = False


def get(path: str, **query: str | int | None) -> Request:
    given = tuple((name, str(value)) for name, value in query.items() if value is not None)
    return Request("GET", path, given)


def step(name: str) -> str:
    """Return a name as one percent-encoded segment of a path."""
    # "." and ".." would be removed when the path is normalised.
    return name.replace(".", "%2E") if name in (".", "..") else quote(name, safe="")


def require_name(what: str, name: str) -> None:
    """Check that a name in a path is not empty.

    Raises:
        ValueError: if it is empty, because the path would then name something else.
    """
    if not name:
        raise ValueError(f"the {what} is empty")


def model_path(model: str) -> str:
    require_name("name of the model", model)
    return f"/v1/models/{step(model)}"


def about_photos(
    verb: str, model: str, photos: Sequence[Photo], parameters: Mapping[str, Any], accept: str
) -> Request:
    """Read photos and return the call that sends them. If it is one photo, given by its bytes, and
    no parameter is a list or an object, the bytes are the body and the parameters are in the query;
    otherwise the body is JSON.

    Raises:
        OSError, TypeError, ValueError: if there is no photo, or one cannot be read.
    """
    require_name("verb of the operation", verb)
    if not photos:
        raise ValueError(f"there is no photo to {verb}; give at least one")
    contents = [read(photo) for photo in photos]
    path = f"{model_path(model)}:{step(verb)}"
    simple = not any(_compound(value) for value in parameters.values())
    if simple and len(contents) == 1 and not isinstance(contents[0], Named):
        headers = {"Accept": accept, "Content-Type": ANY_IMAGE}
        return Request("POST", path, query_of(parameters), headers, contents[0])
    instances = [{"image": field_of(content)} for content in contents]
    document = {"instances": instances, "parameters": _given(parameters)}
    headers = {"Accept": accept, "Content-Type": JSON}
    return Request("POST", path, (), headers, to_json(document))


def sent_map(values: NDArray[np.floating[Any]]) -> dict[str, str]:
    """Return a map, real numbers (H, W), as a NumPy file in base64."""
    file = BytesIO()
    np.save(file, np.asarray(values), allow_pickle=False)
    return {"b64": base64.b64encode(file.getvalue()).decode("ascii")}


def query_of(parameters: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return parameters as pairs of a query: one pair for each entry of a list; objects as JSON.

    Raises:
        ValueError: if a list is empty, because the query could not express it.
    """
    pairs: list[tuple[str, str]] = []
    for name, value in _given(parameters).items():
        several = list(value) if _compound(value) and not isinstance(value, Mapping) else [value]
        if not several:
            raise ValueError(f"{name} is an empty list; leave it out, or name at least one")
        pairs += [(name, value if isinstance(value, str) else _text(value)) for value in several]
    return tuple(pairs)


def to_json(document: object) -> bytes:
    return _text(document).encode()


def _given(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if value is not None}


def _compound(value: object) -> bool:
    return isinstance(value, (Mapping, Iterable)) and not isinstance(value, str)


def _text(value: object) -> str:
    return json.dumps(value, default=_plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """Convert NumPy's numbers and arrays, mappings and other iterables to types of JSON.

    Raises:
        TypeError: if JSON has no such type.
    """
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Iterable):
        return list(value)
    raise TypeError(f"a parameter has a {type(value).__name__}, which JSON does not have")

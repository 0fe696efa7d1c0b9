"""What is asked of the service, as requests: plain values, the same for both clients."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from service.client.photos import Named, Photo, read

JSON = "application/json"
ANY_IMAGE = "image/x-unknown"
"""Of a photo: the service tells the format by the bytes."""


@dataclass(frozen=True)
class Call:
    """One request, which may be made again.

    Attributes:
        body: the bytes; or what begins to make them anew, for each try.
        bulky: whether it may take as long as it needs, while something comes or goes.
    """

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | Callable[[], Iterator[bytes]] | None = None
    bulky: bool = False


def get(path: str, **query: str | int | None) -> Call:
    given = tuple((name, str(value)) for name, value in query.items() if value is not None)
    return Call("GET", path, given)


def step(name: str) -> str:
    """A name as one step of a path."""
    # Dots would be taken for a way up, and lost on the way.
    return name.replace(".", "%2E") if name in (".", "..") else quote(name, safe="")


def require_name(what: str, name: str) -> None:
    """
    Raises:
        ValueError: if it is empty: the path would be another one's.
    """
    if not name:
        raise ValueError(f"the {what} is empty")


def model_path(model: str) -> str:
    require_name("name of the model", model)
    return f"/v1/models/{step(model)}"


def about_photo(
    verb: str, model: str, photo: Photo, parameters: Mapping[str, Any], accept: str
) -> Call:
    """A call that sends one photo: its bytes as they are and the parameters in the query, where
    both fit there; else JSON. It reads the photo.

    Raises:
        OSError, TypeError, ValueError: if the photo cannot be read.
    """
    content = read(photo)
    path = f"{model_path(model)}:{verb}"
    simple = not any(_compound(value) for value in parameters.values())
    if simple and not isinstance(content, Named):
        headers = {"Accept": accept, "Content-Type": ANY_IMAGE}
        return Call("POST", path, query_of(parameters), headers, content)
    if isinstance(content, Named):
        image = {content.field: content.address}
    else:
        image = {"b64": base64.b64encode(content).decode("ascii")}
    document = {"instances": [{"image": image}], "parameters": _given(parameters)}
    headers = {"Accept": accept, "Content-Type": JSON}
    return Call("POST", path, (), headers, to_json(document))


def query_of(parameters: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Parameters in a query: of a list one for each, an object as JSON.

    Raises:
        ValueError: if a list is empty, since nothing would be left of it.
    """
    pairs: list[tuple[str, str]] = []
    for name, value in _given(parameters).items():
        several = list(value) if _compound(value) and not isinstance(value, Mapping) else [value]
        if not several:
            raise ValueError(f"{name} is an empty list; leave it out, or name at least one")
        pairs += [(name, each if isinstance(each, str) else _text(each)) for each in several]
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
    """NumPy's numbers and arrays, and other sequences, as JSON has them."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Iterable):
        return list(value)
    raise TypeError(f"a parameter has a {type(value).__name__}, which JSON does not have")

"""Bodies in JSON that clients of other servers send: mlflow's, and those of Hugging Face.

mlflow sends `inputs`, `dataframe_split` or `dataframe_records`, on Azure ML `input_data`, and
`params`; Hugging Face's clients send `inputs` and `parameters`. A record has the columns of an
instance; the only column of a record is the image, unless it has the name of another field.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic_core import to_json

from cam.counts import counted
from service.core.errors import BodyTooLarge, MalformedRequest, TooManyInstances
from service.core.json_text import read_json
from service.pipeline.parameters import MAX_INSTANCES

KEYS: Final = ("inputs", "input_data", "dataframe_split", "dataframe_records")
FIELDS: Final = frozenset(
    {"image", "id", "b64", "url", "target", "method", "layer", "map"}
    | {"question", "answer", "word", "region"}
)
"""Fields of an instance or of its image: a single one of another name is the image."""
SPLIT: Final = '{"columns": ["image", …], "data": [["…", …], …]}'
LONGEST_NAME: Final = 100
"""Maximum number of letters in a column's name."""
MOST_GROWTH: Final = 4
"""Bytes that the names of the columns may take in all records, for each byte of the body. A row has
an image, or its address, which is longer than the names."""


def as_instances(body: bytes) -> bytes:
    """Return a body with `instances` and `parameters` for one of mlflow or Hugging Face; any other
    body unchanged.

    Raises:
        Problem: if it is not JSON, has parameters under both names, or its table has rows that do
            not fit its columns, too many rows, or names that are too long or not different.
    """
    sent = read_json(body)
    key = next((key for key in KEYS if isinstance(sent, dict) and key in sent), None)
    if key is None or "instances" in sent:
        return body
    rest = {name: value for name, value in sent.items() if name not in (key, "params")}
    if sent.get("params") is not None:
        if rest.get("parameters") is not None:
            raise MalformedRequest(
                "the body has params and parameters; send one of them", pointer="/params"
            )
        rest["parameters"] = sent["params"]
    return to_json({"instances": list(map(_instance, _records(key, sent[key], len(body)))), **rest})


def _records(key: str, data: Any, size: int) -> list[Any]:
    """Return the records of a table, of a list or of one value, in a body of `size` bytes."""
    if key == "dataframe_split" or (isinstance(data, dict) and {"columns", "data"} <= data.keys()):
        columns, rows = (
            (data.get("columns"), data.get("data")) if isinstance(data, dict) else (None, None)
        )
        if not (
            isinstance(columns, list)
            and isinstance(rows, list)
            and all(isinstance(row, list) and len(row) == len(columns) for row in rows)
        ):
            raise MalformedRequest(f"{key} is not like {SPLIT}", pointer=f"/{key}")
        names = list(map(str, columns))
        if len(set(names)) < len(names):
            name = next(name for name in names if names.count(name) > 1)
            raise MalformedRequest(
                f"{key} has more than one column {name[:80]!r}; give each its own name",
                pointer=f"/{key}",
            )
        _require_small(key, names, len(rows), size)
        return [dict(zip(names, row, strict=True)) for row in rows]
    if isinstance(data, dict) and data and all(isinstance(each, list) for each in data.values()):
        count = len(next(iter(data.values())))
        if any(len(each) != count for each in data.values()):
            raise MalformedRequest(f"the columns of {key} differ in length", pointer=f"/{key}")
        _require_small(key, list(data), count, size)
        return [dict(zip(data, row, strict=True)) for row in zip(*data.values(), strict=True)]
    records = data if isinstance(data, list) else [data]
    _require_small(key, [], len(records), size)
    return records


def _require_small(key: str, names: list[str], rows: int, size: int) -> None:
    """Check that a table's records are few and small: each record repeats the columns' names."""
    if rows > MAX_INSTANCES:
        raise TooManyInstances(
            f"{key} has {rows} instances; at most {MAX_INSTANCES} are allowed", pointer=f"/{key}"
        )
    for name in names:
        if len(name) > LONGEST_NAME:
            raise MalformedRequest(
                f"the column {name[:40]!r}… of {key} has a name of {len(name)} letters; at most "
                f"{LONGEST_NAME} are allowed",
                pointer=f"/{key}",
            )
    repeated = rows * sum(len(to_json(name)) for name in names)
    if repeated > MOST_GROWTH * size:
        raise BodyTooLarge(
            f"the names of the {counted(len(names), 'column')} of {key} would take {repeated} "
            f"bytes in its {counted(rows, 'row')}; at most {MOST_GROWTH} times the body's {size} "
            "are allowed",
            pointer=f"/{key}",
        )


def _instance(record: Any) -> Any:
    """Return a record as an instance. What is neither text nor an object is left to the schema."""
    if isinstance(record, list) and len(record) == 1:  # a row of a table without names
        (record,) = record
    if isinstance(record, str):
        record = {"image": record}
    if not isinstance(record, dict):
        return record
    if len(record) == 1 and not FIELDS & record.keys():
        record = {"image": next(iter(record.values()))}
    image = record.get("image")
    if isinstance(image, str):
        kind = "url" if image.startswith(("http://", "https://")) else "b64"
        record = {**record, "image": {kind: image}}
    return record

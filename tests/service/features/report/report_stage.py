"""Small manifests made by hand, and the page that is made of them taken apart."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from service.features.tables.rows import Row
from service.features.tables.table import SCHEMA

HOSTILE = "<script>alert(1)</script>.jpg"


def map_row(name: str, values: Sequence[Sequence[float]] = ((0, 1), (1, 0)), **facts: Any) -> Row:
    """The row of a map (h, w), of class 0, cat, unless told otherwise."""
    numbers = np.array(values, "<f4")
    given: dict[str, Any] = {
        "target_index": 0,
        "target": "cat",
        "target_probability": 0.5,
        "concentration": 0.3,
        "mass": 0.5,
        "target_score": 2.0,
        "method": "gradcam",
        "layer": "bn2",
        "map": numbers.tobytes(),
        "map_height": numbers.shape[0],
        "map_width": numbers.shape[1],
    }
    return Row(id=name, **{**given, **facts})


def failed(name: str, sentence: str = "it is empty", kind: str = "undecodable-image") -> Row:
    return Row(id=name, error=sentence, problem=f"urn:gradcam-service:{kind}")


def write_manifest(folder: Path, rows: list[Row]) -> Path:
    file = folder / "manifest.parquet"
    pq.write_table(pa.Table.from_pylist([asdict(row) for row in rows], schema=SCHEMA), file)
    return file


def write_picture(folder: Path, name: str, colour: str = "red") -> str:
    """A picture of 300 × 200 pixels; returns its path below `folder`."""
    file = folder / "pictures" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (300, 200), colour).save(file)
    return f"pictures/{name}"


@dataclass
class Page(HTMLParser):
    """What a browser would see: text outside of scripts, and the maps in the data."""

    source: str
    text: str = ""
    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    blocks: list[str] = field(default_factory=list)
    executable: list[str] = field(default_factory=list)
    style: str = ""

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.feed(self.source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("dt", "dd", "th", "td"):
            self.text += " "

    def handle_endtag(self, tag: str) -> None:
        self.tags.append((f"/{tag}", {}))

    def handle_data(self, data: str) -> None:
        tag, attributes = self.tags[-1] if self.tags else ("", {})
        if tag == "script":
            inert = attributes.get("type") == "application/json"
            if attributes.get("id") != "terms":
                (self.blocks if inert else self.executable).append(data)
        elif tag == "style":
            self.style += data
        else:
            self.text += data

    @property
    def words(self) -> str:
        return " ".join(self.text.split())

    @property
    def options(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.blocks[0])
        return found

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for block in self.blocks[1:] for row in json.loads(block)]

    @property
    def names(self) -> list[str]:
        return [row["id"] for row in self.rows]


def read_page(file: Path) -> Page:
    return Page(file.read_text(encoding="utf-8"))

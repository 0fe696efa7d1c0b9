"""The report of a batch: one self-contained HTML page that is made from the manifest.

The manifest is read four times, row by row: to count, to compute the mean maps, to find clusters,
and to show maps. The page is written to the file while it is produced.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from cam.clusters import FEWEST
from cam.evaluation.metrics import METRICS, MetricOptions
from service.core.errors import ConfigError, one_line
from service.core.glossary import TERMS
from service.features.report.census import (
    BINS,
    Census,
    ClassCount,
    ClassKey,
    Sample,
    class_of,
    predicted_class_of,
    take_census,
)
from service.features.report.class_maps import MOST
from service.features.report.clusters import (
    ClassClusters,
    cluster_classes,
    labels_of,
    portray,
    prototype_rows,
    suspect_rows,
    write_clusters,
)
from service.features.report.means import MeanMap, mean_maps, scaled_map
from service.features.report.page import draw_bar, draw_map, page_template, write_page
from service.features.report.pictures import PhotoSource, in_order, show
from service.features.tables.rows import Row
from service.features.tables.table import SCHEMA

CLASSES: Final = 1000
"""Number of classes whose mean maps are drawn; the classes with the most maps are chosen."""
FIRST_CLASSES: Final = 24
"""Number of classes that are visible at once; the others are folded."""
BLOCK: Final = 50
"""Number of maps in one block of the page's data."""
ROWS: Final = 1024
"""Number of rows that are read at a time, without their maps."""
ROWS_WITH_MAPS: Final = 64
"""Number of rows that are read at a time with their maps, which may be as large as photos."""
NEWER: Final = ("mode", "used")
"""Columns that manifests of earlier versions lack."""
BYTES: Final = 1 << 20
"""Number of bytes of a column that are read at a time. Without it, a row group is read as a
whole."""


@dataclass(frozen=True)
class ClassPortrait:
    """A class as the page shows it."""

    position: int
    """Index of the class in the census."""
    count: ClassCount
    mean: MeanMap | None
    picture: str | None
    """The mean map as a data URI."""


@dataclass(frozen=True)
class Chosen:
    """A map that the page shows."""

    number: int
    """Number of its row in the manifest."""
    row: Row
    sampled: bool
    """Whether the map belongs to the sample. Other maps are shown because they are extreme in some
    respect."""


def write_report(
    manifest: Path,
    output: Path,
    file: Path,
    *,
    title: str,
    model: str | None = None,
    source: Callable[[], AbstractContextManager[PhotoSource | None]] = nullcontext,
    most: int = 2000,
) -> None:
    """Write the report of a batch as one self-contained HTML file.

    Args:
        manifest: the batch's manifest.parquet.
        output: the folder that contains the batch's pictures.
        file: the file to write. It appears only when it is complete.
        title: title of the page.
        model: name of the model; None to leave it out.
        source: opens the images of the batch; None if they cannot be read. It is called if a class
            has enough maps for clusters.
        most: largest number of maps in the page's sample, which is spread evenly over the classes.
            Maps that are extreme in some respect, in a suspect cluster, or typical of a cluster are
            shown in addition. Counts and mean maps always cover all maps.

    If a class has enough maps for clusters, their table is written beside the page, with the suffix
    .clusters.csv in place of the page's own; otherwise a table of that name is removed, because it
    is an earlier page's.

    Raises:
        ConfigError: if the manifest cannot be read.
        OSError: if the file cannot be written.
    """
    census = take_census(read_rows(manifest))
    portraits = _portraits(manifest, census)
    clusters = _clusters(manifest, census, source)
    table = file.with_name(f"{file.stem}.clusters.csv")
    if clusters:
        write_clusters(clusters, table)
    sample = Sample({class_.key: class_.maps for class_ in census.classes}, most)
    members = suspect_rows(clusters, most) | prototype_rows(clusters)
    shown = _shown(manifest, output, file, census, sample, labels_of(clusters), members)
    template = page_template(Path(__file__).parent, "report")
    page = template.generate(
        title=title,
        model=model,
        made=datetime.now(UTC),
        census=census,
        portraits=portraits,
        first_classes=FIRST_CLASSES,
        bar=draw_bar(),
        bins=BINS,
        terms=TERMS,
        metrics=_metrics(census),
        sample_size=sample.size,
        clusters=portray(clusters, output, file),
        fewest=FEWEST,
        blind=[cluster.count.key.name for cluster in clusters if not cluster.looked],
        by_use=any(cluster.by_use for cluster in clusters),
        unreadable=sum(cluster.found.unreadable for cluster in clusters if cluster.looked),
        table=table.name,
        table_link=quote(os.fsencode(table.name)),  # the name need not be UTF-8
        blocks=_blocks(shown),
        options=[
            {"name": class_.key.name, "index": class_.key.index, "maps": class_.maps}
            for class_ in census.classes
        ],
    )
    write_page(page, file)
    if not clusters:
        table.unlink(missing_ok=True)  # an earlier page's, which is gone


def _portraits(manifest: Path, census: Census) -> list[ClassPortrait]:
    first = census.classes[:CLASSES]
    means = mean_maps(
        read_rows(manifest, maps=True),
        {class_.key: class_.grid for class_ in first if class_.grid is not None},
    )
    return [
        ClassPortrait(position, class_, mean, draw_map(mean.values) if mean else None)
        for position, class_ in enumerate(first)
        for mean in (means.get(class_.key),)
    ]


def _clusters(
    manifest: Path,
    census: Census,
    source: Callable[[], AbstractContextManager[PhotoSource | None]],
) -> list[ClassClusters]:
    classes = census.classes[:CLASSES]
    if not any(class_.images >= FEWEST for class_ in classes):
        return []
    with source() as images:
        read = images.read if images else None
        return cluster_classes(read_rows(manifest, maps=True, used=True), classes, read, MOST)


def _shown(
    manifest: Path,
    output: Path,
    page: Path,
    census: Census,
    sample: Sample,
    labels: Mapping[int, int],
    members: set[int],
) -> Iterator[dict[str, Any]]:
    """Yield the maps on the page in the manifest's order, as dictionaries for the page's script.

    Args:
        labels: row number → number of the map's cluster in its class.
        members: row numbers of maps of clusters that are shown even if they are not in the sample.
    """
    positions = {class_.key: position for position, class_ in enumerate(census.classes)}
    strips = {
        "least": census.least,
        "most": census.most,
        "beside": census.beside,
        "disputed": census.disputed,
    }
    ranks = {
        name: {number: rank for rank, number in enumerate(numbers)}
        for name, numbers in strips.items()
    }

    def describe(chosen: Chosen) -> dict[str, Any]:
        shown = show(chosen.row.picture, output, page)
        # If the batch has no pictures, the page shows the map alone.
        alone = scaled_map(chosen.row) if shown.thumbnail is None else None
        return {
            "row": chosen.number,
            **_facts(chosen.row, positions),
            "thumbnail": shown.thumbnail if alone is None else draw_map(alone),
            "alone": alone is not None,
            "link": shown.link,
            "sampled": chosen.sampled,
            "cluster": labels.get(chosen.number),
            **{name: of_strip.get(chosen.number) for name, of_strip in ranks.items()},
        }

    ends = members.union(*ranks.values())

    def choose() -> Iterator[Chosen]:
        for number, row in enumerate(read_rows(manifest, maps=True)):
            if row.error is None:
                sampled = sample.takes(class_of(row))
                if sampled or number in ends:
                    yield Chosen(number, row, sampled)

    return in_order(describe, choose())


def _facts(row: Row, positions: dict[ClassKey, int]) -> dict[str, Any]:
    return {
        "id": row.id,
        "number": row.number,
        "class": positions[class_of(row)],
        "probability": _number(row.target_probability),
        "predicted": None if row.predicted_index is None else predicted_class_of(row).name,
        "sure": _number(row.predicted_probability),
        "correct": row.correct,
        "score": _number(row.target_score),
        "method": row.method,
        "layer": row.layer,
        "peak": None if row.peak_x is None or row.peak_y is None else [row.peak_x, row.peak_y],
        "mass": _number(row.mass),
        "concentration": _number(row.concentration),
        "border": _number(row.border),
        "agreement": _number(row.agreement_mean),
        "scores": [[name, _number(value)] for name, value in row.scores or ()],
        "agreements": [[name, _number(value)] for name, value in row.agreement or ()],
        "size": None if row.width is None or row.height is None else [row.width, row.height],
        "warning": row.warning,
    }


def _metrics(census: Census) -> list[dict[str, str]]:
    """Return what the page says of each metric by which maps were scored."""
    names = dict.fromkeys(name for means in census.scores.values() for name in means)
    return [
        {
            "name": name,
            "summary": METRICS[name].summary,
            "better": METRICS[name].better,
            "convention": METRICS[name].convention(MetricOptions()),
        }
        for name in names
        if name in METRICS
    ]


def _number(value: float | None) -> float | None:
    """Return a number with six digits, which is the precision of a float32; None if it is missing
    or not finite, because JSON has no NaN."""
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None


def _blocks(shown: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    while block := list(islice(shown, BLOCK)):
        yield block


def read_rows(manifest: Path, *, maps: bool = False, used: bool = False) -> Iterator[Row]:
    """Yield the rows of a manifest in its order.

    Args:
        maps: whether to read the column `map`, too.
        used: whether to read the column `used`, too.

    Raises:
        ConfigError: if the manifest cannot be read or does not have the columns of a manifest.
    """
    left_out = {name for name, read in (("map", maps), ("used", used)) if not read}
    at_a_time = ROWS_WITH_MAPS if maps else ROWS
    try:
        with pq.ParquetFile(manifest, pre_buffer=False, buffer_size=BYTES) as file:
            _check(manifest, file.schema_arrow)
            columns = [
                name
                for name in file.schema_arrow.names
                if name in SCHEMA.names and name not in left_out
            ]
            for batch in file.iter_batches(batch_size=at_a_time, columns=columns):
                for record in batch.to_pylist():
                    yield Row(**record)
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(f"{manifest} cannot be read as a manifest: {one_line(error)}") from None


def _check(manifest: Path, schema: pa.Schema) -> None:
    missing = [name for name in SCHEMA.names if name not in schema.names and name not in NEWER]
    if missing:
        raise ConfigError(
            f"{manifest} is not the manifest of a batch: it has no column {', '.join(missing)}"
        )
    for field in SCHEMA:
        if field.name not in schema.names:
            continue
        if schema.field(field.name).type != field.type:
            raise ConfigError(
                f"{manifest} is not the manifest of a batch: its column {field.name} is "
                f"{schema.field(field.name).type}, not {field.type}"
            )

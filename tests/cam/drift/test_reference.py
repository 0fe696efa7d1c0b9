"""References: written, read, and what is not a reference."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cam.drift.map_statistics import STATISTICS, MapStatistics
from cam.drift.origin import Origin
from cam.drift.reference import (
    KEY,
    SCHEMA,
    Reference,
    read_reference,
    reference_of,
)
from cam.drift.window import NO_CLASS
from cam.errors import InvalidReference

ORIGIN = Origin("lite0", "d1ce", "gradcam", "conv_head", "pad")
SOME = MapStatistics(
    *(0.9, 0.5, 0.25, 0.4, 0.125, 0.375, 0.3, 0.8, 0.4),
    *(0.5, 0.25, 0.375, 0.25, 0.125, 0.75, 0.4375),
)
TOLD = {
    "model": "lite0",
    "weights": "d1ce",
    "method": "gradcam",
    "layer": "conv_head",
    "fit": "pad",
    "photos": 1,
    "made": "2026-01-02T03:04:05+00:00",
}
ROW: dict[str, Any] = {"class": 1, **dict.fromkeys(STATISTICS, 0.5)}


def made() -> Reference:
    without = MapStatistics(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, None)
    return reference_of([(3, SOME), (None, without), (4, None)], ORIGIN)


def written(file: Path, rows: list[dict[str, Any]], told: object = TOLD) -> Path:
    schema = SCHEMA.with_metadata({KEY: json.dumps(told)})
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), file)
    return file


def test_a_round_trip(tmp_path: Path) -> None:
    reference = made()
    reference.write(tmp_path / "good.parquet")
    found = read_reference(tmp_path / "good.parquet")
    assert found.origin == ORIGIN
    assert found.made == reference.made
    assert datetime.now(UTC) - found.made < timedelta(minutes=1)
    assert found.classes.dtype == np.int32
    assert found.classes.tolist() == [3, NO_CLASS, 4]
    assert found.rows.dtype == np.float32
    np.testing.assert_array_equal(found.rows, reference.rows)
    assert np.isnan(found.rows).sum(axis=1).tolist() == [0, 9, 16]


def test_a_file_without_the_sharpness_of_photos_can_be_read(tmp_path: Path) -> None:
    """It was written before there was such a statistic, which is then not compared."""
    made().write(tmp_path / "good.parquet")
    table = pq.read_table(tmp_path / "good.parquet").drop_columns(["sharpness"])
    pq.write_table(table, tmp_path / "older.parquet")
    found = read_reference(tmp_path / "older.parquet")
    left_out = STATISTICS.index("sharpness")
    expected = made().rows
    expected[:, left_out] = np.nan
    np.testing.assert_array_equal(found.rows, expected)


def test_the_file_has_no_nan_and_tells_its_origin(tmp_path: Path) -> None:
    made().write(tmp_path / "good.parquet")
    table = pq.read_table(tmp_path / "good.parquet")
    assert table.column_names == ["class", *STATISTICS]
    assert table.column("class").to_pylist() == [3, None, 4]
    assert table.column("confidence").to_pylist() == [np.float32(0.8), None, None]
    assert table.column("entropy").null_count == 1
    told = json.loads(table.schema.metadata[KEY])
    assert told.pop("made")
    assert told == {**{name: TOLD[name] for name in list(TOLD)[:5]}, "photos": 3}


def test_a_photo_that_repeats_counts_once() -> None:
    """In another batch the last digits of its map differ. Flat maps are all kept."""
    again = replace(SOME, entropy=SOME.entropy + 1e-6)
    found = reference_of([(3, SOME), (4, None), (3, again), (4, None)], ORIGIN)
    assert found.classes.tolist() == [4, 3, 4]
    assert found.rows[1, 0] == np.float32(again.entropy)


def test_a_large_reference_is_thinned_evenly() -> None:
    """Of each class, in the order of the photos; a class of few photos keeps them all."""
    maps = [
        (index, replace(SOME, entropy=number / 1000, border=index / 10))
        for number in range(100)
        for index in ((7, 2) if number < 3 else (7,))
    ]
    found = reference_of(maps, ORIGIN).thinned(10)
    assert found.classes.tolist() == [7, 2, 2, 2, *[7] * 9]
    entropies = found.rows[found.classes == 7, 0]
    np.testing.assert_allclose(entropies, np.arange(0, 100, 10) / 1000, atol=1e-6)
    assert found.origin == ORIGIN


@pytest.mark.parametrize(
    ("maps", "sentence"),
    [
        ([], "it has 0 photos; it can have 1 to 1,000,000"),
        ([(1, None)], "none of its maps has statistics"),
        ([(-2, SOME)], "it has class -2"),
    ],
)
def test_what_cannot_be_made(maps: list[Any], sentence: str) -> None:
    with pytest.raises(InvalidReference, match=sentence):
        reference_of(maps, ORIGIN)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1 not a table PAR1", b"a,b\n1,2\n"])
def test_broken_files(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "bad.parquet"
    file.write_bytes(content)
    with pytest.raises(InvalidReference, match=r"bad.parquet cannot be read as a reference: "):
        read_reference(file)


def test_a_file_that_is_not_there_or_a_folder(tmp_path: Path) -> None:
    for file in (tmp_path / "none.parquet", tmp_path):
        with pytest.raises(InvalidReference, match="cannot be read as a reference"):
            read_reference(file)


def test_a_damaged_file(tmp_path: Path) -> None:
    file = tmp_path / "good.parquet"
    made().write(file)
    whole = file.read_bytes()
    for end in range(0, len(whole), 97):
        file.write_bytes(whole[:end])
        with pytest.raises(InvalidReference):
            read_reference(file)
    for start in range(4, len(whole) - 8, 53):
        file.write_bytes(whole[:start] + b"\xff" * 4 + whole[start + 4 :])
        with suppress(InvalidReference):  # some bytes of a name may change without notice
            assert not np.isinf(read_reference(file).rows).any()


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"entropy": float("nan")}, "it has a NaN; a missing value is null"),
        ({"border": 1.5}, "it has 1.5 as border; statistics are 0 … 1"),
        ({"border": -0.5}, "it has -0.5 as border"),
        ({"spread": float("inf")}, "it has inf as spread"),
        ({"centre": None}, "its row 1 lacks some of the statistics of a map"),
        ({"class": -7}, "it has class -7; classes are numbered from 0"),
    ],
)
def test_values_that_cannot_be(row: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    file = written(tmp_path / "bad.parquet", [ROW, {**ROW, **row}])
    with pytest.raises(InvalidReference, match=f"bad.parquet is not a reference: {sentence}"):
        read_reference(file)


def test_no_photos(tmp_path: Path) -> None:
    with pytest.raises(InvalidReference, match="it has 0 photos"):
        read_reference(written(tmp_path / "bad.parquet", []))


def test_a_foreign_table(tmp_path: Path) -> None:
    file = tmp_path / "bad.parquet"
    pq.write_table(pa.table({"id": ["a"]}), file)
    with pytest.raises(InvalidReference, match="it has 0 columns 'class', not one"):
        read_reference(file)
    table = pa.Table.from_pylist([ROW], schema=SCHEMA)
    pq.write_table(table.set_column(1, "entropy", pa.array(["high"])), file)
    with pytest.raises(InvalidReference, match="its column 'entropy' is string, not float"):
        read_reference(file)
    pq.write_table(table, file)
    with pytest.raises(InvalidReference, match="its metadata 'gradcam-reference' does not tell"):
        read_reference(file)


@pytest.mark.parametrize(
    "told",
    [
        [],
        {},
        {**TOLD, "model": 3},
        {name: value for name, value in TOLD.items() if name != "fit"},
        {**TOLD, "made": "yesterday"},
        {**TOLD, "made": "2026-01-02"},
        {**TOLD, "made": 7},
    ],
)
def test_metadata_that_does_not_say_it(told: object, tmp_path: Path) -> None:
    with pytest.raises(InvalidReference) as raised:
        read_reference(written(tmp_path / "bad.parquet", [ROW], told))
    assert "bad.parquet is not a reference: its metadata 'gradcam-reference' does not tell" in str(
        raised.value
    )
    assert str(raised.value).endswith("make it anew with `gradcam reference`")


def test_metadata_that_is_nested_too_deeply(tmp_path: Path) -> None:
    file = tmp_path / "bad.parquet"
    schema = SCHEMA.with_metadata({KEY: "[" * 200_000})
    pq.write_table(pa.Table.from_pylist([ROW], schema=schema), file)
    with pytest.raises(InvalidReference, match=r"bad.parquet is not a reference: its metadata"):
        read_reference(file)


def test_too_many_photos_are_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cam.drift.reference.MOST", 2)
    file = written(tmp_path / "bad.parquet", [ROW] * 3)
    monkeypatch.setattr(pq.ParquetFile, "read", lambda *_, **__: pytest.fail("was unpacked"))
    with pytest.raises(InvalidReference, match="it has 3 photos; it can have 1 to 2"):
        read_reference(file)

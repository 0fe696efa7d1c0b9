"""A report of very many maps takes no more memory than one of some."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.features.report import write as report
from service.features.report.write import write_report
from service.features.tables.rows import Row
from service.features.tables.table import SCHEMA
from tests.service.features.report.report_stage import map_row, read_page, write_picture

COUNT = 200_000
AT_A_TIME = 5_000
"""As rows of that many are written, so that the test itself leaves little memory behind that the
report could take for nothing."""
MAP = 49 * 4
"""Bytes."""


@pytest.mark.slow
def test_a_long_manifest_takes_no_more_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Clusters have a bound of their own: a fixed number of maps.
    monkeypatch.setattr(report, "FEWEST", COUNT)
    peak = Path("/proc/self/clear_refs")
    if sys.platform != "linux" or not peak.exists():
        pytest.skip("only Linux tells, and forgets, how much memory a process had at most")
    manifest, file = tmp_path / "manifest.parquet", tmp_path / "report.html"
    told = map_row("x", picture=write_picture(tmp_path, "a.jpg"), map_height=7, map_width=7)
    with pq.ParquetWriter(manifest, SCHEMA) as writer:
        for start in range(0, COUNT, AT_A_TIME):
            writer.write_table(rows_from(start, told))
    process = psutil.Process()
    peak.write_text("5")
    before = process.memory_info().rss
    write_report(manifest, tmp_path, file, title="Photos", most=100)
    status = Path("/proc/self/status").read_text()
    most = 1024 * int(status.partition("VmHWM:")[2].split()[0])
    # Some 30 MB; as objects its rows are 130 MB, with their maps 190 MB.
    assert most - before < 80e6
    words = read_page(file).words
    assert "100 of 200,000 maps are shown" in words
    assert "class 0 2,000 maps" in words


def rows_from(start: int, told: Row) -> pa.Table:
    columns = {
        field.name: pa.repeat(pa.scalar(getattr(told, field.name), field.type), AT_A_TIME)
        for field in SCHEMA
    }
    numbers = range(start, start + AT_A_TIME)
    maps = np.random.default_rng(start).random((AT_A_TIME, MAP // 4), np.float32).tobytes()
    columns["id"] = pa.array([f"photos/{each:06d}.jpg" for each in numbers])
    columns["target"] = pa.array([f"class {each % 100}" for each in numbers])
    columns["map"] = pa.array([maps[at : at + MAP] for at in range(0, len(maps), MAP)], pa.binary())
    return pa.table(columns, schema=SCHEMA)

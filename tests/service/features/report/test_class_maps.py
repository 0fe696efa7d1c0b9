"""The clusters of maps as a table."""

from __future__ import annotations

import csv
import io

import pytest

from cam.clusters import find_clusters
from service.features.report.class_maps import ClassMaps, write_table
from tests.cam.clusters.synthetic import blobs


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("=HYPERLINK(1)", "'=HYPERLINK(1)"),
        ("+1", "'+1"),
        ("-1", "'-1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\t=1"),
        ("\r=1", "'\r=1"),
        ("a=1+1.png", "a=1+1.png"),
        ("'a", "'a"),
        ("", ""),
    ],
)
def test_a_name_is_no_formula(name: str, cell: str) -> None:
    """Numbers stay as they are, negative ones too: a spreadsheet computes nothing of them."""
    maps = ClassMaps(name)
    for values in blobs(30, 0):
        maps.add(name, 0, values)
    found = find_clusters(maps.maps)
    file = io.StringIO(newline="")
    write_table([(maps, found)], file)
    rows = list(csv.DictReader(io.StringIO(file.getvalue(), newline="")))
    assert {(each["id"], each["class"]) for each in rows} == {(cell, cell)}
    assert [float(each["x"]) for each in rows] == pytest.approx(found.embedding[:, 0], rel=1e-5)
    assert found.embedding[:, 0].min() < 0

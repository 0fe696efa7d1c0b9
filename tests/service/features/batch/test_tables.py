"""Images of a batch that a table names."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.core.errors import ImageTooLarge, UndecodableImage
from service.features.batch.inputs import open_inputs
from service.pipeline import images
from tests.service.features.batch.laid import as_nobody, ids, lay, readable_by_nobody, refused


def table(folder: Path, text: str | bytes) -> Path:
    file = folder / "table.csv"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return file


def test_a_table_of_paths(tmp_path: Path) -> None:
    lay(tmp_path, "b.jpg", "x/a b.png", "elsewhere/c")
    (tmp_path / "list").mkdir()
    file = table(
        tmp_path / "list",
        f"note,path\nhi,../b.jpg\n,../x/a b.png\nno suffix,{tmp_path}/elsewhere/c\n",
    )
    with open_inputs(str(file)) as found:
        assert found.ids == ["../b.jpg", "../x/a b.png", f"{tmp_path}/elsewhere/c"]  # as it is told
        assert [found.read(name) for name in found.ids] == [b"b.jpg", b"a b.png", b"c"]
        assert not found.targets


def test_ids_and_targets_of_a_table(tmp_path: Path) -> None:
    lay(tmp_path, "a.jpg", "b, c.jpg")
    text = 'target,id,path\r\n285,one,a.jpg\r\n,"two\nlines","b, c.jpg"\r\n'
    text += '"{""class"": ""tabby"", ""minus"": 282}",3,a.jpg\r\n"tabby, tabby cat",,a.jpg\r\n\r\n'
    with open_inputs(str(table(tmp_path, text))) as found:
        assert found.ids == ["one", "two\nlines", "3", "a.jpg"]
        assert dict(found.targets) == {
            "one": "285",
            "3": '{"class": "tabby", "minus": 282}',
            "a.jpg": "tabby, tabby cat",
        }
        assert found.read("two\nlines") == b"b, c.jpg"
        assert found.read("3") == b"a.jpg"


def test_excels_mark_at_the_start_is_no_part_of_the_first_column(tmp_path: Path) -> None:
    lay(tmp_path, "ä.jpg")
    assert ids(table(tmp_path, b"\xef\xbb\xbfpath\r\n\xc3\xa4.jpg\r\n")) == ["ä.jpg"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Path,id\na.jpg,1\n", "has no column 'path'; it has 'Path', 'id'"),
        ("", "has no column 'path'; it has none"),
        ("path\n", "has no rows"),
        ("path,id\na.jpg,1\n,2\n", "row 2 of {file} has no path"),
        ("id,path\n1\n", "row 1 of {file} has no path"),
        ("path,id\na.jpg,1\nb.jpg,2\nc.jpg,1\n", "row 3 of {file} has the id '1' for a second"),
        ("path\na.jpg\na.jpg\n", "row 2 of {file} has the id 'a.jpg' for a second time"),
        (b"path\n\xff\xfe.jpg\n", "{file} is not a readable CSV file: 'utf-8' codec"),
        ("path\n" + "a" * 200_000 + "\n", "{file} is not a readable CSV file: field larger"),
    ],
)
def test_a_mistake_in_a_table_is_told(tmp_path: Path, text: str | bytes, words: str) -> None:
    file = table(tmp_path, text)
    assert words.format(file=file) in refused(file)


def test_paths_of_a_table_that_lead_nowhere_are_their_own_problems(tmp_path: Path) -> None:
    (tmp_path / "folder.jpg").mkdir()
    os.mkfifo(tmp_path / "pipe.jpg")
    names = ["no.jpg", "folder.jpg", "pipe.jpg", "/dev/zero", "a\0b.jpg", "a" * 300, "\ud800"[:0]]
    names = [name for name in names if name]
    text = "path\n" + "\n".join(names) + "\n"
    with open_inputs(str(table(tmp_path, text))) as found:
        assert found.ids == names
        for name in names:
            with pytest.raises(UndecodableImage, match="cannot be read: "):
                found.read(name)


def test_a_file_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "LARGEST", 1000)
    (tmp_path / "large.jpg").write_bytes(bytes(1001))
    (tmp_path / "small.jpg").write_bytes(bytes(1000))
    with open_inputs(str(tmp_path)) as found:
        assert len(found.read("small.jpg")) == 1000
        with pytest.raises(ImageTooLarge, match=r"large.jpg has 1001 bytes; at most 1000 are"):
            found.read("large.jpg")


def test_a_table_that_may_not_be_read_is_told() -> None:
    with readable_by_nobody() as folder:
        for name in ("t.csv", "t.parquet", "t.zip"):
            lay(folder, name)
            (folder / name).chmod(0)
            with as_nobody():
                assert "Permission denied" in refused(folder / name)


def test_a_parquet_table(tmp_path: Path) -> None:
    lay(tmp_path, "a.jpg", "b.jpg")
    columns = {
        "weight": [1.5, 2.5, 3.5, 4.5],
        "id": [7, 8, 9, None],
        "path": ["a.jpg", "b.jpg", "a.jpg", "b.jpg"],
        "target": [285.0, None, float("nan"), 281.0],  # pandas' whole numbers where one is missing
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    with open_inputs(str(tmp_path / "t.parquet")) as found:
        assert found.ids == ["7", "8", "9", "b.jpg"]
        assert dict(found.targets) == {"7": "285", "b.jpg": "281"}
        assert [found.read(name) for name in found.ids] == [b"a.jpg", b"b.jpg"] * 2


def test_spaces_around_a_tables_columns_are_no_part_of_them(tmp_path: Path) -> None:
    text = 'path , target, id\na.jpg, 285, one\nb.jpg,, " two"\n'
    with open_inputs(str(table(tmp_path, text))) as found:
        assert found.ids == ["one", " two"]
        assert dict(found.targets) == {"one": "285"}


def test_bytes_in_a_parquet_table_are_text(tmp_path: Path) -> None:
    lay(tmp_path, "ä.jpg")
    columns = {"path": ["ä.jpg".encode()], "id": ["é".encode()], "target": [b"tabby"]}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    with open_inputs(str(tmp_path / "t.parquet")) as found:
        assert found.ids == ["é"]
        assert dict(found.targets) == {"é": "tabby"}
        assert found.read("é").decode() == "ä.jpg"


def test_a_struct_is_a_target(tmp_path: Path) -> None:
    targets = [
        {"class": "tabby", "minus": None, "box": None},
        {"class": None, "minus": 282.0, "box": [1.0, 2.5]},
        {"class": None, "minus": None, "box": None},
        None,
    ]
    columns = {"path": ["1", "2", "3", "4"], "target": targets}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    with open_inputs(str(tmp_path / "t.parquet")) as found:
        assert dict(found.targets) == {
            "1": '{"class": "tabby"}',
            "2": '{"minus": 282, "box": [1, 2.5]}',
        }


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"target": [None, ["285", "281"]]}, "row 2 of {file} has a list as its target; it should"),
        ({"id": [[1], [2]]}, "row 1 of {file} has a list as its id; it should be text or a number"),
        ({"id": [{"a": 1}, None]}, "row 1 of {file} has a struct as its id; it should be text"),
        ({"id": [b"a", b"\xff"]}, "{file} is not a readable Parquet file: 'utf-8' codec"),
        (
            {"id": pa.array([1, 2], pa.timestamp("ns"))},
            "{file} is not a readable Parquet file: its column id is timestamp[ns]",
        ),
        (
            {"path": pa.array([b"\xff.jpg", b"b.jpg"]).view(pa.string())},
            "{file} is not a readable Parquet file: 'utf-8' codec can't decode",
        ),
    ],
)
def test_cells_that_are_none_are_told(
    tmp_path: Path, columns: dict[str, object], words: str
) -> None:
    file = tmp_path / "t.parquet"
    pq.write_table(pa.table({"path": ["a.jpg", "b.jpg"], **columns}), file)
    assert refused(file).startswith(words.format(file=file))


def test_empty_text_in_a_parquet_table_is_as_missing_as_in_a_csv(tmp_path: Path) -> None:
    columns = {"path": ["a.jpg", "b.jpg"], "id": ["", "x"], "target": ["", "tabby"]}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    with open_inputs(str(tmp_path / "t.parquet")) as found:
        assert found.ids == ["a.jpg", "x"]
        assert dict(found.targets) == {"x": "tabby"}
    pq.write_table(pa.table({"path": ["a.jpg", ""]}), tmp_path / "t.parquet")
    assert "row 2" in refused(tmp_path / "t.parquet")


def test_mistakes_in_a_parquet_table_are_told(tmp_path: Path) -> None:
    file = tmp_path / "t.parquet"
    pq.write_table(pa.table({"file": ["a.jpg"], "id": ["1"]}), file)
    assert f"{file} has no column 'path'; it has 'file', 'id'" in refused(file)
    pq.write_table(pa.table({"path": pa.array([], pa.string())}), file)
    assert refused(file) == f"the table {file} has no rows"
    pq.write_table(pa.table({"path": ["a.jpg", None]}), file)
    assert refused(file) == f"row 2 of {file} has no path"
    pq.write_table(pa.table({"path": ["a.jpg", "b.jpg"], "id": [1, 1]}), file)
    assert refused(file) == f"row 2 of {file} has the id '1' for a second time"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert refused(file).startswith(f"{file} is not a readable Parquet file: ")
    file.write_bytes(zlib.compress(whole))
    assert refused(file).startswith(f"{file} is not a readable Parquet file: ")

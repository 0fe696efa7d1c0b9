"""What a batch has finished: whole or not at all, each image once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.core.errors import ConfigError, InsufficientStorage
from service.core.files import written_whole
from service.features.batch.parts import Parts
from service.features.tables.rows import Row
from service.features.tables.table import SCHEMA
from tests.service.live import ROOT


def rows(*names: str, label: str = "cat", maps: int = 1) -> list[Row]:
    return [
        Row(id=name, number=number, target_label=label, map=b"\0\0\x80?", map_height=1, map_width=1)
        for name in names
        for number in range(maps)
    ]


def failures(*names: str) -> list[Row]:
    return [Row(id=name, error="it is a song", problem="urn:…:undecodable-image") for name in names]


def manifest(parts: Parts) -> list[tuple[str, int, str | None]]:
    table = pq.read_table(parts.manifest)
    assert table.schema.equals(SCHEMA)
    return [(row["id"], row["number"], row["target_label"]) for row in table.to_pylist()]


def files(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


# Whole or not at all


def test_a_file_is_there_when_the_block_is_left(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("former")
    with written_whole(file) as temporary:
        temporary.write_text("new")
        assert file.read_text() == "former"
        assert temporary.parent == tmp_path  # of one file system, or it could not take the name
    assert file.read_text() == "new"
    assert files(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("written", [False, True])
def test_after_an_exception_nothing_has_changed(tmp_path: Path, written: bool) -> None:
    file = tmp_path / "a.txt"
    file.write_text("former")

    def write() -> None:
        with written_whole(file) as temporary:
            if written:
                temporary.write_text("ne")
            raise KeyError

    with pytest.raises(KeyError):
        write()
    assert file.read_text() == "former"
    assert files(tmp_path) == ["a.txt"]


def test_what_fails_between_writing_and_renaming_leaves_the_former_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = Parts(tmp_path)
    parts.add(rows("a", "b", label="former"))

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        forget = partial(parts.forget, {"a"})
        for work in (partial(parts.add, rows("a", "b")), parts.merge, forget):
            with pytest.raises(InsufficientStorage, match="Input/output error"):
                work()
        assert not parts.manifest.exists()
        assert len(files(tmp_path)) == 1
    parts.merge()
    assert manifest(parts) == [("a", 0, "former"), ("b", 0, "former")]


KILLED = """
import sys
import threading
from pathlib import Path
from service.features.batch.parts import Parts
from service.features.tables.rows import Row
from tests.waiting import hang

reached = threading.Semaphore(0)


def stopping(method, folder):
    def stop(path, *arguments, **options):
        if folder in path.parts:
            reached.release()
            hang()
        return method(path, *arguments, **options)

    return stop


output = Path(sys.argv[1])
for folder in ("add", "merge", "unlink"):
    Parts(output / folder).add([Row(id="a", target_label="kept")])
Path.replace = stopping(stopping(Path.replace, "add"), "merge")
Path.unlink = stopping(Path.unlink, "unlink")
add = lambda: Parts(output / "add").add([Row(id="b", target_label="lost")])
for work in (add, Parts(output / "merge").merge, Parts(output / "unlink").merge):
    threading.Thread(target=work).start()
for _ in range(3):
    reached.acquire()
print("written", flush=True)
"""


@pytest.mark.slow
def test_kill_9_leaves_whole_files_and_the_next_run_clears_up(tmp_path: Path) -> None:
    """Before a part takes its name, before the manifest does, and before the parts go."""
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "written\n"
        process.kill()
    assert len(list((tmp_path / "add").rglob("*.tmp"))) == 1
    assert len(list((tmp_path / "merge").rglob("*.tmp"))) == 1
    assert (tmp_path / "unlink" / "manifest.parquet").exists()
    for folder in ("add", "merge", "unlink"):
        parts = Parts(tmp_path / folder)
        assert parts.finished() == {"a"}
        parts.add(rows("b"))
        parts.merge()
        assert sorted(manifest(parts)) == [("a", 0, "kept"), ("b", 0, "cat")]
        assert [each.name for each in (tmp_path / folder).iterdir()] == ["manifest.parquet"]


# Rows


def test_the_same_images_again_take_the_place_of_the_former_ones(tmp_path: Path) -> None:
    parts = Parts(tmp_path)
    parts.add(rows("a", "b", label="former"))
    parts.add(rows("b", "a"))
    assert len(files(tmp_path)) == 1
    parts.merge()
    assert sorted(manifest(parts)) == [("a", 0, "cat"), ("b", 0, "cat")]


def test_other_images_do_not_whatever_they_are_called(tmp_path: Path) -> None:
    parts = Parts(tmp_path)
    groups = [["a", "b"], ["a\nb"], ["a,b"], ["a\0b"], ['a", "b'], ["ab"], ["", "ab"]]
    for group in groups:
        parts.add(rows(*[f"{name}" for name in group]))
    assert parts.finished() == {name for group in groups for name in group}


def test_no_rows_are_no_part(tmp_path: Path) -> None:
    parts = Parts(tmp_path / "out")
    parts.add([])
    assert parts.finished() == set()
    assert parts.failed() == set()
    parts.forget({"a"})
    assert not (tmp_path / "out").exists()


def test_merging_keeps_each_image_once_with_all_its_maps(tmp_path: Path) -> None:
    parts = Parts(tmp_path)
    parts.add(rows("a", "b", maps=3))
    parts.add(rows("b", "c", maps=3, label="dog"))
    parts.add(failures("d"))
    parts.add(failures("d", "e"))
    assert parts.finished() == {"a", "b", "c", "d", "e"}
    parts.merge()
    found = Counter(name for name, _, _ in manifest(parts))
    assert found == {"a": 3, "b": 3, "c": 3, "d": 1, "e": 1}
    assert len({label for name, _, label in manifest(parts) if name == "b"}) == 1
    assert sorted(number for name, number, _ in manifest(parts) if name == "b") == [0, 1, 2]
    assert files(tmp_path) == ["manifest.parquet"]
    assert parts.finished() == {"a", "b", "c", "d", "e"}


def test_going_on_after_merging(tmp_path: Path) -> None:
    parts = Parts(tmp_path)
    parts.add(rows("a", label="first", maps=2))
    parts.merge()
    first = parts.manifest.stat()
    parts.merge()  # nothing came since
    assert parts.manifest.stat().st_mtime_ns == first.st_mtime_ns
    parts.add(rows("b"))
    parts.add(rows("a", label="later"))
    assert parts.finished() == {"a", "b"}
    parts.merge()
    assert sorted(manifest(parts)) == [("a", 0, "first"), ("a", 1, "first"), ("b", 0, "cat")]


@pytest.mark.parametrize("merged", [False, True])
def test_failures_are_counted_and_can_be_forgotten(tmp_path: Path, merged: bool) -> None:
    parts = Parts(tmp_path)
    parts.add([*rows("a", maps=2), *failures("b")])
    parts.add(failures("c"))
    if merged:
        parts.merge()
    assert parts.failed() == {"b", "c"}
    parts.forget(parts.failed())
    assert parts.failed() == set()
    assert parts.finished() == {"a"}
    parts.add(rows("c"))
    parts.add(failures("b"))
    assert parts.failed() == {"b"}
    parts.merge()
    assert sorted(name for name, _, _ in manifest(parts)) == ["a", "a", "b", "c"]
    assert files(tmp_path) == ["manifest.parquet"]


@pytest.mark.parametrize("merged", [False, True])
def test_images_that_were_asked_for_another_target(tmp_path: Path, merged: bool) -> None:
    parts = Parts(tmp_path)
    parts.add([Row(id=name, asked="1", number=number) for name in "ab" for number in range(2)])
    parts.add([Row(id="c"), Row(id="d"), Row(id="e", asked="7", error="there is no class 7")])
    if merged:
        parts.merge()
    assert parts.asked_otherwise({"a": "1", "b": "1", "e": "7", "f": "1"}) == set()
    assert parts.asked_otherwise({"a": "1", "b": "2", "c": "1"}) == {"b", "c", "e"}
    parts.forget({"b", "e"})
    parts.merge()
    assert sorted(name for name, _, _ in manifest(parts)) == ["a", "a", "c", "d"]


def test_what_it_says_is_written_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def watched(handle: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{handle}").readlink()))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", watched)
    Parts(tmp_path).add(rows("a"))
    assert len(synced) == 2
    assert synced[0].endswith(".tmp")
    assert synced[1] == str(tmp_path / "parts")


@pytest.mark.parametrize("name", ["manifest.parquet", "parts/0123.parquet"])
@pytest.mark.parametrize("kind", ["truncated", "other", "text", "empty", "foreign", "folder"])
def test_a_part_that_cannot_be_read_is_told(tmp_path: Path, name: str, kind: str) -> None:
    parts = Parts(tmp_path)
    parts.add(rows("a", "b"))
    file = tmp_path / name
    whole = next((tmp_path / "parts").iterdir()).read_bytes()
    if kind == "folder":
        file.mkdir()
    elif kind in ("other", "foreign"):
        id_ = "id" if kind == "other" else "name"
        pq.write_table(pa.table({id_: ["a"], "price": [3]}), file)
    else:
        file.write_bytes({"truncated": whole[:-30], "text": b"cats", "empty": b""}[kind])
    forget, asked = partial(parts.forget, {"a"}), partial(parts.asked_otherwise, {})
    for work in (parts.finished, parts.failed, asked, forget, parts.merge):
        with pytest.raises(ConfigError, match=r"cannot be read: .+; move it away") as error:
            work()
        assert str(error.value).startswith(f"{file} cannot")
    assert not list(tmp_path.rglob("*.tmp"))
    (tmp_path / "away").mkdir()
    file.rename(tmp_path / "away" / "it")
    assert parts.finished() == {"a", "b"}


@pytest.mark.slow
def test_merging_takes_little_memory_however_much_there_is(tmp_path: Path) -> None:
    parts, size = Parts(tmp_path), 60_000
    for part in range(40):
        parts.add([Row(id=f"{part} {turn}", map=bytes([turn]) * size) for turn in range(100)])
    memory = pa.proxy_memory_pool(pa.default_memory_pool())
    former = pa.default_memory_pool()
    pa.set_memory_pool(memory)
    try:
        parts.merge()
        parts.add([Row(id="one more", error="no")])
        parts.forget(parts.failed())
        parts.add([Row(id="one more", error="no")])
        parts.merge()
    finally:
        pa.set_memory_pool(former)
    assert len(parts.finished()) == 4001
    assert 0 < memory.max_memory() < 4000 * size / 2

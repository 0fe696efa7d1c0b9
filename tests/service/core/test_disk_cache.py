"""What is kept for the next start: all of it or nothing, and never another user's."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from service.core.disk_cache import OFF, DiskCache
from service.settings import Settings


def test_what_is_written_is_read_by_another_process(tmp_path: Path) -> None:
    kept = DiskCache(tmp_path / "new" / "folder").of("a model")
    assert kept.read("network") is None
    kept.write("network", b"one")
    kept.write("network", b"two")
    again = DiskCache(tmp_path / "new" / "folder")
    assert again.of("a model").read("network") == b"two"
    assert again.of("a model").read("judgement") is None
    assert again.of("another").read("network") is None
    assert (tmp_path / "new" / "folder").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * 40])
def test_a_damaged_file_is_removed(
    damage: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = DiskCache(tmp_path)
    cache.write("key", b"content")
    (file,) = tmp_path.iterdir()
    file.write_bytes(damage)
    assert cache.read("key") is None
    assert "is damaged" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, most_bytes=1000)
    for number, key in enumerate(("first", "second", "third")):
        cache.write(key, b"x" * 260)
        names = {file.name for file in tmp_path.iterdir()}
        for name in names:
            os.utime(tmp_path / name, (number, number))
    assert cache.read("first")  # and so it is the one that was used last
    cache.write("fourth", b"x" * 260)
    assert cache.read("first")
    assert cache.read("fourth")
    assert sum(bool(cache.read(key)) for key in ("second", "third")) == 1
    cache.write("large", b"x" * 501)  # it would leave no room for others
    assert cache.read("large") is None


def test_files_of_other_programs_are_no_part_of_it(tmp_path: Path) -> None:
    """A user may name a folder that holds weights."""
    weights = tmp_path / "my-only-copy.safetensors"
    weights.write_bytes(bytes(2000))
    os.utime(weights, (0, 0))
    cache = DiskCache(tmp_path, most_bytes=1000)
    for key in range(30):
        cache.write(str(key), bytes(100))
    assert weights.stat().st_size == 2000
    assert cache.read("29") == bytes(100)
    assert cache.read("0") is None


@pytest.fixture(autouse=True)
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_another_folder_takes_the_place_of_one_that_cannot_be_used(
    tmp_path: Path, temporary: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.chmod(0o777)
    DiskCache(tmp_path).write("key", b"content")
    assert DiskCache(tmp_path).read("key") == b"content"
    (spare,) = temporary.iterdir()
    assert spare.stat().st_mode & 0o777 == 0o700
    assert not list(tmp_path.iterdir())
    (said, _) = caplog.messages
    assert said == (
        f"the cache {tmp_path} cannot be used: others can write to it; {spare} is used, which a "
        f"new container does not have. Let user {os.geteuid()} own it with mode 0700, name another "
        "folder in GRADCAM_CACHE, or set GRADCAM_CACHE=off"
    )
    spare.chmod(0o777)
    assert DiskCache(tmp_path).read("key") is None
    assert "each start examines and converts its models anew" in caplog.messages[-1]


def test_a_folder_that_others_can_write_to_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    DiskCache(tmp_path).write("key", b"content")
    tmp_path.chmod(0o777)
    cache = DiskCache(tmp_path)
    assert cache.read("key") is None
    assert "others can write to it" in caplog.text


def test_a_folder_of_another_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    DiskCache(tmp_path).write("key", b"content")
    owner = tmp_path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert DiskCache(tmp_path).read("key") is None


def test_without_a_disk_nothing_is_kept_and_nothing_fails(tmp_path: Path, temporary: Path) -> None:
    temporary.rmdir()
    file = tmp_path / "file"
    file.write_text("no folder")
    temporary.write_text("no folder")
    for cache in (OFF, DiskCache(file), DiskCache(file / "below")):
        cache.write("key", b"content")
        assert cache.read("key") is None
    gone = DiskCache(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    gone.write("key", b"content")
    assert gone.read("key") is None


def test_the_folder_is_the_user_s_unless_a_setting_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/of/the/user")
    assert Settings.read({}).cache == Path("/of/the/user/gradcam")
    assert Settings.read({"GRADCAM_CACHE": "/else"}).cache == Path("/else")
    assert Settings.read({"GRADCAM_CACHE": "off"}).cache is None

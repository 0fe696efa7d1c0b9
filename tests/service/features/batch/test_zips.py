"""Images of a batch in a zip."""

from __future__ import annotations

import random
import struct
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest

from service.core.errors import ConfigError, ImageTooLarge, Problem, UndecodableImage
from service.features.batch import inputs
from service.features.batch.inputs import open_inputs
from tests.service.features.batch.laid import ids, lay, refused


def test_a_zip_with_folders(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "photos.ZIP", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.mkdir("b")
        archive.mkdir("folder.jpg")
        for name in ("b/c.jpg", "a.PNG", "b/d/e.webp", "./f.jpg", "read.me"):
            archive.writestr(name, name.rpartition("/")[2])
        for name in ("__MACOSX/._a.PNG", "__MACOSX/b/c.jpg", ".hidden/c.jpg", "b/.c.jpg"):
            archive.writestr(name, "not an image")
    assert ids(tmp_path / "photos.ZIP") == ["./f.jpg", "a.PNG", "b/c.jpg", "b/d/e.webp"]


def test_names_that_lead_out_of_a_zip_lead_nowhere(tmp_path: Path) -> None:
    lay(tmp_path, "secret.jpg")
    (tmp_path / "in").mkdir()
    names = ["../secret.jpg", f"{tmp_path}/secret.jpg", r"..\secret.jpg", "a/../../secret.jpg"]
    with zipfile.ZipFile(tmp_path / "in" / "photos.zip", "w") as archive:
        for name in names:
            archive.writestr(name, "from the zip")
    with open_inputs(str(tmp_path / "in" / "photos.zip")) as found:
        assert found.ids == sorted(names)
        assert {found.read(name) for name in names} == {b"from the zip"}
    assert [each.name for each in (tmp_path / "in").iterdir()] == ["photos.zip"]
    assert (tmp_path / "secret.jpg").read_text() == "secret.jpg"


def test_of_two_entries_of_one_name_the_later_counts(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        archive.writestr("a.jpg", "older")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("a.jpg", "newer")
    with open_inputs(str(tmp_path / "photos.zip")) as found:
        assert found.ids == ["a.jpg"]
        assert found.read("a.jpg") == b"newer"


def test_entries_that_cannot_be_unpacked_leave_the_others(tmp_path: Path) -> None:
    file = tmp_path / "photos.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("corrupt.jpg", "good.jpg", "locked.jpg", "odd.jpg"):
            archive.writestr(name, name * 50)
        entries = {entry.filename: entry for entry in archive.infolist()}
    data = bytearray(file.read_bytes())
    start = entries["corrupt.jpg"].header_offset + 30 + len("corrupt.jpg")
    data[start + 2 : start + 8] = bytes(6)
    for name, offset, value in (("locked.jpg", 8, 1), ("odd.jpg", 10, 77)):  # flags, method
        central = data.rindex(b"PK\x01\x02", 0, data.rindex(name.encode()))
        data[central + offset : central + offset + 2] = struct.pack("<H", value)
        local = entries[name].header_offset + offset - 2
        data[local : local + 2] = struct.pack("<H", value)
    file.write_bytes(data)
    with open_inputs(str(file)) as found:
        assert found.ids == ["corrupt.jpg", "good.jpg", "locked.jpg", "odd.jpg"]
        assert found.read("good.jpg") == b"good.jpg" * 50
        for name, why in (("corrupt", ""), ("locked", ".*encrypted"), ("odd", ".*compression")):
            with pytest.raises(UndecodableImage, match=rf"{name}.jpg cannot be unpacked: {why}"):
                found.read(f"{name}.jpg")


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "LARGEST", 1000)
    file = tmp_path / "photos.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("fits.jpg", bytes(1000))
        archive.writestr("honest.jpg", bytes(100_000))
        archive.writestr("lying.jpg", bytes(100_000))
    data = bytearray(file.read_bytes())
    central = data.rindex(b"PK\x01\x02", 0, data.rindex(b"lying.jpg"))
    data[central + 24 : central + 28] = struct.pack("<I", 100)
    file.write_bytes(data)
    with open_inputs(str(file)) as found:
        assert found.read("fits.jpg") == bytes(1000)
        with pytest.raises(ImageTooLarge, match=r"honest.jpg has 100000 bytes; at most 1000"):
            found.read("honest.jpg")
        with pytest.raises(Problem, match=r"lying.jpg"):
            found.read("lying.jpg")


def test_a_zip_without_images_and_what_is_no_zip_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "empty.zip", "w") as archive:
        archive.writestr("notes.txt", "")
    assert refused(tmp_path / "empty.zip").startswith(f"the zip {tmp_path}/empty.zip has no images")
    lay(tmp_path, "fake.zip")
    assert refused(tmp_path / "fake.zip") == (
        f"{tmp_path}/fake.zip is not a readable zip: File is not a zip file"
    )


def test_however_a_zip_is_broken_there_is_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "photos.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("a.jpg", "b/ü.jpg", "c.png"):
            archive.writestr(name, name * 20)
    whole = file.read_bytes()
    chance = random.Random(0)
    sentences: set[str] = set()
    unpacked = 0
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        file.write_bytes(data[: chance.choice([len(data), chance.randrange(len(data))])])
        try:
            with open_inputs(str(file)) as found:
                for name in found.ids:
                    with suppress(Problem):
                        found.read(name)
                        unpacked += 1
        except ConfigError as error:
            sentences.add(str(error).partition(": ")[0])
    assert unpacked > 100
    assert f"{file} is not a readable zip" in sentences


def test_an_entry_in_bzip2_fails_alone(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("bomb.png", bytes(10_000_000), zipfile.ZIP_BZIP2)
        archive.writestr("fine.png", b"fine", zipfile.ZIP_DEFLATED)
    with open_inputs(str(tmp_path / "a.zip")) as inputs:
        assert inputs.read("fine.png") == b"fine"
        with pytest.raises(UndecodableImage, match="compression is neither none nor deflate"):
            inputs.read("bomb.png")

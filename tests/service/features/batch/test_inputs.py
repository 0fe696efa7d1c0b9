"""Images of a batch in folders."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest

from service.core.errors import UndecodableImage
from service.features.batch.inputs import open_inputs
from tests.service.features.batch.laid import as_nobody, ids, lay, readable_by_nobody, refused


def test_a_folder_with_all_below_it_in_a_fixed_order(tmp_path: Path) -> None:
    lay(tmp_path, "b.png", "a.JPG", "c/d/e.WebP", "c/a.jpeg", "a/z.tiff", "a.b/1.gif", "10.bmp")
    lay(tmp_path, "2.jpe", "3.jfif", "4.tif", "5.avif")
    lay(tmp_path, "notes.txt", "jpg", "x.jpg.bak", "c/film.mp4", "c/.jpg")
    expected = ["10.bmp", "2.jpe", "3.jfif", "4.tif", "5.avif", "a.JPG", "a.b/1.gif", "a/z.tiff"]
    assert ids(tmp_path) == [*expected, "b.png", "c/a.jpeg", "c/d/e.WebP"]


def test_what_the_system_hides_is_no_image(tmp_path: Path) -> None:
    lay(tmp_path, ".cat.jpg", "._cat.jpg", ".thumbnails/cat.jpg", "a/.git/b/cat.jpg", "cat.jpg")
    lay(tmp_path, "__MACOSX/._cat.jpg", "__MACOSX/cat.jpg", "a/__MACOSX_review.jpg")
    assert ids(tmp_path) == ["a/__MACOSX_review.jpg", "cat.jpg"]


def test_a_hidden_folder_that_is_named_is_meant(tmp_path: Path) -> None:
    lay(tmp_path / ".hidden", "cat.jpg")
    assert ids(tmp_path / ".hidden") == ["cat.jpg"]
    assert ids(f"{tmp_path}/.hidden/*.jpg") == ["cat.jpg"]


def test_links_to_files_count_and_links_to_folders_do_not(tmp_path: Path) -> None:
    elsewhere = lay(tmp_path / "elsewhere", "dog.jpg")
    folder = lay(tmp_path / "photos", "cat.jpg")
    (folder / "dog.jpg").symlink_to(elsewhere / "dog.jpg")
    (folder / "nothing.jpg").symlink_to(elsewhere / "none.jpg")
    (folder / "elsewhere").symlink_to(elsewhere)
    (folder / "elsewhere.jpg").symlink_to(elsewhere)
    (folder / "round").symlink_to(folder)
    (folder / "round.jpg").symlink_to(folder / "round.jpg")
    assert ids(folder) == ["cat.jpg", "dog.jpg"]


def test_folders_and_devices_called_like_images_are_none(tmp_path: Path) -> None:
    lay(tmp_path, "cat.jpg", "album.jpg/dog.png")
    os.mkfifo(tmp_path / "pipe.jpg")
    assert ids(tmp_path) == ["album.jpg/dog.png", "cat.jpg"]


def test_a_name_that_is_no_text_has_an_id_that_is(tmp_path: Path) -> None:
    for name in (b"caf\xe9.jpg", b"caf\xc3\xa9.jpg"):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_bytes(name)
    for source in (str(tmp_path), f"{tmp_path}/*.jpg"):
        with open_inputs(source) as found:
            assert found.ids == [r"caf\xe9.jpg", "café.jpg"]
            assert [found.read(name) for name in found.ids] == [b"caf\xe9.jpg", b"caf\xc3\xa9.jpg"]
            pa.array(found.ids, pa.string())


def test_two_names_that_would_have_one_id_are_told(tmp_path: Path) -> None:
    lay(tmp_path, r"caf\xe9.jpg")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.jpg")).write_bytes(b"")
    assert r"caf\xe9.jpg" in refused(tmp_path)


def test_a_folder_without_images_is_refused(tmp_path: Path) -> None:
    lay(tmp_path, "notes.txt")
    said = refused(tmp_path)
    assert said.startswith(f"the folder {tmp_path} has no images (.jpg, .jpeg,")


def test_files_that_are_no_images_by_their_suffix_are_counted_and_named(tmp_path: Path) -> None:
    lay(tmp_path, "photos/cat.jpg", "photos/cat.heic", "photos/cat.jp2", "photos/x/cat", ".hidden")
    said = "3 files are left out without the suffix of a readable image: "
    with open_inputs(str(tmp_path / "photos")) as found:
        assert (found.ids, found.warning) == (["cat.jpg"], f"{said}cat.heic, cat.jp2, x/cat")
    with open_inputs(f"{tmp_path}/photos/*.jpg") as found:
        assert found.warning == "", "the pattern leaves them out"
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        for name in ("cat.jpg", "a.heic", "b.heic", "c.heic", "d.heic", "__MACOSX/cat", "x/"):
            archive.writestr(name, b"")
    with open_inputs(str(tmp_path / "photos.zip")) as found:
        assert found.ids == ["cat.jpg"]
        assert found.warning == said.replace("3", "4") + "a.heic, b.heic, c.heic and 1 more"
    (tmp_path / "photos" / "cat.jpg").unlink()
    assert refused(tmp_path / "photos").endswith("cat.heic, cat.jp2, x/cat")


def test_a_file_that_may_not_be_read_is_its_own_problem() -> None:
    with readable_by_nobody() as folder:
        lay(folder, "cat.jpg", "secret.jpg")
        (folder / "secret.jpg").chmod(0)
        with as_nobody(), open_inputs(str(folder)) as found:
            assert found.ids == ["cat.jpg", "secret.jpg"]
            assert found.read("cat.jpg") == b"cat.jpg"
            with pytest.raises(UndecodableImage, match=r"secret.jpg cannot be read: Permission"):
                found.read("secret.jpg")


def test_folders_that_may_not_be_looked_into_are_passed_over_and_told() -> None:
    with readable_by_nobody() as folder:
        lay(folder, "cat.jpg", "locked/dog.jpg", "x/listed/dog.jpg", "x/.locked/dog.jpg")
        (folder / "locked").chmod(0o600)
        (folder / "x" / ".locked").chmod(0o600)  # there would be no image in it
        (folder / "x" / "listed").chmod(0o644)  # its names can be had, and nothing else
        for source in (str(folder), f"{folder}/**/*.jpg"):
            with as_nobody(), open_inputs(source) as found:
                assert found.ids == ["cat.jpg"]
                assert found.warning == (
                    "2 folders cannot be looked into and are passed over, the first is "
                    f"{folder}/locked"
                )
        with as_nobody(), open_inputs(f"{folder}/*.jpg") as found:
            assert found.warning == ""
        with as_nobody():
            said = refused(f"{folder}/x/*/*.jpg")
        told = f"1 folder cannot be looked into and is passed over: {folder}/x/listed"
        assert said.startswith("no image fits ")
        assert said.endswith(f"; {told}")


def test_a_file_that_has_gone_meanwhile_is_its_own_problem(tmp_path: Path) -> None:
    lay(tmp_path, "cat.jpg", "dog.jpg")
    with open_inputs(str(tmp_path)) as found:
        (tmp_path / "dog.jpg").unlink()
        assert found.read("cat.jpg") == b"cat.jpg"
        with pytest.raises(UndecodableImage, match=r"dog.jpg cannot be read: No such file"):
            found.read("dog.jpg")


def test_patterns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay(tmp_path / "photos", "a.jpg", "b.png", "x/c.jpg", "x/y/d.jpg", "x/.e.jpg", "x/f.txt")
    assert ids(f"{tmp_path}/photos/*.jpg") == ["a.jpg"]
    assert ids(f"{tmp_path}/photos/**/*.jpg") == ["a.jpg", "x/c.jpg", "x/y/d.jpg"]
    assert ids(f"{tmp_path}/photos/**/*") == ["a.jpg", "b.png", "x/c.jpg", "x/y/d.jpg"]
    assert ids(f"{tmp_path}/photos/**") == ["a.jpg", "b.png", "x/c.jpg", "x/y/d.jpg"]
    assert ids(f"{tmp_path}/photos/*/**") == ["x/c.jpg", "x/y/d.jpg"]
    assert ids(f"{tmp_path}/photos/**/x/**/*.jpg") == ["x/c.jpg", "x/y/d.jpg"]
    assert ids(f"{tmp_path}/photos/**/c.jpg") == ["x/c.jpg"]
    assert ids(f"{tmp_path}/photos/*/../a.jpg") == ["x/../a.jpg"]
    assert ids(f"{tmp_path}/photos/x/?.*") == ["c.jpg"]
    assert ids(f"{tmp_path}/photos/[ab].*") == ["a.jpg", "b.png"]
    assert ids(f"{tmp_path}/p*/x/*") == ["photos/x/c.jpg"]
    monkeypatch.chdir(tmp_path)
    assert ids("photos/**/d.jpg") == ["x/y/d.jpg"]
    assert ids("**/d.jpg") == ["photos/x/y/d.jpg"]
    assert ids("./p*/a.jpg") == ["photos/a.jpg"]
    assert ids("photos/../photos/x/*.jpg") == ["c.jpg"]


def test_a_name_with_a_patterns_signs_that_is_there_is_no_pattern(tmp_path: Path) -> None:
    lay(tmp_path, "holiday [2020]/cat.jpg", "what?.jpg")
    assert ids(tmp_path / "holiday [2020]") == ["cat.jpg"]
    assert ids(tmp_path / "what?.jpg") == ["what?.jpg"]


def test_a_pattern_that_fits_nothing_is_refused(tmp_path: Path) -> None:
    lay(tmp_path, "notes.txt")
    assert refused(f"{tmp_path}/*").startswith(f"no image fits {tmp_path}/* (.jpg,")
    assert refused(f"{tmp_path}/no/such/**/*.jpg").startswith("no image fits ")


@pytest.mark.parametrize("pattern", ["**.jpg", "x**/a.jpg", "***/*.jpg"])
def test_a_pattern_that_is_none_is_refused(tmp_path: Path, pattern: str) -> None:
    lay(tmp_path, "a.txt", "x1/a.txt")
    assert f"{tmp_path}/{pattern}" in refused(f"{tmp_path}/{pattern}")


def test_what_a_batch_draws_is_none_of_its_images(tmp_path: Path) -> None:
    folder = lay(tmp_path / "photos", "a.jpg", "out.jpg", "out/pictures/a.jpg", "x/b.jpg")
    (tmp_path / "link").symlink_to(folder)
    (folder / "x" / "way").symlink_to(folder / "out")
    kept = ["a.jpg", "out.jpg", "x/b.jpg"]
    for besides in (folder / "out", tmp_path / "link" / "out", folder / "x" / ".." / "out"):
        for source in (folder, tmp_path / "link", f"{folder}/**/*.jpg"):
            assert ids(source, besides) == kept
        assert ids(f"{tmp_path}/photos/*.jpg", besides) == kept[:2]
        assert "no image fits" in refused(f"{folder}/x/*/pictures/*", besides)
    said = refused(folder / "out" / "pictures", folder / "out")
    assert said.endswith(f"; what is below {folder}/out is left out")
    assert ids(folder / "out" / "pictures" / "a.jpg", folder / "out") == ["a.jpg"]


def test_a_pattern_follows_links_to_folders_where_it_names_them(tmp_path: Path) -> None:
    elsewhere = lay(tmp_path / "elsewhere", "dog.jpg")
    folder = lay(tmp_path / "photos", "cat.jpg")
    (folder / "link").symlink_to(elsewhere)
    assert ids(f"{folder}/*/*.jpg") == ["link/dog.jpg"]
    assert ids(f"{folder}/**/*.jpg") == ["cat.jpg"]


def test_an_input_of_no_letters_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay(tmp_path, "cat.jpg")
    monkeypatch.chdir(tmp_path)
    assert refused("").startswith("INPUT is empty; ")
    assert ids(".") == ["cat.jpg"]


def test_a_single_image(tmp_path: Path) -> None:
    lay(tmp_path, "Cat.JPG")
    assert ids(tmp_path / "Cat.JPG") == ["Cat.JPG"]


@pytest.mark.parametrize("name", ["notes.txt", "no such folder", "photos.tar.gz", "a" * 300])
def test_nonsense_is_refused(tmp_path: Path, name: str) -> None:
    if len(name) < 100 and "." in name:
        lay(tmp_path, name)
    said = refused(tmp_path / name)
    assert f"{name} is neither a folder, a pattern like 'photos/**/*.jpg', a .zip, nor a" in said

"""What may be said after `gradcam batch`, with a model so small that it takes no time."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest
from PIL import Image

from cam import spearman
from service.features.batch import run as module
from service.loading.served_model import load
from tests.service.conftest import noise
from tests.service.features.batch.batches import Shell, catalog, rows, small_photos
from tests.service.features.batch.laid import as_nobody, lay, readable_by_nobody
from tests.zoo.convolutional import small
from tests.zoo.hostile import STUCK


@pytest.fixture
def gradcam(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(monkeypatch, capsys)


@pytest.fixture
def models(tmp_path: Path) -> str:
    return catalog(tmp_path)


def test_what_failed_is_tried_again_where_that_is_asked_for(
    gradcam: Shell, models: str, tmp_path: Path
) -> None:
    folder, output = small_photos(tmp_path / "photos", 5), tmp_path / "out"
    (folder / "late.png").write_bytes(b"not yet")
    line = (folder, "--output", output, "--models", models)
    code, said = gradcam(*line)
    assert (code, said.startswith("5 of 6 images explained, 1 failed: ")) == (1, True)
    noise(32, 32, 99).save(folder / "late.png")
    manifest = (output / "manifest.parquet").read_bytes()
    code, said = gradcam(*line)
    assert (code, said.startswith("5 of 6 images explained, 1 failed: ")) == (1, True)
    assert (output / "manifest.parquet").read_bytes() == manifest
    before = {file: file.stat().st_mtime_ns for file in (output / "pictures").iterdir()}
    code, said = gradcam(*line, "--retry-failed")
    assert (code, said.startswith("6 of 6 images explained, 0 failed: ")) == (0, True)
    assert [row["id"] for row in rows(output)] == sorted(each.name for each in folder.iterdir())
    assert before == {file: file.stat().st_mtime_ns for file in before}


def test_images_that_came_later_are_done_and_those_that_went_count_no_more(
    gradcam: Shell, models: str, tmp_path: Path
) -> None:
    folder, output = small_photos(tmp_path / "photos", 3), tmp_path / "out"
    for name in ("x.png", "y.png"):
        (folder / name).write_text("no image")
    line = (folder, "--output", output, "--models", models)
    assert gradcam(*line)[0] == 1
    for name in ("x.png", "y.png"):
        (folder / name).unlink()
    noise(32, 32, 99).save(folder / "later.png")
    code, said = gradcam(*line)
    assert said.startswith("4 of 4 images explained, 0 failed: ")
    assert code == 0
    assert len(rows(output)) == 6


def test_an_output_within_the_input_is_none_of_it(
    gradcam: Shell, models: str, tmp_path: Path
) -> None:
    folder = small_photos(tmp_path / "photos", 3)
    line = (folder, "--output", folder / "out", "--models", models)
    for _ in range(2):
        code, said = gradcam(*line)
        assert said.startswith("3 of 3 images explained, 0 failed: ")
        assert code == 0
    assert [row["id"] for row in rows(folder / "out")] == ["000.png", "001.png", "002.png"]


def test_parameters_and_several_targets(gradcam: Shell, models: str, tmp_path: Path) -> None:
    folder, output = small_photos(tmp_path / "photos", 3), tmp_path / "out"
    code, said = gradcam(
        *(folder, "--output", output, "--models", models, "--target", 2, "--target", "0"),
        *("--layer", "conv1", "--layer", "conv2", "--method", "layercam", "--fit", "squash"),
        *("--output", "mask", "--set", "size=model", "--pictures", "png"),
    )
    assert code == 0, said
    found = rows(output)
    assert [(row["id"], row["number"]) for row in found] == [
        (f"00{turn}.png", number) for turn in range(3) for number in range(4)
    ]
    said_of = [(row["target_index"], row["layer"]) for row in found[:4]]
    assert said_of == [(2, "conv1"), (2, "conv2"), (0, "conv1"), (0, "conv2")]
    assert {row["method"] for row in found} == {"layercam"}
    assert [row["picture"] for row in found[:2]] == [
        *("pictures/000.png.png", "pictures/000.png.1.png")
    ]
    for row in found:
        with Image.open(output / row["picture"]) as picture:
            assert (picture.format, picture.mode, picture.size) == ("PNG", "L", (8, 8))
            gray = np.asarray(picture)
        if not row["warning"]:
            assert (gray[row["peak_y"], row["peak_x"]], gray.max()) == (255, 255)


def test_methods_are_compared(gradcam: Shell, models: str, tmp_path: Path) -> None:
    photos = small_photos(tmp_path / "photos", 2)
    output = tmp_path / "out"
    line = (photos, "--output", output, "--models", models, "--set", "normalize=none")
    methods = ("--method", "gradcam", "--method", "fem", "--method", "occlusion")
    code, said = gradcam(*line, *methods, "--report", tmp_path / "report.html")
    assert code == 0, said
    found = rows(output)
    assert [(row["id"], row["method"]) for row in found] == [
        (f"00{turn}.png", name) for turn in range(2) for name in ("gradcam", "fem", "occlusion")
    ]
    assert {row["layer"] for row in found} == {"relu2", "input"}
    for start in (0, 3):
        some = found[start : start + 3]
        maps = [
            np.frombuffer(row["map"], "<f4").reshape(row["map_height"], row["map_width"])
            for row in some
        ]
        for turn, row in enumerate(some):
            others = [spearman(maps[turn], each) for at, each in enumerate(maps) if at != turn]
            known = [each for each in others if each is not None]
            expected = pytest.approx(sum(known) / len(known), abs=1e-6) if known else None
            assert row["agreement_mean"] == expected
    assert any(row["agreement_mean"] is not None for row in found)
    assert "Where the methods disagree most" in (tmp_path / "report.html").read_text()


def test_what_made_a_table_is_in_it(gradcam: Shell, models: str, tmp_path: Path) -> None:
    photos, tables = small_photos(tmp_path / "photos", 3), []
    for name in ("one", "two"):
        output = tmp_path / name
        line = (photos, "--output", output, "--models", models, "--pictures", "none")
        assert gradcam(*line, "--method", "layercam")[0] == 0
        tables.append(output / "manifest.parquet")
    # The models of these tests have a fixed layout.
    assert tables[0].read_bytes() == tables[1].read_bytes()
    told = json.loads(pq.read_schema(tables[0]).metadata[b"gradcam-service"])
    assert told == json.loads((tmp_path / "one" / "run.json").read_text())
    assert told["parameters"] == {"method": "layercam", "fit": "squash"}
    made = told["made_with"]
    assert (made["parameters"]["fit"], made["parameters"]["normalize"]) == ("squash", "minmax")
    assert (made["torch"], made["device"], made["dtype"]) == (version("torch"), "cpu", "float32")
    assert made["input"]["height"] == 8
    assert made["layout"] in ("contiguous", "channels-last")


def test_own_targets_of_a_table(gradcam: Shell, models: str, tmp_path: Path) -> None:
    small_photos(tmp_path / "photos", 3)
    table = tmp_path / "table.csv"
    lines = ["a,photos/000.png,2", "b,photos/000.png,", "d,none.png,1", "f,photos/001.png,0"]
    table.write_text("\n".join(["id,path,target", *lines]))
    output = tmp_path / "out"
    line = (table, "--output", output, "--models", models, "--target", 1, "--pictures", "none")
    code, said = gradcam(*line)
    assert code == 1
    assert said.startswith("3 of 4 images explained, 1 failed: ")
    found = {row["id"]: row for row in rows(output)}
    assert [found[name]["target_index"] for name in "abdf"] == [2, 1, None, 0]
    assert [found[name]["correct"] for name in "adf"] == [
        found["a"]["predicted_index"] == 2,
        None,
        found["f"]["predicted_index"] == 0,
    ]
    assert found["a"]["predicted_index"] == found["b"]["predicted_index"] is not None
    assert "none.png cannot be read: No such file" in found["d"]["error"]
    assert not (output / "pictures").exists()
    assert found["a"]["picture"] is None


def test_folders_are_true_classes_where_that_is_said(
    gradcam: Shell, models: str, tmp_path: Path
) -> None:
    photos, output = tmp_path / "photos", tmp_path / "out"
    photos.mkdir()
    for each in ("0", "2"):
        small_photos(photos / each, 2)
    (photos / "2" / "more").mkdir()
    noise(32, 32, 99).save(photos / "2" / "more" / "x.png")
    line = ("--output", output, "--models", models, "--pictures", "none", "--true-classes")
    report = tmp_path / "report.html"
    assert gradcam(photos, *line, "--report", report)[0] == 0
    found = {row["id"]: row for row in rows(output)}
    assert [row["target_index"] for row in found.values()] == [0, 0, 2, 2, 2]
    for row in found.values():
        assert row["correct"] is (row["predicted_index"] == row["target_index"])
    wrong = [row for row in found.values() if not row["correct"]]
    text = report.read_text()
    assert wrong, "random weights are not always right"
    assert "Predicted as named" in text
    assert text.index('<section id="wrong"') < text.index('<section id="classes"')
    code, said = gradcam(photos / "2", *line[:2], *line[2:])
    assert (code, "'000.png' (2 of 3 images) lies in none" in said) == (2, True)
    (photos / "2").rename(photos / "tabby")
    code, said = gradcam(photos, "--output", tmp_path / "other", *line[2:])
    assert code == 2
    assert "1 of 2 different targets cannot be explained: 'tabby' (3 images): " in said


def test_all_targets_of_a_table_are_looked_at_first(
    gradcam: Shell, models: str, tmp_path: Path
) -> None:
    small_photos(tmp_path / "photos", 3)
    table = tmp_path / "table.csv"
    targets = ("2", "tabby", "3", "3", "0")
    lines = [f"{each},photos/000.png,{target}" for each, target in enumerate(targets)]
    table.write_text("\n".join(["id,path,target", *lines]))
    code, said = gradcam(table, "--output", tmp_path / "out", "--models", models)
    assert code == 2
    assert "2 of 4 different targets cannot be explained: 'tabby' (1 image): " in said
    assert "'3' (2 images): class index 3 is out of range; model 'tiny' has classes 0 to 2" in said
    assert not (tmp_path / "out").exists()


def test_a_target_that_is_corrected_in_a_table_counts(
    gradcam: Shell, models: str, tmp_path: Path
) -> None:
    small_photos(tmp_path / "photos", 4)
    table, output = tmp_path / "table.csv", tmp_path / "out"
    line = (table, "--output", output, "--models", models)

    def explained(*targets: str) -> dict[str, tuple[str | None, int | None, int]]:
        """Of each image the target asked for, the class explained, when it was drawn."""
        lines = [f"photos/00{turn}.png,{each}" for turn, each in enumerate(targets)]
        table.write_text("\n".join(["path,target", *lines]))
        gradcam(*line)
        drawn = {
            row["id"]: (output / row["picture"]).stat().st_mtime_ns if row["picture"] else 0
            for row in rows(output)
        }
        return {
            row["id"]: (row["asked"], row["target_index"], drawn[row["id"]]) for row in rows(output)
        }

    first = list(explained("1", "0", "2", "").values())
    assert [each[:2] for each in first[:3]] == [("1", 1), ("0", 0), ("2", 2)]
    assert first[3][0] is None
    second = list(explained("1", "2", "0", "1").values())
    assert second[0] == first[0]
    assert [each[:2] for each in second[1:]] == [("2", 2), ("0", 0), ("1", 1)]
    assert all(now[2] > then[2] for then, now in zip(first[1:], second[1:], strict=True))


def test_a_target_that_no_image_needs_is_not_looked_at(
    gradcam: Shell, models: str, tmp_path: Path
) -> None:
    small_photos(tmp_path / "photos", 2)
    table, output = tmp_path / "table.csv", tmp_path / "out"
    line = (table, "--output", output, "--models", models, "--target", "kitten")
    table.write_text("path,target\nphotos/000.png,1\nphotos/001.png,\n")
    assert gradcam(*line)[0] == 2
    table.write_text("path,target\nphotos/000.png,1\nphotos/001.png,2\n")
    code, said = gradcam(*line, "--layer", "conv9")
    assert said.startswith("gradcam: model 'tiny' has no layer 'conv9'")
    assert code == 2
    assert not output.exists()
    assert gradcam(*line)[0] == 0


def test_a_zip_and_names_of_all_kinds(gradcam: Shell, models: str, tmp_path: Path) -> None:
    folder = small_photos(tmp_path / "photos", 1)
    photo = (folder / "000.png").read_bytes()
    names = ["../../a.png", "/a.png", "a.png", "a.png.jpg/b.png", "[bold]/é\n.png", "x" * 251]
    names[-1] += ".png"
    with ZipFile(tmp_path / "photos.zip", "w") as archive:
        for name in names:
            archive.writestr(name, photo)
    output = tmp_path / "out [bold] [/x]"
    code, said = gradcam(tmp_path / "photos.zip", "--output", output, "--models", models)
    assert code == 0, said
    assert said == f"6 of 6 images explained, 0 failed: {output}/manifest.parquet\n"
    assert [row["id"] for row in rows(output)] == sorted(names)
    assert len({row["picture"] for row in rows(output)}) == 6
    for row in rows(output):
        assert (output / row["picture"]).is_relative_to(output / "pictures")
        assert (output / row["picture"]).is_file()
    assert not (tmp_path / "a.png").exists()


def test_a_name_that_is_no_text(gradcam: Shell, models: str, tmp_path: Path) -> None:
    folder = small_photos(tmp_path / "photos", 1)
    (folder / "000.png").rename(os.fsdecode(os.fsencode(folder) + b"/caf\xe9.png"))
    code, said = gradcam(folder, "--output", tmp_path / "out", "--models", models)
    assert code == 0, said
    assert [row["id"] for row in rows(tmp_path / "out")] == [r"caf\xe9.png"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "opacity"], "--set opacity: it should be NAME=VALUE"),
        (["--opacity", "2"], "opacity is '2': it should be a number from 0 to 1, or heat"),
        (["--set", "colour=red"], "there is no parameter 'colour'; the parameters are "),
        (["--set", "=red"], "there is no parameter ''; the parameters are "),
        (["--output", "values"], "output=values is not a picture"),
        (["--output", "other"], "--folder is needed: the folder for pictures and manifest"),
        (["--folder", "other"], "output is '{output}': it should be 'overlay', 'heatmap',"),
        (["--pictures", "gif"], "--pictures=gif: it should be jpg, png, webp, none"),
        (["--method", "gradcam2"], "there is no method 'gradcam2'; the methods are gradcam,"),
        (["--method", "rollout"], "model 'tiny' cannot do rollout: it needs a transformer"),
        (["--target", "kitten"], "the model has no labels, so no class is called 'kitten'"),
        (["--target", "0", "--target", "3"], "class index 3 is out of range; model 'tiny' has"),
        (["--layer", "conv9"], "model 'tiny' has no layer 'conv9'; the nearest are "),
        (["--signed", "--method", "rise"], "rise has nothing below 0 to show;"),
        (["--model", "resnet"], "there is no model 'resnet'; the models are tiny"),
        (["--models", "missing.toml"], "missing.toml: cannot be read"),
    ],
)
def test_a_mistake_is_a_sentence_and_exit_code_2(
    gradcam: Shell, models: str, tmp_path: Path, arguments: list[str], words: str
) -> None:
    folder, output = small_photos(tmp_path / "photos", 1), tmp_path / "out"
    code, said = gradcam(folder, "--output", output, "--models", models, *arguments)
    assert code == 2
    assert said.startswith(f"gradcam: {words.format(output=str(output)[:80])}")
    assert said.count("\n") == 1
    assert not output.exists()


@pytest.mark.parametrize(
    ("report", "words"),
    [
        ("photos", "photos is a folder; it should be a file"),
        (
            "out/manifest.parquet",
            "out/manifest.parquet is a file of the batch itself; name another",
        ),
        ("out/../out/run.json", "run.json is a file of the batch itself; name another file"),
        (
            "link/pictures/000.png.jpg",
            "000.png.jpg is a file of the batch itself; name another file",
        ),
        ("out/parts", "out/parts is a file of the batch itself; name another file"),
    ],
)
def test_a_report_in_a_place_that_is_taken_is_refused(
    gradcam: Shell, models: str, tmp_path: Path, report: str, words: str
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "out")
    line = (small_photos(tmp_path / "photos", 1), "--output", tmp_path / "out", "--models", models)
    code, said = gradcam(*line, "--report", tmp_path / report)
    assert code == 2
    assert said.startswith(f"gradcam: --report={tmp_path}/")
    assert words in said
    assert not (tmp_path / "out").exists()


def test_a_report_that_cannot_be_written_is_told(
    gradcam: Shell, models: str, tmp_path: Path
) -> None:
    line = (small_photos(tmp_path / "photos", 1), "--output", tmp_path / "out", "--models", models)
    for report, why in (("tiny.toml/x.html", "File exists"), ("x" * 300, "File name too long")):
        code, said = gradcam(*line, "--report", tmp_path / report)
        assert said.startswith("1 of 1 image explained, 0 failed: ")
        assert said.endswith(f"\ngradcam: {tmp_path}/{report} cannot be written: {why}\n")
        assert code == 2
    assert gradcam(*line, "--report", tmp_path / "out" / "report.html")[0] == 0


def test_a_mistake_in_input_or_output_is_one_too(
    gradcam: Shell, models: str, tmp_path: Path
) -> None:
    folder = small_photos(tmp_path / "photos", 1)
    full = ("--output", folder, "--models", models)
    assert gradcam(tmp_path / "none", *full)[1].startswith(f"gradcam: {tmp_path}/none is neither")
    code, said = gradcam(folder, *full)
    assert code == 2
    assert said.endswith(f"; what is below {folder} is left out\n")
    thesis = small_photos(tmp_path / "thesis", 1)
    code, said = gradcam(folder, "--output", thesis, "--models", models)
    assert code == 2
    assert said == f"gradcam: {thesis} is not empty, and no batch has begun there\n"
    line = (folder, "--output", tmp_path / "out", "--models", models)
    assert gradcam(*line)[0] == 0
    code, said = gradcam(folder / "*.png", *line[1:])
    assert code == 2
    assert said.startswith(f"gradcam: {tmp_path}/out holds a batch with source {folder}, and this")
    code, said = gradcam(*line, "--target", 1)
    assert code == 2
    assert said.startswith(f"gradcam: {tmp_path}/out holds a batch with parameters {{")
    assert "'target': ['1']" in said


def test_folders_that_were_passed_over_are_told(gradcam: Shell) -> None:
    with readable_by_nobody() as folder:
        folder.chmod(0o777)
        lay(small_photos(folder / "photos", 1), "locked/cat.png")
        (folder / "photos" / "locked").chmod(0)
        line = (folder / "photos", "--output", folder / "out", "--models", catalog(folder))
        with as_nobody():
            code, said = gradcam(*line)
        (folder / "photos" / "locked").chmod(0o755)
    assert code == 0, said
    told, counted = said.splitlines()
    assert told.startswith("1 folder cannot be looked into and is passed over: ")
    assert told.endswith("/photos/locked")
    assert counted.startswith("1 of 1 image explained")


@contextmanager
def mounted(folder: Path, size: str) -> Iterator[None]:
    """A disk of that size."""
    folder.mkdir()
    line = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    try:
        done = subprocess.run(line, capture_output=True, text=True)
    except OSError as error:
        pytest.skip(f"no small disk can be had: {error}")
    if done.returncode:
        pytest.skip(f"no small disk can be had: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize(("form", "part_rows"), [("png", 500), ("png", 4), ("none", 1)])
def test_a_full_disk_stops_it_with_a_sentence_and_it_goes_on_when_there_is_room(
    gradcam: Shell,
    models: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    part_rows: int,
) -> None:
    monkeypatch.setattr(module, "PART_ROWS", part_rows)
    folder, disk = small_photos(tmp_path / "photos", 40, size=100), tmp_path / "disk"
    line = (folder, "--output", disk / "out", "--models", models, "--pictures", form)
    with mounted(disk, "256k"):
        code, said = gradcam(*line)
        assert code == 2
        assert said.startswith(f"gradcam: {disk}/out/")
        assert "No space left on device; the same command goes on from here\n" in said
        assert said.count("\n") == 1
        assert not list(disk.rglob("*.tmp"))
        code, said = gradcam(*line)  # there is no more room now
        assert code == 2
        subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)
        code, said = gradcam(*line)
        assert code == 0, said
        assert [row["id"] for row in rows(disk / "out")] == [f"{turn:03}.png" for turn in range(40)]
        for row in rows(disk / "out"):
            if row["picture"]:
                with Image.open(disk / "out" / row["picture"]) as picture:
                    picture.load()


def test_a_short_queue_refuses_no_image(
    gradcam: Shell, models: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADCAM_MAX_QUEUE", "1")
    folder = small_photos(tmp_path / "photos", 40)
    code, said = gradcam(folder, "--output", tmp_path / "out", "--models", models)
    assert code == 0, said


@pytest.mark.slow
def test_a_worker_that_hangs_is_replaced_and_no_image_fails_for_it(
    gradcam: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADCAM_HANG_SECONDS", "2")
    STUCK.clear()
    folder = small_photos(tmp_path / "photos", 40)
    Image.new("RGB", (32, 32), "white").save(folder / "005.png")
    models = catalog(tmp_path, "stuck_once", max_batch=4)
    code, said = gradcam(folder, "--output", tmp_path / "out", "--models", models)
    assert STUCK.is_set()
    assert "40 of 40 images explained, 0 failed" in said
    assert code == 0


@pytest.mark.slow
def test_a_model_that_stays_dead_stops_it_and_no_image_fails_for_it(
    gradcam: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADCAM_HANG_SECONDS", "0.5")
    monkeypatch.setattr("service.local.session.REVIVAL_SECONDS", 0.2)
    STUCK.clear()
    folder = small_photos(tmp_path / "photos", 10)
    Image.new("RGB", (32, 32), "white").save(folder / "005.png")
    models = catalog(tmp_path, "stuck_once", max_batch=4)
    line = (folder, "--output", tmp_path / "out", "--models", models)
    with monkeypatch.context() as patched:
        loads = [load]  # the second time there is none
        patched.setattr(
            "service.engine.lifecycle.load", lambda entry, cache: loads.pop()(entry, cache)
        )
        code, said = gradcam(*line)
    assert code == 2
    assert said.splitlines()[-1].endswith("; the same command goes on from here")
    code, said = gradcam(*line)
    assert "10 of 10 images explained, 0 failed" in said


def test_the_table_says_what_the_model_used(gradcam: Shell, models: str, tmp_path: Path) -> None:
    """Of a head that averages positions before a linear layer, the terms of the logit."""
    folder = small_photos(tmp_path / "photos", 3)
    code, said = gradcam(folder, "--output", tmp_path / "out", "--models", models)
    assert code == 0, said
    for row in rows(tmp_path / "out"):
        bias = small(seed=4).head.bias[row["target_index"]].item()
        terms = np.frombuffer(row["used"], "<f2").astype(float)
        assert terms.sum() + bias == pytest.approx(row["target_score"], abs=2e-3)
        assert row["mode"] in ("exact", "fast")


def test_threads_that_were_there_before_are_not_waited_for(
    gradcam: Shell, models: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endings: list[int] = []
    monkeypatch.setattr(os, "_exit", endings.append)
    folder = small_photos(tmp_path / "photos", 1)
    enough = threading.Event()
    thread = threading.Thread(target=enough.wait)
    thread.start()
    try:
        code, said = gradcam(folder, "--output", tmp_path / "out", "--models", models)
    finally:
        enough.set()
        thread.join()
    assert code == 0, said
    assert not endings


@pytest.mark.slow
def test_two_thousand_images_take_no_more_memory_than_a_few_hundred(
    gradcam: Shell, models: str, tmp_path: Path
) -> None:
    small_photos(tmp_path / "photos", 20, size=200)
    grown = []
    for count in (300, 2000):
        table = tmp_path / f"{count}.csv"
        paths = (f"{turn},photos/{turn % 20:03}.png\n" for turn in range(count))
        table.write_text("id,path\n" + "".join(paths))
        code, said = gradcam(
            *(table, "--output", tmp_path / f"{count}", "--models", models, "--pictures", "none")
        )
        assert code == 0, said
        assert len(rows(tmp_path / f"{count}")) == count
        grown.append(psutil.Process().memory_info().rss)
    # A photo and its map are 280 kB: were they all kept, it would be half a gigabyte.
    assert grown[1] - grown[0] < 60e6


def test_what_the_decoder_warns_of_is_one_line_and_in_the_manifest(
    gradcam: Shell, models: str, tmp_path: Path
) -> None:
    """Of three files with a broken EXIF block and one without."""
    folder, output = small_photos(tmp_path / "photos", 1), tmp_path / "out"
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "x" * 50
    for name in ("a", "b", "c"):
        noise(32, 32).save(folder / f"{name}.jpg", exif=exif.tobytes()[:40])
    code, said = gradcam(folder, "--output", output, "--models", models)
    assert (code, said.startswith("4 of 4 images explained, 0 failed: ")) == (0, True)
    assert "The decoder warned of 3 files; the column 'warning' says of what." in said
    assert "UserWarning" not in said
    for row in rows(output):
        told = row["warning"] or ""
        assert ("the decoder says: Corrupt EXIF data" in told) == row["id"].endswith(".jpg")
    assert warnings.showwarning.__module__ != "service.pipeline.images"

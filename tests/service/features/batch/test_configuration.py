"""What a batch is asked to do, and whether a folder holds the same batch."""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest

from service.core.errors import (
    ConfigError,
    InvalidParameter,
    Problem,
    UnknownMethod,
    UnknownParameter,
)
from service.core.files import written_whole
from service.features.batch.configuration import FORMATS, RECORD, RunConfiguration
from tests.service.features.batch.laid import as_nobody, readable_by_nobody

GIVEN = {"method": "layercam", "layer": "auto", "fit": "squash", "target": ["285", "tabby"]}


def opened(output: Path, **given: Any) -> None:
    RunConfiguration({**GIVEN, **given}, output).open("photos", "efficientnet", "abc")


def test_a_new_folder_is_made_and_the_same_batch_goes_on(tmp_path: Path) -> None:
    output = tmp_path / "x" / "out"
    opened(output)
    record = (output / RECORD).read_bytes()
    (output / "pictures").mkdir()
    opened(output)
    assert (output / RECORD).read_bytes() == record
    assert sorted(each.name for each in output.iterdir()) == ["pictures", RECORD]


def test_an_empty_folder_that_is_there_will_do(tmp_path: Path) -> None:
    opened(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == [RECORD]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"method": "gradcam"}, ["parameters", "'layercam'"]),
        ({"target": ["285"]}, ["parameters", "['285', 'tabby'] ", "['285'] "]),
        ({"target": None}, ["parameters"]),
        ({"fit": "pad"}, ["'squash'", "'pad'"]),
        ({"opacity": "0.4"}, ["'opacity': 0.4"]),
        ({"opacity": "heat"}, ["'opacity': 'heat'"]),
    ],
)
def test_other_parameters_are_refused(
    tmp_path: Path, given: dict[str, Any], words: list[str]
) -> None:
    opened(tmp_path)
    before = (tmp_path / RECORD).read_bytes()
    with pytest.raises(ConfigError) as error:
        opened(tmp_path, **given)
    assert str(error.value).startswith(f"{tmp_path} holds a batch with parameters {{'")
    assert "take another folder, or go on with the former" in str(error.value)
    for word in words:
        assert word.strip() in str(error.value)
    assert (tmp_path / RECORD).read_bytes() == before


def test_a_batch_goes_on_with_the_fit_with_which_it_began(tmp_path: Path) -> None:
    plain = RunConfiguration({"method": "layercam"}, tmp_path)
    begun = plain.fitted("squash")
    assert begun.parameters().fit == "squash"
    begun.open("photos", "m", "abc")
    assert json.loads((tmp_path / RECORD).read_text())["parameters"]["fit"] == "squash"
    again = plain.fitted("crop")  # the model's entry has changed
    assert again.parameters().fit == "squash"
    again.open("photos", "m", "abc")
    with pytest.raises(ConfigError, match=r"'fit': 'squash'.*'fit': 'crop'"):
        RunConfiguration({"fit": "crop"}, tmp_path).fitted("squash").open("photos", "m", "abc")


def test_a_batch_from_before_the_default_changed_goes_on_with_a_crop(tmp_path: Path) -> None:
    plain = RunConfiguration({"method": "layercam"}, tmp_path)
    plain.fitted("crop").open("photos", "m", "abc")
    file = tmp_path / RECORD
    record = json.loads(file.read_text())
    del record["parameters"]["fit"]  # defaults were left out
    file.write_text(json.dumps(record))
    begun = plain.fitted("squash")
    assert begun.parameters().fit == "crop"
    begun.open("photos", "m", "abc")
    with pytest.raises(ConfigError, match=r"'fit': 'crop'.*'fit': 'squash'"):
        RunConfiguration({"method": "layercam", "fit": "squash"}, tmp_path).open(
            "photos", "m", "abc"
        )


def test_another_model_other_weights_and_another_form_are_refused(tmp_path: Path) -> None:
    RunConfiguration(GIVEN, tmp_path).open("photos", "resnet", "abc")
    for model, weights, form, words in (
        ("vit", "abc", "jpg", "model resnet, and this one has vit;"),
        ("resnet", "abd", "jpg", "weights abc, and this one has abd;"),
        ("resnet", "abc", "png", "form jpg, and this one has png;"),
    ):
        with pytest.raises(ConfigError, match=words):
            RunConfiguration(GIVEN, tmp_path, form).open("photos", model, weights)
    RunConfiguration(GIVEN, tmp_path).open("photos", "resnet", "abc")


def test_another_source_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configuration = RunConfiguration(GIVEN, tmp_path / "out")
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "a")
    configuration.open("photos/*.jpg", "resnet", "abc")
    for same in ("./photos/*.jpg", f"{tmp_path}/a/photos/*.jpg"):
        configuration.open(same, "resnet", "abc")
    words = re.escape(f"holds a batch with source {tmp_path}/a/photos/*.jpg, and this one has ")
    with pytest.raises(ConfigError, match=f"{words}{tmp_path}/a/photos;"):
        configuration.open("photos", "resnet", "abc")
    monkeypatch.chdir(tmp_path / "b")
    with pytest.raises(ConfigError, match=words):
        configuration.open("photos/*.jpg", "resnet", "abc")
    configuration.open("../a/photos/*.jpg", "resnet", "abc")


def test_the_same_said_otherwise_is_the_same(tmp_path: Path) -> None:
    RunConfiguration({"opacity": "0.40", "target": ["cat"]}, tmp_path).open(
        "photos", "resnet", "abc"
    )
    RunConfiguration({"target": ["cat"], "opacity": 0.4}, tmp_path).open("photos", "resnet", "abc")


def test_a_folder_with_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty, and no batch has begun there"):
        opened(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_batch_that_was_killed_as_it_began_can_begin(tmp_path: Path) -> None:
    with written_whole(tmp_path / RECORD) as temporary:
        temporary.write_text("{")
        left = temporary.name
    (tmp_path / RECORD).rename(tmp_path / left)
    opened(tmp_path)
    assert (tmp_path / RECORD).exists()


@pytest.mark.parametrize("text", ["{", "[]", "null", "\udcff"])
def test_a_record_that_is_none_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / RECORD).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=rf"cannot be used: .*{RECORD} is not JSON"):
        opened(tmp_path)


def test_a_record_of_no_batch_is_refused(tmp_path: Path) -> None:
    (tmp_path / RECORD).write_text("{}")
    with pytest.raises(ConfigError, match="holds a batch with model None"):
        opened(tmp_path)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(ConfigError, match="out cannot be used: "):
        opened(tmp_path / "out")
    with pytest.raises(ConfigError, match="below cannot be used: "):
        opened(tmp_path / "out" / "below")
    assert (tmp_path / "out").read_text() == "a file"


def test_a_folder_that_cannot_be_written_is_told() -> None:
    with readable_by_nobody() as folder, as_nobody():
        if os.geteuid() == 0 or os.access(folder, os.W_OK, effective_ids=True):
            folder.chmod(0o555)
        with pytest.raises(ConfigError, match="cannot be used: Permission denied"):
            opened(folder / "out")
        with pytest.raises(ConfigError, match="cannot be used: Permission denied"):
            opened(folder)


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="cannot be used: No space left on device"):
        opened(tmp_path)
    assert not list(tmp_path.iterdir())


# Parameters


def test_an_images_own_target_stands_for_that_of_all() -> None:
    configuration = RunConfiguration(GIVEN, Path(tempfile.gettempdir()))
    assert configuration.parameters().target == ["285", "tabby"]
    own = configuration.parameters("282")
    assert own.target == "282"
    assert own.method == "layercam"
    assert configuration.parameters("tiger cat").target == "tiger cat"
    contrast = configuration.parameters('{"class": "tabby", "minus": 282}').target
    assert contrast is not None
    assert not isinstance(contrast, int | str | list)
    assert (contrast.class_, contrast.minus) == ("tabby", 282)


@pytest.mark.parametrize("target", ["", "x" * 201, '{"class": ', '{"klass": 3}'])
def test_an_own_target_that_is_none_is_that_images_problem(target: str) -> None:
    configuration = RunConfiguration(GIVEN, Path("out"))
    with pytest.raises(Problem, match=r"target|it should"):
        configuration.parameters(target)


def test_mistakes_are_told_before_anything_is_made(tmp_path: Path) -> None:
    output = tmp_path / "out"
    with pytest.raises(UnknownMethod, match="there is no method 'gradcam3'"):
        RunConfiguration({"method": "gradcam3"}, output)
    with pytest.raises(
        UnknownParameter, match=r"no parameter 'colour'; the parameters .*mean 'colormap'\?"
    ):
        RunConfiguration({"colour": "red"}, output)
    with pytest.raises(InvalidParameter, match="opacity is '2'"):
        RunConfiguration({"opacity": "2"}, output)
    with pytest.raises(ConfigError, match="--pictures=gif: it should be jpg, png, webp, none"):
        RunConfiguration({}, output, "gif")
    with pytest.raises(ConfigError, match="output=values is not a picture: take --pictures=none"):
        RunConfiguration({"output": "values"}, output)
    RunConfiguration({"output": "values"}, output, "none")
    assert not output.exists()


def test_every_form_is_an_order() -> None:
    for form in FORMATS:
        RunConfiguration({}, Path("out"), form)


def test_two_batches_do_not_share_a_folder(tmp_path: Path) -> None:
    configuration = RunConfiguration({}, tmp_path / "out")
    with configuration.locked():
        with (
            pytest.raises(ConfigError, match="another batch is at work in"),
            configuration.locked(),
        ):
            pass
        with RunConfiguration({}, tmp_path / "other").locked():
            pass
    with configuration.locked():
        pass
    assert not (tmp_path / "out").exists()


def test_a_lock_leaves_nothing(tmp_path: Path) -> None:
    configuration = RunConfiguration({}, tmp_path / "out")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".lock").touch()  # of one that was killed
    with configuration.locked():
        configuration.open("photos", "m", "w")
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["run.json"]


def test_an_empty_folder_that_was_there_before_stays(tmp_path: Path) -> None:
    with RunConfiguration({}, tmp_path).locked():
        pass
    assert tmp_path.exists()
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(ConfigError, match="file/out cannot be used: Not a directory"),
        RunConfiguration({}, tmp_path / "file" / "out").locked(),
    ):
        pass

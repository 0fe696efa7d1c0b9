"""A map as a row of a table, and where its picture goes."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from cam import ClassTarget, Explanation
from service.backend.outcome import Prediction, ServedAnswer
from service.core.errors import UndecodableImage
from service.features.tables import rows
from service.features.tables.rows import Row, failed_row, picture_path, row_of
from service.features.tables.table import SCHEMA, table_of
from service.loading.served_model import ServedModel, load
from service.models.catalog import read_catalog
from service.models.preprocessing import Fit
from service.pipeline.instances import Instance
from service.pipeline.json_records import caption_of
from service.pipeline.parameters import Parameters
from service.pipeline.record import record_of
from service.pipeline.rendering import draw

CATALOG = """
[[models]]
name = "tiny"
source = "factory:tests.zoo.factories:tiny"
kind = "classes"
weights = "none"
input_size = 8
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    file = tmp_path_factory.mktemp("tiny") / "models.toml"
    file.write_text(CATALOG)
    (entry,) = read_catalog(file)
    return load(entry.copies[0])


def row(
    model: ServedModel,
    values: list[list[float]],
    photo: tuple[int, int] = (4, 4),
    fit: Fit = "squash",
    *,
    signed: bool = False,
    **given: object,
) -> Row:
    """Of a photo (width, height) with these values as its map."""
    image = Image.new("RGB", photo)
    seen = replace(model.preprocessing, shorter_side=8).apply(image, fit)
    explanation = Explanation(
        target=ClassTarget(2),
        score=1.5,
        probability=0.25,
        method="gradcam",
        layer="relu2",
        map=np.array(values, np.float32),
        signed=signed,
    )
    shares = np.array([0.2, 0.3, 0.5], np.float32)
    answer = ServedAnswer(Prediction(np.log(shares), shares), (explanation,))
    parameters = Parameters.model_validate(given)
    caption = partial(caption_of, explanation, model, seen)
    drawing = draw(image, seen, explanation, 0, parameters, caption=caption)
    instance = Instance(0, "a/cat.jpg", b"", "", parameters)
    record = record_of(drawing, answer, model, seen, instance, None, image.size)
    return row_of(record, "a/cat.jpg", picture="pictures/x.jpg")


# Between the centres of two cells the four pixels of an axis lie at 0, 1/4, 3/4 and 1.


def test_a_row_by_hand(model: ServedModel) -> None:
    found = row(model, [[0, 0], [0, 4]])
    assert (found.id, found.number, found.picture) == ("a/cat.jpg", 0, "pictures/x.jpg")
    assert (found.target, found.target_index, found.target_label) == ("class 2", 2, None)
    assert (found.target_score, found.target_probability) == (1.5, 0.25)
    assert (found.method, found.layer) == ("gradcam", "relu2")
    assert (found.width, found.height) == (4, 4)
    assert (found.peak_x, found.peak_y) == (3, 3)
    assert found.mass == pytest.approx(0.5 * 0.5)  # the mean of y · x
    assert found.concentration == pytest.approx(0.4)  # 0.4 of a cell, which has all the heat
    assert (found.map_height, found.map_width) == (2, 2)
    assert found.map == bytes(12) + b"\0\0\x80\x3f"
    assert row(model, [[0, 0], [0, 4]], normalize="none").map == bytes(12) + b"\0\0\x80\x40"
    assert found.map_encoding == "float32"
    assert (found.predicted_index, found.predicted_label) == (2, None)
    assert found.predicted_probability == pytest.approx(0.5)
    assert found.correct is None
    assert found.border == pytest.approx(1 - 0.8**2)  # 0.8 of each side of the cell is inside
    assert found.warning is found.error is found.problem is None


def test_only_what_lies_above_the_least_value_counts_as_mass(model: ServedModel) -> None:
    found = row(model, [[1, 1], [1, 5]])
    assert found.mass == pytest.approx(0.25)
    assert found.concentration == pytest.approx(0.4 * 5 / 8)


def test_x_and_y_are_not_mistaken_for_each_other(model: ServedModel) -> None:
    found = row(model, [[0, 0, 4]], photo=(6, 2))
    assert (found.width, found.height) == (6, 2)
    assert (found.peak_x, found.peak_y) == (5, 0)
    assert (found.map_height, found.map_width) == (1, 3)
    # Six pixels over three cells: 0, 0, 0, 1/4, 3/4, 1 of the last.
    assert found.mass == pytest.approx(2 / 6)


def test_mass_is_of_what_the_model_saw_and_the_peak_lies_on_the_photo(model: ServedModel) -> None:
    found = row(model, [[0, 0], [0, 4]], photo=(8, 4), fit="crop")  # columns 2 … 5
    assert (found.width, found.height) == (8, 4)
    assert (found.peak_x, found.peak_y) == (5, 3)
    assert found.mass == pytest.approx(0.25)


def test_ten_cells_or_more(model: ServedModel) -> None:
    found = row(model, [[10, 0, 0, 0, 0], [1, 1, 1, 1, 6], [0, 0, 0, 0, 0], [0, 0, 0, 0, 0]])
    assert found.concentration == pytest.approx((10 + 6) / 20)  # two of twenty


@pytest.mark.parametrize(("value", "what"), [(0.0, "zero"), (2.0, "the same")])
def test_a_flat_map_has_no_peak_and_a_warning(model: ServedModel, value: float, what: str) -> None:
    found = row(model, [[value] * 2] * 2)
    assert found.peak_x is found.peak_y is found.concentration is None
    assert found.mass == 0
    assert found.warning
    assert found.warning.startswith(f"the map is {what} everywhere: gradcam finds nothing at layer")
    assert found.border is None
    assert found.map == bytes(16)
    raw = row(model, [[value] * 2] * 2, normalize="none")
    assert raw.map == np.full(4, value, "<f4").tobytes()
    assert found.error is None


def test_a_map_of_which_too_few_pixels_were_seen(model: ServedModel) -> None:
    found = row(model, [[0, 0], [0, 4]], photo=(1, 1))
    assert found.peak_x is None
    assert found.concentration == pytest.approx(0.4)
    assert found.warning
    assert "too few" in found.warning


def test_a_signed_map(model: ServedModel) -> None:
    found = row(model, [[-4, 0], [0, 2]], signed=True)
    assert (found.peak_x, found.peak_y) == (3, 3)
    assert found.concentration == pytest.approx(0.4 * 4 / 6)
    assert found.mass == pytest.approx((-4 + 2) / 4 / 4)  # each cell weighs a quarter
    against = row(model, [[-4, 0], [0, 0]], signed=True)
    assert against.peak_x is against.peak_y is None  # as :explain: nothing speaks for it
    assert against.concentration == pytest.approx(0.4)
    assert against.warning is None


@pytest.mark.parametrize(
    ("target", "correct"),
    [
        (None, None),
        (2, True),
        ("2", True),
        ({"class": 2}, True),
        ({"index": 2}, True),
        ({"class": 2, "against": True}, None),
        ({"class": 2, "minus": 1}, None),
        ({"of": "probability"}, None),
    ],
)
def test_whether_the_class_that_was_named_is_the_predicted_one(
    model: ServedModel, target: object, correct: bool | None
) -> None:
    assert row(model, [[0, 1]], target=target).correct is correct


@pytest.mark.parametrize(
    ("fit", "expected"),
    [("crop", (2, 0, 6, 4)), ("squash", (0, 0, 8, 4)), ("pad", (0, -2, 8, 6))],
)
def test_where_a_map_lies_on_the_photo(
    model: ServedModel, fit: Fit, expected: tuple[float, ...]
) -> None:
    found = row(model, [[0, 0], [0, 4]], photo=(8, 4), fit=fit)
    covers = found.covers_left, found.covers_top, found.covers_right, found.covers_bottom
    assert covers == pytest.approx(expected)


def test_the_size_that_is_asked_for(model: ServedModel) -> None:
    found = row(model, [[0, 0], [0, 4]], photo=(40, 40), size="layer")
    assert (found.width, found.height) == (2, 2)
    assert (found.peak_x, found.peak_y) == (1, 1)


def test_a_failed_row() -> None:
    found = failed_row("a.jpg", UndecodableImage("it is a song", pointer="/x"), "tabby")
    problem = "urn:gradcam-service:undecodable-image"
    assert found == Row(id="a.jpg", asked="tabby", error="it is a song", problem=problem)


def test_rows_come_back_as_they_went() -> None:
    rows = [
        Row(id="ä\n,\0☃", number=2, target_index=1, target="cat", correct=True, map=b"\0\1"),
        failed_row("", UndecodableImage("no"), None),
    ]
    table = table_of(rows)
    assert table.schema.equals(SCHEMA)
    assert [Row(**each) for each in table.to_pylist()] == rows
    assert table_of([]).schema.equals(SCHEMA)


# Names of pictures

EXTENSION = ".jpg"
NASTY = st.text(st.sampled_from("aA.1/\\ _:é\0\n\ud800"), max_size=12)
NAMES = st.one_of(
    NASTY,
    st.text(st.characters(), max_size=30),
    st.text(st.sampled_from("aé猫🐈."), min_size=50, max_size=400),
    st.lists(st.sampled_from(["..", ".", "", "a", "a.jpg", "CON", "~", " "]), max_size=8).map(
        "/".join
    ),
)


def check(path: str) -> None:
    """That nothing is wrong with a path wherever it is written."""
    assert path.startswith("pictures/")
    assert path.endswith(EXTENSION)
    assert path == str(PurePosixPath(path))
    assert len(path.encode()) <= 1500  # which also says that it can be encoded
    for part in path.split("/"):
        assert part not in ("", ".", "..")
        assert len(part.encode()) <= 240
        assert not {*part} & {*map(chr, range(32)), *'\x7f<>:"\\|?*'}
        assert part == part.rstrip(". ")


@settings(deadline=None)
@given(NAMES, st.integers(0, 99))
@example("/etc/passwd", 0)
@example("//server/share/a", 0)
@example("\\\\server\\share\\a", 0)
@example("C:\\Windows\\a.jpg", 0)
@example("../../../../etc/passwd", 1)
@example("a/" * 3000 + "b", 0)
@example("é" * 250, 99)
@example("", 0)
@example("...", 0)
@example("a. ", 0)
def test_whatever_an_image_is_called_its_picture_lies_below_the_folder(
    name: str, number: int
) -> None:
    path = picture_path(name, number, EXTENSION)
    check(path)
    assert picture_path(name, number, EXTENSION) == path


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(NAMES, st.integers(0, 12)), min_size=2, max_size=12, unique=True))
@example([("a", 1), ("a.1", 0)])
@example([("a", 0), ("a.jpg/b", 0)])
@example([("a", 1), ("a.1.jpg/b", 0)])
@example([("a:", 0), ("a?", 0), ("a_", 0)])
@example([("a/b", 0), ("a//b", 0), ("/a/b", 0), ("a\\b", 0), ("./a/b", 0)])
@example([("", 0), ("_", 0), (".", 0), ("/", 0)])
@example([("é" * 300, 0), ("é" * 301, 0)])
def test_no_two_pictures_have_one_path_nor_is_one_the_others_folder(
    pictures: list[tuple[str, int]],
) -> None:
    # And what is called as another one's picture is has another path, too.
    for name, number in pictures[:3]:
        path = picture_path(name, number, EXTENSION).removeprefix("pictures/")
        pictures.append((path.removesuffix(EXTENSION), 0))
        pictures.append((f"{path}/x", 0))
    paths = {each: picture_path(*each, EXTENSION) for each in pictures}
    assert len({*paths.values()}) == len(paths)
    for path in paths.values():
        folders = {str(parent) for parent in PurePosixPath(path).parents}
        assert not folders & {*paths.values()}


@settings(max_examples=30, deadline=None)
@given(st.lists(NAMES, min_size=2, max_size=10, unique=True))
def test_they_can_all_be_written(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            file = Path(folder) / picture_path(name, 1, EXTENSION)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("")
        assert sum(file.is_file() for file in Path(folder).rglob("*")) == len(names)


def test_of_a_name_as_long_as_a_body_only_what_fits_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[str] = []

    def noted(part: str) -> str:
        read.append(part)
        assert len(read) <= 1000
        return safe(part)

    safe = rows._safe
    monkeypatch.setattr(rows, "_safe", noted)
    check(picture_path("a/" * 1_000_000, 0, EXTENSION))
    check(picture_path("a" * 2_000_000, 0, EXTENSION))
    assert len(read) > 2


def test_ordinary_names_are_kept() -> None:
    assert picture_path("cat.jpg", 0, ".jpg") == "pictures/cat.jpg.jpg"
    assert picture_path("x/y z/Kätzchen (1).png", 2, ".webp") == (
        "pictures/x/y z/Kätzchen (1).png.2.webp"
    )

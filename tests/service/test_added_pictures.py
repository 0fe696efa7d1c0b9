"""Outputs, parameters of `:explain`, colour maps and formats of pictures that packages add."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import typer
from numpy.typing import NDArray
from PIL import Image
from pydantic import BaseModel

from service.cli.main import cli
from service.client import Client
from service.features import adapters, operations
from service.features.answers.parameters import AnswerParameters
from service.features.evaluate.parameters import EvaluateParameters
from service.features.jobs.queries import JobParameters
from service.pipeline.parameters import OPTIONS, Parameters, declared
from tests.packages import ROOT, install, install_example
from tests.service.conftest import encoded, noise
from tests.service.live import serving
from tests.service.process.test_supervisor import PNG, catalog

HEADING = "### Outputs, parameters, colours and formats of your own"
EXPLAIN = "/v1/models/m:explain"
PHOTO = noise(8, 8, 0)
ADDED = """
from cam.drawing.overlay import Colormap
from pydantic import Field
from service.pipeline.extensions import OutputForm, Parameter, PictureFormat
told = Field(0, description="A number.")
objects = {
    "gradcam.outputs": {
        "AGAIN": OutputForm("panel", "a panel", print),
        "BLANK": OutputForm("blank", "nothing", None),
    },
    "gradcam.parameters": {
        "STEPS": Parameter("steps", int, told),
        "TAKEN": Parameter("opacity", int, told),
        "WORD": Parameter("a-b", int, told),
        "SILENT": Parameter("silent", int, Field(0)),
        "NEEDED": Parameter("needed", int, Field(description="A number.")),
        "STRANGE": Parameter("strange", object(), told),
    },
    "gradcam.colormaps": {
        "GRAY": Colormap("gray", ((0, 0, 0),)),
        "LOUD": Colormap("loud", ((0, 0, 0), (0, 0, 256))),
    },
    "gradcam.formats": {
        "TEXT": PictureFormat("text", "text/plain", print),
        "PING": PictureFormat("ping", "image/png", print),
    },
}
globals().update({name: each for group in objects.values() for name, each in group.items()})
"""
TOLD = """
import json, sys, warnings
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    from service.pipeline.parameters import ADDED
    import service.pipeline.rendering
assert ADDED == ()
print(json.dumps([str(each.message) for each in told if "left out" in str(each.message)]))
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the package of docs/http-api.md, as if it was installed, without its
    dependency."""
    folder = tmp_path_factory.mktemp("package")
    install_example(folder, "http-api.md", HEADING)
    return folder


@pytest.fixture(scope="module")
def http(package: Path) -> Iterator[httpx2.Client]:
    models = catalog(package, "tiny")
    with serving("--doors", "0", "--models", models, PYTHONPATH=str(package)) as (_, client):
        yield client


def pixels(file: bytes) -> NDArray[np.uint8]:
    with Image.open(BytesIO(file)) as picture:
        return np.asarray(picture)


def drawn(http: httpx2.Client, query: str, media_type: str = "image/png") -> bytes:
    asked = {**PNG, "Accept": media_type}
    answer = http.post(f"{EXPLAIN}?{query}", content=encoded(PHOTO), headers=asked)
    assert answer.status_code == 200, answer.text
    return answer.content


@pytest.mark.slow
def test_an_output_is_drawn(http: httpx2.Client) -> None:
    mask = pixels(drawn(http, "output=mask"))
    cutout = pixels(drawn(http, "output=cutout&threshold=0.5"))
    hot = mask >= 128
    assert 0 < hot.sum() < hot.size
    np.testing.assert_array_equal(cutout, np.where(hot[..., None], np.asarray(PHOTO), 0))


@pytest.mark.slow
def test_a_parameter_is_read_wherever_others_are(
    package: Path, http: httpx2.Client, tmp_path: Path
) -> None:
    plain = pixels(drawn(http, "output=cutout"))
    mirrored = plain[:, ::-1]
    assert (plain != mirrored).any()
    np.testing.assert_array_equal(pixels(drawn(http, "output=cutout&mirror=true")), mirrored)
    photo, asked = encoded(PHOTO), {"output": "cutout", "mirror": True}

    def overlay(**request: Any) -> NDArray[np.uint8]:
        answer = http.post(EXPLAIN, **request)
        assert answer.status_code == 200, answer.text
        return pixels(base64.b64decode(answer.json()["explanations"][0]["overlay"]["data"]))

    form = {"output": "cutout", "mirror": "true"}
    np.testing.assert_array_equal(overlay(files={"image": photo}, data=form), mirrored)
    instances = [{"image": {"b64": base64.b64encode(photo).decode()}}]
    body = {"instances": instances, "parameters": asked}
    np.testing.assert_array_equal(overlay(json=body), mirrored)
    with Client(str(http.base_url), model="m") as client:
        found = client.explain(photo, **asked)  # type: ignore[arg-type]
    assert found.overlay is not None
    np.testing.assert_array_equal(pixels(found.overlay), mirrored)

    (tmp_path / "photo.png").write_bytes(photo)
    command = [sys.executable, "-m", "service", "explain", "photo.png", "--folder", "made"]
    done = subprocess.run(
        [*command, "--models", package / "models.toml", "--output", "cutout", "--mirror"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{package}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (made,) = (tmp_path / "made").iterdir()
    np.testing.assert_array_equal(pixels(made.read_bytes()), mirrored)


@pytest.mark.slow
def test_a_parameter_changes_the_question(http: httpx2.Client) -> None:
    for effort, passes in ((1, 10), (3, 30)):
        answer = http.post(
            f"{EXPLAIN}?method=rise&effort={effort}", content=encoded(PHOTO), headers=PNG
        )
        assert answer.json()["explanations"][0]["passes"]["made"] == passes
    for query, sentence in (
        ("effort=10", "effort is '10': it should be a number from 1 to 9"),
        ("mirro=true", "did you mean 'mirror'"),
        ("mirror=2", "mirror is '2'"),
    ):
        wrong = http.post(f"{EXPLAIN}?{query}", content=encoded(PHOTO), headers=PNG)
        assert wrong.status_code == 422
        assert sentence in wrong.json()["detail"]


@pytest.mark.slow
def test_a_colour_map_and_a_format_are_served(http: httpx2.Client) -> None:
    red, *others = pixels(drawn(http, "output=heatmap&colormap=red", "image/bmp")).transpose(
        2, 0, 1
    )
    assert red.max() == 255
    assert not np.any(others)
    assert pixels(drawn(http, "output=mask", "image/bmp")).shape == (8, 8)


@pytest.mark.slow
def test_documents_name_them(http: httpx2.Client) -> None:
    document = http.get("/openapi.json").json()
    operation = document["paths"]["/v1/models/{model}:explain"]["post"]
    assert "`image/bmp`" in operation["description"]
    assert "image/bmp" in operation["responses"]["200"]["content"]
    query = {each["name"]: each for each in operation["parameters"]}
    assert query["mirror"]["schema"]["type"] == "boolean"
    schemas = document["components"]["schemas"]
    told = schemas["Parameters"]["properties"]
    assert told["mirror"] == {
        "default": False,
        "description": "Whether pictures are mirrored.",
        "title": "Mirror",
        "type": "boolean",
    }
    assert (
        "`cutout`: the photo where it is hot, and black elsewhere." in told["output"]["description"]
    )
    assert schemas["Output"]["enum"][-1] == "cutout"
    assert schemas["Colormap"]["enum"][-1] == "red"


@pytest.mark.slow
def test_what_cannot_be_used_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "added.py").write_text(ADDED)
    names = {
        "outputs": ("AGAIN", "BLANK"),
        "parameters": ("NEEDED", "SILENT", "STEPS", "STRANGE", "TAKEN", "WORD"),
        "colormaps": ("GRAY", "LOUD"),
        "formats": ("PING", "TEXT"),
    }
    for group, points in names.items():
        install(tmp_path, f"gradcam.{group}", {each: f"added:{each}" for each in points}, group)
    done = subprocess.run(
        [sys.executable, "-c", TOLD],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    for name, why in (
        ("colormap added:GRAY", "its colours are not two or more of three numbers"),
        ("colormap added:LOUD", "its colours are not two or more of three numbers"),
        ("output form added:AGAIN", "the name 'panel' is taken"),
        ("output form added:BLANK", "it has no draw"),
        ("picture format added:PING", "its media type 'image/png' is taken"),
        (
            "picture format added:TEXT",
            "its media type 'text/plain' is taken, or is not of a picture",
        ),
        ("parameter added:NEEDED", "its kind and its field make no parameter with a default"),
        ("parameter added:SILENT", "its field has no description"),
        ("parameter added:STEPS", "the name 'steps' is taken"),
        ("parameter added:STRANGE", "its kind and its field make no parameter with a default"),
        ("parameter added:TAKEN", "the name 'opacity' is taken"),
        ("parameter added:WORD", "its name 'a-b' is not a name of Python"),
    ):
        assert any(each.startswith(f"the {name} is left out: {why}") for each in told), (name, told)
    assert len(told) == 12


def test_no_name_of_other_parameters_and_options_can_be_added() -> None:
    explain: Any = typer.main.get_command(cli)
    options = {each.name for each in explain.get_command(None, "explain").params}
    adapters()  # like the operations, they have parameters of their own
    models = {each.parameters for each in operations()} | set(extending(Parameters))
    assert {EvaluateParameters, AnswerParameters, JobParameters} <= models
    own = options.union(*(model.model_fields.keys() for model in models))
    assert own - Parameters.model_fields.keys() <= OPTIONS | declared()


def extending(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """Yield the classes that extend a class, and those that extend these."""
    for each in model.__subclasses__():
        yield from (each, *extending(each))

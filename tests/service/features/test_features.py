"""Features: each is a folder, the lists have all of them, and one can be added or deleted alone."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import ANY

import grimp
import pytest
import torch
from pydantic import BaseModel, Field
from starlette.testclient import TestClient
from typer.testing import CliRunner

import service.features
from service import app
from service.backend.interface import Listener
from service.backend.watch import WatchWork
from service.backend.work import Pixels, Running, Steps, StepWork, Work
from service.cli.main import cli
from service.core.errors import ConfigError
from service.core.schemas import FailedInstance
from service.core.settings import CoreSettings
from service.features import AROUND, COMMANDS, SUPERVISED, WORK, adapters, operations
from service.features.predict.operation import PREDICT
from service.http.operation import Operation, each
from service.http.reception import RequestContext
from service.pipeline.instances import Instance
from service.pipeline.parameters import PredictParameters, PredictRequest
from service.pipeline.pipeline import Pipeline
from service.settings import Settings
from tests.service.conftest import MODEL, running_app
from tests.service.live import ROOT
from tests.service.tree import check, copied, run

FOLDERS = {
    path.parent.name for path in Path(service.features.__file__).parent.glob("*/__init__.py")
}
OF_FEATURES = ("cam.answers", "cam.clusters", "cam.drift", "cam.evaluation", "cam.reasons")
"""Packages of the library that only features need, and users of the library."""
LIBRARIES = {"ray", "report"}
"""Folders that stand in no list: other features use them, or Ray by the names in `service.ray`."""
BESIDE = {
    "administration": ["features/open_inference", "features/platforms"],
    "explain": ["features/evaluate"],
    "answers": ["features/audit", "features/open_inference", "client"],
    "audit": ["client"],
    "batch": ["features/audit", "features/drift", "features/init", "client"],
    "drift": ["client"],
    "jobs": ["features/audit", "client"],
    "ray": ["ray"],
    "report": [
        "client",
        "features/audit",
        "features/drift",
        "features/init",
        "features/batch",
        "features/jobs",
    ],
}
"""What is deleted with a feature: features that need it, as `pyproject.toml` says, the client if it
reads what the feature answers, and Ray's names for it."""


class Seen(BaseModel):
    instance: int = Field(examples=[0])
    width: int = Field(examples=[451])
    largest: float = Field(examples=[9.5])


@dataclass(frozen=True, eq=False)
class Largest(StepWork[float]):
    """Returns the largest logit."""

    pixels: Pixels

    def steps(self, running: Running) -> Steps[float]:
        yield from ()
        with torch.no_grad():
            return float(running.model.module(running.input([self.pixels])).max())


class SeenResponse(BaseModel):
    seen: list[Seen | FailedInstance]


async def measured(
    pipeline: Pipeline,
    context: RequestContext[PredictParameters],
    instance: Instance[PredictParameters],
    progress: Listener | None,
) -> list[Seen]:
    model = context.replicas.model
    async with pipeline.opened(model, instance, context.timings) as (encoded, pool):
        photo, seen = await pipeline.seen(model, instance, encoded, pool, context.timings)
        outcome = await context.replicas.ask(Largest(seen.pixels))
    return [Seen(instance=instance.index, width=photo.width, largest=outcome.value)]


MEASURE = Operation(
    name="measure",
    function="measure",
    summary="The width of each image",
    description="In pixels.",
    parameters=PredictParameters,
    body=PredictRequest,
    example={"instances": [{"image": {"b64": ""}}]},
    response=SeenResponse,
    work=measured,
    gather=lambda results: SeenResponse(seen=each(results)),
    lines=lambda seen: seen,
    line='{"instance": 0, "width": 451, "largest": 9.5}\n',
)


@pytest.fixture(scope="module")
def extended() -> Iterator[TestClient]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app, "OPERATIONS", (PREDICT, MEASURE))
        with running_app(Settings()) as client:
            yield client


def test_the_lists_have_each_folder() -> None:
    modules = [operation.work.__module__ for operation in operations()]
    modules += [adapter.__module__ for adapter in adapters()]
    listed = {
        module.split(".")[2] for module in [*modules, *COMMANDS.values(), *AROUND, *SUPERVISED]
    }
    assert listed | LIBRARIES == FOLDERS
    assert len({operation.name for operation in operations()}) == len(operations())


def test_a_mistyped_command_is_told_apart() -> None:
    for typed, meant in (("explan", "explain"), ("audti", "audit"), ("serv", "serve")):
        said = CliRunner().invoke(cli, [typed])
        assert said.exit_code == 2
        assert f"Did you mean '{meant}'" in " ".join(said.output.split())


def test_an_operation_is_added(extended: TestClient, cat: bytes) -> None:
    png = {"Content-Type": "image/png"}
    answer = extended.post(f"{MODEL}:measure", content=cat, headers=png)
    (seen,) = answer.json()["seen"]
    assert seen == {"instance": 0, "width": 451, "largest": ANY}
    assert 5 < seen["largest"] < 20  # a random model's is near 0
    lines = extended.post(
        f"{MODEL}:measure", content=cat, headers={**png, "Accept": "application/x-ndjson"}
    )
    assert json.loads(lines.text) == seen
    refused = extended.post(f"{MODEL}:measure", content=b"", headers=png)
    assert refused.status_code == 400
    assert refused.headers["Content-Type"] == "application/problem+json"
    assert extended.post(f"{MODEL}:measure?method=x", content=cat, headers=png).status_code == 422


def test_an_added_operation_is_described(extended: TestClient) -> None:
    paths = extended.get("/openapi.json").json()["paths"]
    described = paths["/v1/models/{model}:measure"]["post"]
    assert described["operationId"] == "measure"
    assert set(described["responses"]["200"]["content"]) == {
        "application/json",
        "application/x-ndjson",
    }


def test_an_operation_that_is_not_listed_is_not_there(extended: TestClient, cat: bytes) -> None:
    answer = extended.post(f"{MODEL}:explain", content=cat, headers={"Content-Type": "image/png"})
    assert answer.status_code == 404
    assert "/v1/models/{model}:explain" not in extended.get("/openapi.json").json()["paths"]


def test_no_module_outside_of_an_operation_serves_it_alone() -> None:
    graph = grimp.build_graph("service", "cam", exclude_type_checking_imports=True)
    for name in FOLDERS:
        inside = {
            module
            for module in graph.modules
            if f"{module}.".startswith(f"service.features.{name}.")
        }
        outside = set[str]().union(*map(graph.find_modules_directly_imported_by, inside)) - inside
        alone = [
            module
            for module in outside
            if graph.find_modules_that_directly_import(module) <= inside
            and not module.startswith(("service.features.", *OF_FEATURES))
        ]
        assert alone == []


def test_the_process_of_the_models_knows_each_kind_of_work() -> None:
    adapters(), operations()
    bases = (Work, StepWork, WatchWork)
    own = {
        kind.__module__
        for base in bases
        for kind in base.__subclasses__()
        if kind.__module__.startswith("service.")
        and kind.__module__ not in {base.__module__ for base in bases}
    }
    assert own == set(WORK)


def test_a_setting_of_the_core_is_not_one_features_own() -> None:
    service = ROOT / "service"
    core = [
        path.read_text()
        for path in service.rglob("*.py")
        if not path.is_relative_to(service / "features") and path.name != "settings.py"
    ]
    read = {name for text in core for name in re.findall(r"settings\.(\w+)", text)}
    assert set(CoreSettings.model_fields) - read == set()
    assert not set(Settings.model_fields) - set(CoreSettings.model_fields) & read


def test_a_command_knows_the_variables_of_all_features(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADCAM_MAX_JOBS", "3")
    monkeypatch.setenv("GRADCAM_MAX_JOB", "3")
    said = CliRunner().invoke(cli, ["explain", "photo.jpg"])
    assert isinstance(said.exception, ConfigError)
    assert "did you mean GRADCAM_MAX_JOBS" in str(said.exception)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FOLDERS))
def test_a_feature_is_deleted(name: str, tmp_path: Path, known_types: Path) -> None:
    copied(tmp_path)
    gone = [*BESIDE.get(name, []), f"features/{name}"]
    for path in gone:
        shutil.rmtree(tmp_path / "service" / path)
    folders = [path.removeprefix("features/") for path in gone if path != "client"]
    for folder in folders:
        for lists in ("features/__init__.py", "settings.py"):
            forget(tmp_path / "service" / lists, folder)
    project = tmp_path / "pyproject.toml"
    project.write_text(
        unlisted(project.read_text(), [*folders, "client"] if "client" in gone else folders)
    )
    check(tmp_path, known_types)
    document = json.loads(run(tmp_path, "python", "-m", "service", "openapi"))
    paths = document["paths"]
    used = {tag for path in paths.values() for one in path.values() for tag in one.get("tags", ())}
    assert {tag["name"] for tag in document["tags"]} <= used
    left = {path.rpartition(":")[2] for path in paths if path.startswith("/v1/models/{model}:")}
    assert left == {
        operation.name
        for operation in operations()
        if operation.work.__module__.split(".")[2] not in folders
    }


def forget(file: Path, folder: str) -> None:
    """Remove what the lists say of a folder."""
    text = file.read_text()
    text = re.sub(rf'    "service\.features\.{folder}\.\w+",\n', "", text)
    text = re.sub(rf'\("service\.features\.{folder}\.\w+",\)', "()", text)
    imports = rf"(?m)^ *from service\.features\.{folder}\.\w+ import (.*)\n"
    names = [name for found in re.findall(imports, text) for name in found.split(", ")]
    text = re.sub(imports, "", text)
    text = re.sub(rf'    "\w+": "service\.features\.{folder}\..*",\n', "", text)
    for name in names:
        text, count = re.subn(rf" +{name}(\((\n.*)*?\n +\))?,\n", "", text)
        assert count == 1, name
    file.write_text(text)


def unlisted(text: str, gone: Sequence[str]) -> str:
    """Return pyproject.toml without the layers, and the modules in contracts, that are gone."""

    def left(line: re.Match[str]) -> str:
        kept = [name for name in line[1].split(" | ") if name not in gone]
        return f'    "{" | ".join(kept)}",\n' if kept else ""

    own, mark, of_cam = text.partition('name = "A package of cam')
    text = re.sub(r'    "(\w[\w |]*)",\n', left, own) + mark + of_cam
    text = re.sub(rf'    "service\.({"|".join(gone)})",\n', "", text)
    return re.sub(rf'    "service\.features\.({"|".join(gone)})\..*",\n', "", text)

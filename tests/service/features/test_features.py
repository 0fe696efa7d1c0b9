"""Features: each is a folder, the lists have all of them, and one can be added or deleted alone."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from unittest.mock import ANY

import grimp
import pytest
import typer
from starlette.testclient import TestClient
from typer.testing import CliRunner

import service.features
from service import app
from service.backend.watch import WatchWork
from service.backend.work import StepWork, Work
from service.cli.main import Commands, cli
from service.client import Client, ServiceError
from service.core.errors import ConfigError, Problem
from service.core.settings import CoreSettings
from service.features import COMMANDS, FEATURES, Feature, adapters, additions, given, operations
from service.features.predict.operation import PREDICT
from service.settings import Settings
from tests.service.conftest import MODEL, running_app
from tests.service.features import toy
from tests.service.features.toy import MEASURE
from tests.service.http.test_openapi import OPERATIONS
from tests.service.live import ROOT, serving
from tests.tree import copied, run

FOLDERS = {
    path.parent.name for path in Path(service.features.__file__).parent.glob("*/__init__.py")
}
OF_FEATURES = (
    "cam.activations",
    "cam.answers",
    "cam.clusters",
    "cam.drift",
    "cam.evaluation",
    "cam.reasons",
)
"""Packages of the library that only features need, and users of the library."""


@pytest.fixture(scope="module")
def extended() -> Iterator[TestClient]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app, "OPERATIONS", (PREDICT, MEASURE))
        with running_app(Settings()) as client:
            yield client


def test_the_list_has_each_folder_and_what_is_named_there() -> None:
    assert {feature.folder for feature in FEATURES} == FOLDERS
    assert len(FEATURES) == len(FOLDERS)
    for kind in fields(Feature)[2:]:
        if kind.default == ():
            assert all(map(callable, given(kind.name))) or kind.name == "operations"
    for name in COMMANDS:
        assert CliRunner().invoke(cli, [name, "--help"]).exit_code == 0
    assert all(additions(folder) for feature in FEATURES for folder in feature.extends)
    assert len({operation.name for operation in operations()}) == len(operations())


def test_a_feature_says_which_others_it_needs() -> None:
    graph = imports()
    imported: dict[str, set[str]] = {folder: set() for folder in FOLDERS}
    for module in graph.modules:
        for other in graph.find_modules_directly_imported_by(module):
            one, two = map(folder_of, (module, other))
            if one and two and one != two:
                imported[one].add(two)
    assert {feature.folder: set(feature.needs) for feature in FEATURES} == imported
    for feature in FEATURES:
        assert set(feature.needs) >= set(feature.extends)


@cache
def imports() -> grimp.ImportGraph:
    # Its cache on the disk is wrong where git has put an older file in the place of a newer one.
    return grimp.build_graph("service", "cam", exclude_type_checking_imports=True, cache_dir=None)


def folder_of(module: str) -> str | None:
    """Return the folder of a feature's module; None of another one."""
    found = re.match(r"service\.features\.(\w+)", module)
    return found and found[1]


def test_a_mistyped_command_is_told_apart() -> None:
    for typed, meant in (("explan", "explain"), ("audti", "audit"), ("serv", "serve")):
        said = CliRunner().invoke(cli, [typed])
        assert said.exit_code == 2
        assert f"Did you mean '{meant}'" in " ".join(said.output.split())


def test_an_operation_is_added(extended: TestClient, cat: bytes) -> None:
    png = {"Content-Type": "image/png"}
    answer = extended.post(f"{MODEL}:measure", content=cat, headers=png)
    (seen,) = answer.json()["measure"]
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
    body = described["requestBody"]["content"]["application/json"]
    assert list(body["example"]) == ["instances"]
    answered = described["responses"]["200"]["content"]
    entry = {"instance": 0, "width": 451, "largest": 9.5}
    assert answered["application/json"]["example"] == {"measure": [entry]}
    assert json.loads(answered["application/x-ndjson"]["example"]) == entry
    assert set(described["responses"]["200"]["content"]) == {
        "application/json",
        "application/x-ndjson",
    }


def test_an_operation_needs_the_scope_that_it_names(cat: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app, "OPERATIONS", (replace(MEASURE, scope="admin"),))
        guarded = TestClient(app.create_app(Settings()))
    png = {"Content-Type": "image/png"}
    refused = guarded.post(f"{MODEL}:measure", content=cat, headers=png)
    assert refused.status_code == 403
    assert "API key of scope 'admin'" in refused.json()["detail"]


def test_the_names_of_operations_that_clients_are_generated_from_stay() -> None:
    assert [operation["operationId"] for *_, operation in OPERATIONS] == [
        *("showPage", "checkHealth", "checkReadiness", "getMetrics"),
        *("listModels", "addModel", "getModel", "removeModel", "listLayers"),
        *("predict", "explain", "evaluate", "showActivations", "answer"),
        *("submitJob", "listJobs", "getJob", "cancelJob", "followJob"),
        *("listResults", "getResult", "downloadArchive", "getClusters"),
        *("submitAudit", "getAudit", "getReport", "getDrift"),
    ]


def test_the_page_of_each_operation_names_it() -> None:
    for operation in operations():
        assert f":{operation.name}" in (ROOT / "docs" / operation.page).read_text()


def test_an_operation_is_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COMMANDS, "measure", f"{toy.__name__}:MEASURE")
    photo = "docs/photos/chelsea.png"
    said = CliRunner().invoke(cli, ["measure", photo, "missing.png", "--fit", "squash"])
    assert json.loads(said.stdout) == {"instance": 0, "width": 451, "largest": ANY}
    failed = json.loads(said.stderr)
    assert (failed["instance"], failed["id"]) == (1, "missing.png")
    assert failed["problem"]["status"] == 422
    assert failed["error"] == "missing.png cannot be read: No such file or directory"
    assert said.exit_code == 1


def test_a_command_of_an_operation_refuses_what_no_photo_could_have() -> None:
    many = ["--layer", "a*", "--layer", "b*", "--reasons", "5"]
    for words, why in (
        (["predict", "--top-k", "0"], "top_k is '0': it should be a number from 1 to 1000"),
        (["evaluate", *many], "the request asks for 160 maps; at most 100 are allowed"),
    ):
        said = CliRunner().invoke(cli, [*words, "photo.png"])
        assert isinstance(said.exception, Problem)
        assert why in str(said.exception)


LISTED = "FEATURES: Final[tuple[Feature, ...]] = (\n"
LINE = """    Feature(
        "measure",
        operations=("operation:MEASURE",),
        commands={"measure": "operation:MEASURE"},
        work=("operation:Largest",),
    ),
"""


@pytest.mark.slow
def test_an_operation_in_one_file(tmp_path: Path, cat: bytes) -> None:
    """A folder with the file, and its line in the list, are all that is added to the packages. The
    service has processes that receive requests, and one with the models."""
    assert len(Path(toy.__file__).read_text().splitlines()) <= 40
    tree = copied(tmp_path)
    features = tree / "service" / "features"
    (features / "measure").mkdir()
    (features / "measure" / "__init__.py").touch()
    shutil.copy(toy.__file__, features / "measure" / "operation.py")
    lists = features / "__init__.py"
    before, mark, after = lists.read_text().partition(LISTED)
    lists.write_text(f"{before}{mark}{LINE}{after}")
    photo = tmp_path / "cat.png"
    photo.write_bytes(cat)
    document = json.loads(run(tree, "python", "-m", "service", "openapi"))
    assert "/v1/models/{model}:measure" in document["paths"]
    measured = {"instance": 0, "width": 451, "largest": ANY}
    assert json.loads(run(tree, "python", "-m", "service", "measure", str(photo))) == measured
    slow = {"GRADCAM_DEADLINE_SECONDS": "300"}  # beside other tests
    with (
        serving(tree=tree, **slow) as (_, http),
        Client(str(http.base_url), timeout=300) as client,
    ):
        assert client.ask("measure", photo) == {"measure": [measured]}
        both = client.ask("measure", cat, b"no photo", fit="squash")["measure"]
        assert both[0] == measured
        assert both[1]["problem"]["status"] == 422
        with pytest.raises(ServiceError, match="top_k is '0'"):
            client.ask("measure", photo, top_k=0)


def test_an_operation_that_is_not_listed_is_not_there(extended: TestClient, cat: bytes) -> None:
    answer = extended.post(f"{MODEL}:explain", content=cat, headers={"Content-Type": "image/png"})
    assert answer.status_code == 404
    assert "/v1/models/{model}:explain" not in extended.get("/openapi.json").json()["paths"]


def test_no_module_outside_of_an_operation_serves_it_alone() -> None:
    graph = imports()
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
    adapters(), operations(), additions("jobs")
    bases = (Work, StepWork, WatchWork)
    own = {kind for base in bases for kind in base.__subclasses__() if folder_of(kind.__module__)}
    assert own == set(given("work"))


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


def test_a_setting_that_says_so_is_an_option_of_serve(capfd: pytest.CaptureFixture[str]) -> None:
    """Also one of a feature, which no module of the core names."""
    known = typer.main.get_command(cli)
    assert isinstance(known, Commands)
    serve = known.get_command(None, "serve")
    helps = {each.name: each.help for each in serve.params if each.name != "help"}
    assert helps == Settings.options()
    assert set(helps) == {"host", "port", "models", "insecure", "doors", "keys", "probe_port"}
    wrong = CliRunner().invoke(cli, ["serve", "--probe-port", "70000"])
    assert wrong.exit_code == 2
    assert "--probe-port=70000: it should be at most 65535" in capfd.readouterr().err


def test_a_command_knows_the_variables_of_all_features(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADCAM_MAX_JOBS", "3")
    monkeypatch.setenv("GRADCAM_MAX_JOB", "3")
    said = CliRunner().invoke(cli, ["explain", "photo.jpg"])
    assert isinstance(said.exception, ConfigError)
    assert "did you mean GRADCAM_MAX_JOBS" in str(said.exception)

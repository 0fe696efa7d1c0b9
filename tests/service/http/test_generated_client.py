"""A client that a generator makes of openapi/openapi.json has every operation, and works."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.service.conftest import CAT, ESPRESSO
from tests.service.http.test_openapi import OPERATIONS
from tests.service.live import ROOT

pytestmark = pytest.mark.slow

PATH = os.pathsep.join([str(ROOT / ".venv" / "generator" / "bin"), os.environ["PATH"]])
FOUND = shutil.which("openapi-python-client", path=PATH)
GENERATOR = FOUND and Path(FOUND).resolve()
"""In an environment of its own: its typer is an older one than the service's."""
SPOKEN = ("application/json", "multipart/form-data", "application/problem+json")
"""Media types that the generator knows without being told."""

CALLS = """
import base64, json, sys, time
from pathlib import Path

from explainer import Client
from explainer.api.explain import explain
from explainer.api.jobs import get_job, submit_job
from explainer.models import (
    ExplainForm, ExplainInstance, ExplainRequest, Fit, JobInstance, JobPhoto, JobRequest, JobState,
    Method, Parameters, Photo,
)
from explainer.types import File

address, *files = sys.argv[1:]
client = Client(address, timeout=60)
photos = [base64.b64encode(Path(file).read_bytes()).decode() for file in files]
methods = [Method.GRADCAM, Method.GRADCAM_PLUS_PLUS]

both = ExplainRequest(
    instances=[
        ExplainInstance(image=Photo(b64=photo), id=file) for photo, file in zip(photos, files)
    ],
    parameters=Parameters(method=methods, fit=Fit.SQUASH),
)
explained = explain.sync("efficientnet-lite0", client=client, body=both)

with open(files[0], "rb") as opened:
    form = ExplainForm(image=[File(opened, "photo.png", "image/png")], target=281)
    of_form = explain.sync("efficientnet-lite0", client=client, body=form)

both.parameters.layer = "nowhere"
refused = explain.sync("efficientnet-lite0", client=client, body=both)

many = JobRequest(
    instances=[JobInstance(image=JobPhoto(b64=photo)) for photo in photos],
    parameters=Parameters(fit=Fit.SQUASH),
)
accepted = submit_job.sync(client=client, body=many, idempotency_key="a key")
job = accepted
while job.state not in (JobState.DONE, JobState.CANCELLED):
    time.sleep(0.1)
    job = get_job.sync(accepted.id, client=client)

answers = {"explained": explained, "of_form": of_form, "refused": refused,
           "accepted": accepted, "job": job}
print(json.dumps({name: answer.to_dict() for name, answer in answers.items()}))
"""


@dataclass(frozen=True)
class Generated:
    folder: Path
    """In which the package `explainer` is."""
    output: str
    """What the generator said."""


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Generated:
    if not GENERATOR:
        pytest.skip("there is no openapi-python-client; `make check` installs it")
    folder = tmp_path_factory.mktemp("generated")
    contract = ROOT / "openapi" / "openapi.json"
    done = subprocess.run(
        [GENERATOR, "generate", "--path", contract, "--meta", "none", "--output-path", "explainer"],
        cwd=folder,
        env={**os.environ, "PATH": f"{GENERATOR.parent}{os.pathsep}{PATH}"},
        capture_output=True,
        text=True,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    return Generated(folder, output)


@pytest.mark.parametrize(
    "operation", [each for *_, each in OPERATIONS], ids=lambda each: each["operationId"]
)
def test_each_operation_has_a_function(generated: Generated, operation: dict[str, Any]) -> None:
    name = re.sub("([A-Z])", r"_\1", operation["operationId"]).lower()
    (tag,) = operation["tags"]
    module = generated.folder / "explainer" / "api" / tag / f"{name}.py"
    assert "def sync_detailed(" in module.read_text()


def test_nothing_is_left_out_but_files(generated: Generated) -> None:
    """The generator says so of each media type that is neither JSON nor a form: of its operation
    it then makes the rest."""
    assert "will not be generated" not in generated.output, generated.output
    told = re.findall(r"^(?:WARNING|ERROR)[^\n]*\n\n([^\n]*)", generated.output, re.MULTILINE)
    assert told
    assert len(told) == len(re.findall("WARNING|ERROR", generated.output)), generated.output
    for sentence in told:
        left_out = re.search(r"Unsupported content[ _]type ([^)]*)", sentence)
        assert left_out, sentence
        assert not set(left_out[1].split(", ")) & set(SPOKEN)


def test_it_explains_and_submits_jobs(generated: Generated, address: str) -> None:
    assert GENERATOR
    photos = [ROOT / "docs" / "photos" / f"{name}.png" for name in ("chelsea", "coffee")]
    done = subprocess.run(
        [GENERATOR.with_name("python"), "-c", CALLS, address, *photos],
        cwd=generated.folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)

    maps = answers["explained"]["explanations"]
    assert [(each["instance"], each["method"]) for each in maps] == [
        *((0, "gradcam"), (0, "gradcam++")),
        *((1, "gradcam"), (1, "gradcam++")),
    ]
    assert [each["target"]["index"] for each in maps] == [CAT, CAT, ESPRESSO, ESPRESSO]
    assert [each["id"] for each in maps[::2]] == list(map(str, photos))
    assert maps[0]["heatmap"]["shape"] == [300, 451]

    (of_form,) = answers["of_form"]["explanations"]
    assert of_form["target"]["index"] == 281
    assert answers["refused"]["type"] == "urn:gradcam-service:unknown-layer"

    assert answers["accepted"]["counts"]["total"] == 2
    assert answers["job"]["state"] == "done"
    assert answers["job"]["counts"] == {"total": 2, "done": 2, "failed": 0, "left": 0}

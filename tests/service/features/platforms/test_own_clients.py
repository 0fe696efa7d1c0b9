"""KServe's, SageMaker's and Vertex AI's own clients, and Triton's over HTTP, ask the same image."""

from __future__ import annotations

import json
import re
import subprocess
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient import http as triton

from service.settings import Settings
from tests.service.conftest import MODEL
from tests.service.live import ROOT, free_port, serving

pytestmark = pytest.mark.slow
PYTHON = ROOT / ".venv" / "generator" / "bin" / "python"
CLIENTS = Path(__file__).with_name("own_clients.py")
NAME = "efficientnet-lite0"


def heard_by(client: str, *ports: int | None) -> dict[str, Any]:
    if not PYTHON.exists():
        pytest.skip("there is no environment with the platforms' clients: make check makes it")
    command = [str(PYTHON), str(CLIENTS), client, *map(str, ports)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr[-2000:]
    heard: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return heard


def test_the_page_of_open_inference(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    text = (ROOT / "docs" / "platforms" / "open-inference.md").read_text()
    grpc_port, space = free_port(), dict[str, Any]()
    with serving(GRADCAM_GRPC_PORT=str(grpc_port)) as (_, http):
        for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
            block = block.replace("127.0.0.1:8000", f"127.0.0.1:{http.base_url.port}")
            exec(block.replace("127.0.0.1:8001", f"127.0.0.1:{grpc_port}"), space)
    assert capsys.readouterr().out.splitlines() == [
        "b'Egyptian cat'",
        "(1, 1, 300, 451)",
        "0 b'Egyptian cat'",
        "1 b'espresso'",
    ]


def test_kserve_and_triton() -> None:
    """With arguments that KServe gives a container, one among them that is not for us."""
    grpc_port = free_port()
    arguments = [f"--grpc_port={grpc_port}", "--enable_latency_logging", "true"]
    with serving(*arguments, GRADCAM_HOST="127.0.0.1") as (_, http):
        heard = heard_by("kserve", http.base_url.port, grpc_port)
        with triton.InferenceServerClient(f"127.0.0.1:{http.base_url.port}") as client:
            photo = (ROOT / "docs" / "photos" / "chelsea.png").read_bytes()
            image = triton.InferInput("image", [1], "BYTES")
            image.set_data_from_numpy(np.array([photo], dtype=object))
            answer = client.infer(NAME, [image], parameters={"fit": "squash", "method": "layercam"})
        native = http.post(
            f"{MODEL}:explain?fit=squash&method=layercam",
            content=photo,
            headers={"Content-Type": "image/png", "Accept": "application/x-npy"},
        )
        expected = np.load(BytesIO(native.content))
        np.testing.assert_allclose(answer.as_numpy("heatmap")[0, 0], expected, atol=1e-6)
    assert heard["v1"] == [True, True]
    assert heard["v2"] == heard["grpc"] == [True, True, True]
    assert heard["labels"] == ["Egyptian cat"] * 4
    assert heard["map"] == [[1, 1, 300, 451], True]
    assert "there is no method 'gradcan'" in heard["error"]


def test_sagemaker() -> None:
    with serving(GRADCAM_PLATFORM="sagemaker", GRADCAM_HOST="127.0.0.1") as (_, http):
        heard = heard_by("sagemaker", http.base_url.port)
    assert heard == {"picture": b"\x89PNG".hex(), "label": "Egyptian cat"}


def test_vertex_ai() -> None:
    with serving(AIP_HTTP_PORT="8080", GRADCAM_HOST="127.0.0.1") as (_, http):
        heard = heard_by("vertex", http.base_url.port)
    assert heard == {"health": 200, "label": "Egyptian cat", "label too": "Egyptian cat"}


def test_the_manifests_of_kserve() -> None:
    assert heard_by("manifests") == {"explainer.yaml": [], "predictor.yaml": []}
    for file in (ROOT / "deploy" / "kserve").glob("*.yaml"):
        for name in re.findall(r"name: GRADCAM_(\w+)", file.read_text()):
            assert name.lower() in Settings.model_fields

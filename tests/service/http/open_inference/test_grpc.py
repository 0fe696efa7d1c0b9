"""The Open Inference Protocol over gRPC, with Triton's own client."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import grpc
import numpy as np
import pytest
from starlette.testclient import TestClient
from tritonclient import grpc as triton
from tritonclient.utils import InferenceServerException

from service.core.errors import ConfigError, Problem
from service.core.settings import Settings
from service.http import open_inference
from service.http.open_inference.grpc_server import CODES
from service.limits.keys import new_key
from service.models.catalog import EMBEDDED
from tests.service.conftest import MODEL, running_app
from tests.service.http.test_overload import FRAGILE
from tests.service.live import free_port

NAME = "efficientnet-lite0"
FOLDER = Path(open_inference.__file__).parent


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[TestClient, str]]:
    """A service with HTTP and gRPC, and the address of gRPC."""
    port = free_port()
    with running_app(Settings(grpc_port=port), [EMBEDDED, FRAGILE]) as client:
        yield client, f"127.0.0.1:{port}"


@pytest.fixture
def client(served: tuple[TestClient, str]) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(served[1]) as client:
        yield client


def image(*photos: bytes) -> triton.InferInput:
    tensor = triton.InferInput("image", [len(photos)], "BYTES")
    tensor.set_data_from_numpy(np.array(photos, dtype=object))
    return tensor


def outputs(*names: str) -> list[triton.InferRequestedOutput]:
    return [triton.InferRequestedOutput(name) for name in names]


def test_the_server_and_its_models_describe_themselves(
    client: triton.InferenceServerClient,
) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(NAME)
    assert client.get_server_metadata().name == "gradcam-service"
    described = client.get_model_metadata(NAME)
    assert [(one.name, one.datatype, list(one.shape)) for one in described.inputs] == [
        ("image", "BYTES", [-1])
    ]
    assert "heatmap" in [one.name for one in described.outputs]
    states = client.get_model_repository_index().models
    assert [(one.name, one.state) for one in states] == [(NAME, "READY"), ("fragile", "READY")]


def test_the_maps_are_those_of_explain(
    client: triton.InferenceServerClient, served: tuple[TestClient, str], cat: bytes
) -> None:
    parameters = {"method": "layercam", "fit": "squash", "opacity": 0.25, "signed": True}
    names = ("heatmap", "labels", "overlay")
    answer = client.infer(NAME, [image(cat)], outputs=outputs(*names), parameters=parameters)
    query = "method=layercam&fit=squash&opacity=0.25&signed=true"
    for name, accept in (("heatmap", "application/x-npy"), ("overlay", "image/png")):
        headers = {"Content-Type": "image/png", "Accept": accept}
        expected = served[0].post(f"{MODEL}:explain?{query}", content=cat, headers=headers).content
        if name == "overlay":
            assert answer.as_numpy(name)[0, 0] == expected
        else:
            values = np.load(BytesIO(expected))
            np.testing.assert_allclose(answer.as_numpy(name)[0, 0], values, atol=1e-6)
    assert answer.as_numpy("labels")[0, 0] == b"Egyptian cat"


def test_elements_that_are_no_raw_bytes(
    served: tuple[TestClient, str], client: triton.InferenceServerClient
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (1, 8, 8, 3), np.uint8)
    tensor = triton.InferInput("image", list(pixels.shape), "UINT8")
    tensor.set_data_from_numpy(pixels)
    raw = client.infer("fragile", [tensor], outputs=outputs("heatmap")).as_numpy("heatmap")
    message = triton.service_pb2.ModelInferRequest(model_name="fragile")
    one = message.inputs.add(name="image", datatype="UINT8", shape=pixels.shape)
    one.contents.uint_contents.extend(pixels.ravel().tolist())
    message.outputs.add(name="heatmap")
    with grpc.insecure_channel(served[1]) as channel:
        answer = triton.service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(message)
    assert answer.raw_output_contents[0] == raw.tobytes()


@pytest.mark.parametrize(
    ("model", "parameters", "code", "words"),
    [
        (NAME, {"method": "gradcan"}, "INVALID_ARGUMENT", "no method 'gradcan'"),
        (NAME, {"target": 1000}, "INVALID_ARGUMENT", "1000"),
        ("nope", {}, "NOT_FOUND", "no model 'nope'"),
    ],
)
def test_what_is_wrong_gets_a_status_with_our_sentence(
    client: triton.InferenceServerClient,
    cat: bytes,
    model: str,
    parameters: dict[str, object],
    code: str,
    words: str,
) -> None:
    with pytest.raises(InferenceServerException, match=words) as caught:
        client.infer(model, [image(cat)], parameters=parameters)
    assert caught.value.status() == f"StatusCode.{code}"


def test_a_deadline_that_is_over(client: triton.InferenceServerClient, cat: bytes) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.infer(NAME, [image(cat)], client_timeout=0.002, parameters={"method": "rise"})
    assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED"


def test_a_message_that_is_too_large(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.infer(NAME, [image(bytes(Settings().max_body_bytes + 1))])
    assert caught.value.status() == "StatusCode.RESOURCE_EXHAUSTED"


def test_every_status_of_a_problem_has_a_code() -> None:
    def below(kind: type[Problem]) -> list[type[Problem]]:
        return [one for child in kind.__subclasses__() for one in (child, *below(child))]

    argument = {400, 405, 406, 408, 413, 415, 422, 431}
    assert {kind.status for kind in below(Problem)} <= argument | set(CODES) | {410, 412, 416}
    assert CODES[429] is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert CODES[503] is grpc.StatusCode.UNAVAILABLE
    assert CODES[504] is grpc.StatusCode.DEADLINE_EXCEEDED


def test_keys_and_their_scopes(tmp_path: Path, cat: bytes) -> None:
    keys = {scope: new_key(scope, [scope], None) for scope in ("explain", "admin")}
    file = tmp_path / "keys.toml"
    file.write_text("\n".join(entry for _, entry in keys.values()))
    user, admin = ({"x-api-key": keys[scope][0]} for scope in ("explain", "admin"))
    port = free_port()
    with (
        running_app(Settings(keys=file, grpc_port=port), [FRAGILE]),
        triton.InferenceServerClient(f"127.0.0.1:{port}") as client,
    ):
        assert client.is_server_ready()  # without a key
        with pytest.raises(InferenceServerException, match="UNAUTHENTICATED"):
            client.infer("fragile", [image(cat)])
        assert client.infer("fragile", [image(cat)], headers=user).as_numpy("heatmap") is not None
        with pytest.raises(InferenceServerException, match="PERMISSION_DENIED"):
            client.unload_model("fragile", headers=user)
        client.unload_model("fragile", headers=admin)
        with pytest.raises(InferenceServerException, match="NOT_FOUND"):
            client.is_model_ready("fragile", headers=user)
        client.load_model("fragile", headers=admin)
        assert client.is_model_ready("fragile", headers=user)
    with socket.socket() as free:  # the port is given back
        free.bind(("127.0.0.1", port))


def test_a_port_that_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match="GRADCAM_GRPC_PORT"):  # noqa: SIM117
            with running_app(Settings(grpc_port=port), [FRAGILE]):
                pass


def test_what_is_checked_in_is_compiled_from_the_protocol(tmp_path: Path) -> None:
    compiled = tmp_path / "open_inference.binpb"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{FOLDER}"]
    command += [f"--descriptor_set_out={compiled}", "open_inference.proto"]
    subprocess.run(command, check=True)
    assert compiled.read_bytes() == (FOLDER / "open_inference.binpb").read_bytes()

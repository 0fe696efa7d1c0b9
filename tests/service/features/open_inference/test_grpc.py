"""The Open Inference Protocol over gRPC, with Triton's own client."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import grpc
import numpy as np
import pytest
from starlette.testclient import TestClient
from tritonclient import grpc as triton
from tritonclient.utils import InferenceServerException

from service.core.errors import ConfigError, Problem
from service.features import open_inference
from service.features.keys.keys import new_key
from service.features.open_inference import grpc_server
from service.features.open_inference.grpc_server import CODES
from service.limits.connections import other_connections
from service.models.catalog import EMBEDDED, ModelEntry
from service.settings import Settings
from tests.service.conftest import MODEL, running_app
from tests.service.http.test_overload import FRAGILE
from tests.service.limits import test_connections as connections
from tests.service.live import free_port
from tests.waiting import until

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


def test_configuration_and_statistics_are_those_of_http(
    served: tuple[TestClient, str], client: triton.InferenceServerClient, cat: bytes
) -> None:
    client.infer(NAME, [image(cat)], outputs=outputs("labels"))
    for asked, path in (
        (client.get_model_config(NAME, as_json=True)["config"], f"{NAME}/config"),
        (client.get_inference_statistics(NAME, as_json=True), f"{NAME}/stats"),
        (client.get_inference_statistics(as_json=True), "stats"),
    ):
        assert same(asked, served[0].get(f"/v2/models/{path}").json())
    with pytest.raises(InferenceServerException, match="no model 'nope'"):
        client.get_model_config("nope")
    with pytest.raises(InferenceServerException, match="no model 'nope'"):
        client.get_inference_statistics("nope")


def same(message: object, told: object) -> bool:
    """Whether a message in JSON says what HTTP says. It writes large numbers as text, and leaves
    out fields that are 0 or empty."""
    if isinstance(told, dict):
        assert isinstance(message, dict)
        assert message.keys() <= told.keys()
        return all(same(message.get(name, type(each)()), each) for name, each in told.items())
    if isinstance(told, list):
        assert isinstance(message, list)
        return len(message) == len(told) and all(map(same, message, told))
    return str(message) == str(told)


@pytest.mark.parametrize(("name", "version"), [("nope", ""), (NAME, "2"), (NAME, "x"), ("", "")])
def test_a_model_that_does_not_exist_is_not_ready(
    served: tuple[TestClient, str], client: triton.InferenceServerClient, name: str, version: str
) -> None:
    """Triton answers so too; over HTTP its clients take each status but 200 for it."""
    assert client.is_model_ready(name, version) is False
    where = f"/v2/models/{name}" + (f"/versions/{version}" if version else "")
    assert served[0].get(f"{where}/ready").status_code == 404


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

    argument = {400, 405, 406, 408, 413, 415, 421, 422, 431}
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
        assert client.is_model_ready("fragile", headers=user) is False
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


@contextmanager
def calling(
    settings: Settings, entries: list[ModelEntry], name: str, key: str = ""
) -> Iterator[Callable[[Iterator[bytes]], grpc.Call]]:
    """A service, and a function that calls it with an iterator of serialised messages."""
    port = free_port()
    settings = settings.model_copy(update={"grpc_port": port})
    with running_app(settings, entries), grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.stream_stream(f"/inference.GRPCInferenceService/{name}")
        yield lambda messages: call(messages, metadata=[("x-api-key", key)] if key else [])


def ended(call: grpc.Call) -> tuple[grpc.StatusCode, str]:
    return call.code(), call.details()


EMPTY_INPUTS = b"\x2a\x00" * 1_000_000
"""A message of a million inputs without a field: field 5, 0 bytes."""


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (EMPTY_INPUTS, "more than the 10000 fields allowed"),
        (b"\x2a\x82\x89\x7a" + b"\x22\x00" * 1_000_000, "more than the 10000 fields allowed"),
        # One input whose shape has two million sides, as a packed array.
        (b"\x2a\x84\x89\x7a\x1a\x80\x89\x7a" + b"\x01" * 2_000_000, "the 1000000 elements"),
        (b"\x2a\xff", "is not a ModelInferRequest"),
        (b"\x0a\x02\xff\xff", "is not a ModelInferRequest"),  # a name that is not UTF-8
        (b"\xff" * 40, "is not a ModelInferRequest"),
    ],
)
def test_messages_that_are_refused_before_they_are_parsed(message: bytes, words: str) -> None:
    with calling(Settings(), [FRAGILE], "ModelInfer") as call:
        code, details = ended(call(iter([message])))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert words in details


def test_no_byte_of_a_message_is_read_before_the_key_is_known(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    key, entry = new_key("app", ["explain"], None)
    file.write_text(entry)
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        while True:
            sent += 1
            yield EMPTY_INPUTS

    with calling(Settings(keys=file), [FRAGILE], "ModelInfer") as call:
        assert ended(call(endless()))[0] is grpc.StatusCode.UNAUTHENTICATED
        assert ended(call(iter([])))[0] is grpc.StatusCode.UNAUTHENTICATED
    assert sent < 10
    with calling(Settings(keys=file), [FRAGILE], "RepositoryModelLoad", key) as call:
        assert ended(call(endless()))[0] is grpc.StatusCode.PERMISSION_DENIED


def test_a_call_whose_message_never_comes_ends_and_holds_up_nobody() -> None:
    released = threading.Event()

    def silent() -> Iterator[bytes]:
        released.wait(60)
        yield from ()

    with calling(Settings(receive_seconds=1.0), [FRAGILE], "ModelMetadata") as call:
        waiting = [call(silent()) for _ in range(90)]
        told = [ended(one) for one in waiting]
        released.set()
        assert ended(call(iter([b""])))[0] is grpc.StatusCode.NOT_FOUND
        assert ended(call(iter([])))[1] == "the call has no message"
    assert {code for code, _ in told} == {grpc.StatusCode.DEADLINE_EXCEEDED}
    assert "had not arrived after 1 s" in told[0][1]


@pytest.mark.slow
def test_an_answer_that_is_not_read_ends_with_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client's window is full, and it never reads. Its memory counts until the end."""
    monkeypatch.setattr(grpc_server, "AGE_SECONDS", 1)
    message = triton.service_pb2.ModelInferRequest(model_name="fragile")
    pixels = np.random.default_rng(0).integers(0, 256, (1, 1500, 1500, 3), np.uint8)
    message.inputs.add(name="image", datatype="UINT8", shape=pixels.shape)
    message.raw_input_contents.append(pixels.tobytes())
    port = free_port()
    settings = Settings(grpc_port=port, deadline_seconds=4.0)
    with (
        running_app(settings, [FRAGILE]) as http,
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        call = channel.stream_stream("/inference.GRPCInferenceService/ModelInfer")
        unread = call(iter([message.SerializeToString()]))
        until(lambda: re.search(r'ModelInfer",status="499"} 1', http.get("/metrics").text))
        unread.cancel()


@pytest.mark.parametrize(
    ("parameters", "output", "words"),
    [
        ({"explain_parameters": "[" * 10_000}, {}, "explain_parameters is not JSON"),
        ({}, {"class_count": 3}, "the output labels names the best classes"),
    ],
)
def test_parameters_that_the_service_does_not_have(
    client: triton.InferenceServerClient,
    cat: bytes,
    parameters: dict[str, object],
    output: dict[str, int],
    words: str,
) -> None:
    asked = [triton.InferRequestedOutput("labels", **output)]
    with pytest.raises(InferenceServerException, match=words):
        client.infer(NAME, [image(cat)], outputs=asked, parameters=parameters)


def test_the_parameter_timeout_is_a_deadline(
    client: triton.InferenceServerClient, cat: bytes
) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.infer(NAME, [image(cat)], parameters={"method": "rise"}, timeout=2000)
    assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED"


files = connections.files


def test_grpc_has_a_share_of_the_connections(files: Callable[[int, int], object]) -> None:
    files(4096, 4096)
    assert other_connections(Settings()) == 0
    assert other_connections(Settings(grpc_port=8081, max_connections=400)) == 100

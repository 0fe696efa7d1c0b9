"""Platforms' own clients, unmodified, asking a service: `python own_clients.py NAME PORT…`.

It runs in the environment of `requirements-generator.lock`, and prints what it has heard as JSON.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MODEL = "efficientnet-lite0"
ROOT = Path(__file__).parents[4]
PHOTO = ROOT / "docs" / "photos" / "chelsea.png"


async def kserve(port: int, grpc_port: int) -> dict[str, Any]:
    """V1 and V2 of KServe's InferenceRESTClient, and its InferenceGRPCClient."""
    import numpy as np
    from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest
    from kserve.inference_client import RESTConfig

    address = f"http://127.0.0.1:{port}"
    heard: dict[str, Any] = {}

    def request(**parameters: Any) -> InferRequest:
        image = InferInput("image", [1], "BYTES")
        image.set_data_from_numpy(np.array([PHOTO.read_bytes()], dtype=object))
        return InferRequest(MODEL, [image], parameters={"fit": "squash", **parameters})

    async with InferenceRESTClient(RESTConfig(protocol="v1")) as client:
        heard["v1"] = [await client.is_server_live(address)]
        heard["v1"] += [await client.is_model_ready(address, MODEL)]
        b64 = base64.b64encode(PHOTO.read_bytes()).decode()
        sent = {"instances": [{"image": {"b64": b64}}], "parameters": {"fit": "squash"}}
        explained = await client.explain(address, MODEL, sent)
        predicted = await client.infer(address, sent, MODEL)
        heard["labels"] = [
            explained["explanations"][0]["target"]["label"],
            predicted["predictions"][0]["classes"][0]["label"],
        ]
    async with InferenceRESTClient(RESTConfig(protocol="v2")) as client:
        heard["v2"] = [await client.is_server_live(address), await client.is_server_ready(address)]
        heard["v2"] += [await client.is_model_ready(address, MODEL)]
        answer = await client.infer(address, request(binary_data_output=True), MODEL)
        outputs = {one.name: one.as_numpy() for one in answer.outputs}
        try:
            await client.infer(address, request(method="gradcan"), MODEL)
        except Exception as error:
            heard["error"] = str(error)
    client = InferenceGRPCClient(f"127.0.0.1:{grpc_port}")
    heard["grpc"] = [await client.is_server_live(), await client.is_server_ready()]
    heard["grpc"] += [await client.is_model_ready(MODEL)]
    again = {one.name: one.as_numpy() for one in (await client.infer(request())).outputs}
    await client.close()
    heard["labels"] += [outputs["labels"][0][0], again["labels"][0][0].decode()]
    heard["map"] = [
        list(outputs["heatmap"].shape),
        bool((outputs["heatmap"] == again["heatmap"]).all()),
    ]
    return heard


async def sagemaker(port: int) -> dict[str, Any]:
    """The runtime client of SageMaker's local mode."""
    from sagemaker.local.local_session import LocalSagemakerRuntimeClient

    client = LocalSagemakerRuntimeClient({"local": {"serving_port": port}})
    photo = PHOTO.read_bytes()
    picture = client.invoke_endpoint(
        photo, "any", "application/x-image", "image/png", "fit=squash&target=tabby"
    )["Body"].read()
    answer = client.invoke_endpoint(
        photo, "any", "application/x-image", "application/json", "operation=predict&fit=squash"
    )["Body"].read()
    return {"picture": picture[:4].hex(), "label": _best(json.loads(answer))}


async def vertex(port: int) -> dict[str, Any]:
    """The LocalEndpoint of Vertex AI's SDK, which asks a container that it has not started itself,
    and the message in which Vertex passes an answer on."""
    from google.cloud.aiplatform.prediction import LocalEndpoint
    from google.cloud.aiplatform_v1 import PredictResponse

    endpoint = LocalEndpoint(
        "none", serving_container_predict_route="/predict", serving_container_health_route="/health"
    )
    endpoint.container_is_running, endpoint.assigned_host_port = True, port
    b64 = base64.b64encode(PHOTO.read_bytes()).decode()
    sent = {"instances": [{"b64": b64}], "parameters": {"fit": "squash"}}
    headers = {"Content-Type": "application/json"}
    answer = endpoint.predict(json.dumps(sent), headers=headers)
    message = PredictResponse.from_json(answer.text)
    health = endpoint.run_health_check().status_code
    endpoint.container_is_running = False
    (prediction,) = message.predictions
    return {
        "health": health,
        "label": prediction["explanations"][0]["target"]["label"],
        "label too": _best(answer.json()),
    }


async def manifests(*_: int) -> dict[str, Any]:
    """Where KServe's manifests do not fit the types that KServe generates from its CRD, and in them
    those of Kubernetes."""
    import yaml

    files = sorted((ROOT / "deploy" / "kserve").glob("*.yaml"))
    return {
        file.name: list(_misfits(yaml.safe_load(file.read_text()), "V1beta1InferenceService", ""))
        for file in files
    }


def _misfits(data: Any, kind: str, where: str) -> Iterator[str]:
    import kserve as models
    from kubernetes import client

    if kind.startswith("list["):
        for turn, one in enumerate(data):
            yield from _misfits(one, kind[5:-1], f"{where}/{turn}")
    elif hasattr(models, kind):
        described = getattr(models, kind)
        names = {key: name for name, key in described.attribute_map.items()}
        for key, value in data.items():
            if key not in names:
                yield f"{where}/{key}: {kind} has none"
            else:
                yield from _misfits(value, described.openapi_types[names[key]], f"{where}/{key}")
    elif hasattr(client, kind):
        read = getattr(client, kind).from_dict(data)
        if read.model_dump(by_alias=True, exclude_none=True) != data:
            yield f"{where}: no {kind}"


def _best(answer: dict[str, Any]) -> str:
    label: str = answer["predictions"][0]["classes"][0]["label"]
    return label


if __name__ == "__main__":
    name, *ports = sys.argv[1:]
    client: Any = {each.__name__: each for each in (kserve, manifests, sagemaker, vertex)}[name]
    print(json.dumps(asyncio.run(client(*map(int, ports)))))

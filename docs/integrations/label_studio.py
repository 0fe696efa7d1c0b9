"""An ML backend for Label Studio: the hot region of each map as a brush mask, with its label.

GRADCAM_URL=http://127.0.0.1:8000 uvicorn --app-dir docs/integrations label_studio:app --port 9090
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from label_studio_sdk.converter.brush import mask2rle
from label_studio_sdk.label_interface import LabelInterface

from service.client import Client

LEAST = float(os.environ.get("GRADCAM_LEAST", "0.5"))
"""Least value of the map inside the mask."""
app = FastAPI()
client = Client(os.environ.get("GRADCAM_URL", "http://127.0.0.1:8000"))
version: dict[str, str] = {}


@app.get("/health")
@app.get("/")
def health() -> dict[str, str]:
    return {"status": "UP", "model_class": "gradcam-service"}


@app.post("/setup")
def setup(request: dict[str, Any]) -> dict[str, str]:
    """Label Studio tells the project's labelling configuration, and hears the model's version."""
    version["model"] = client.model().fingerprint
    return {"model_version": version["model"]}


@app.post("/predict")
def predict(request: dict[str, Any]) -> dict[str, Any]:
    """Explain the images of some tasks."""
    interface = LabelInterface(request["label_config"])
    control, image, value = interface.get_first_tag_occurence("BrushLabels", "Image")
    return {
        "results": [
            _prediction(_path(task["data"][value]), control, image) for task in request["tasks"]
        ]
    }


def _prediction(path: str, control: str, image: str) -> dict[str, Any]:
    explanation = client.explain(path)
    height, width = explanation.map.shape
    mask = (explanation.map >= LEAST).astype("uint8") * 255
    result = {
        "from_name": control,
        "to_name": image,
        "type": "brushlabels",
        "original_width": width,
        "original_height": height,
        "value": {
            "format": "rle",
            "rle": mask2rle(mask),
            "brushlabels": [explanation.target.label],
        },
    }
    return {
        "model_version": version.get("model", ""),
        "score": explanation.target.probability,
        "result": [result],
    }


def _path(address: str) -> str:
    """Return the file of a task's address in Label Studio's local storage, or the address."""
    root = Path(os.environ.get("LOCAL_FILES_DOCUMENT_ROOT", "/"))
    return str(root / address.partition("?d=")[2]) if "?d=" in address else address

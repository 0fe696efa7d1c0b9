"""Grad-CAM over HTTP as people write it: FastAPI and pytorch-grad-cam, one image a request.

    python -m bench.peers.plain_fastapi PORT

Written to be fair: the model is loaded and hooked once, requests run in FastAPI's thread pool, and
a lock keeps two of them from sharing the hooks.
"""

from __future__ import annotations

import io
import sys
from threading import Lock

import cv2
import numpy as np
import torch
import torchvision
import uvicorn
from fastapi import Body, FastAPI
from fastapi.responses import Response
from PIL import Image
from pytorch_grad_cam import GradCAM
from pytorch_grad_cam.utils.image import show_cam_on_image
from torchvision import transforms

torch.manual_seed(0)
model = torchvision.models.resnet50(weights=None).eval()
cam = GradCAM(model=model, target_layers=[model.layer4])
lock = Lock()
preprocess = transforms.Compose(
    [
        transforms.ToTensor(),
        transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    ]
)
app = FastAPI()


@app.get("/readyz")
def ready() -> dict[str, bool]:
    return {"ready": True}


@app.post("/explain")
def explain(data: bytes = Body(media_type="image/jpeg")) -> Response:
    photo = Image.open(io.BytesIO(data)).convert("RGB")
    small = photo.resize((224, 224), Image.Resampling.BILINEAR)
    with lock:
        (heat,) = cam(input_tensor=preprocess(small)[None], targets=None)
    heat = cv2.resize(heat, photo.size)
    shown = show_cam_on_image(np.asarray(photo, np.float32) / 255, heat, use_rgb=True)
    _, encoded = cv2.imencode(".png", cv2.cvtColor(shown, cv2.COLOR_RGB2BGR))
    return Response(encoded.tobytes(), media_type="image/png")


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), log_level="warning")

"""Grad-CAM behind LitServe, its batching on.

    python -m bench.peers.litserve_gradcam PORT

Requests are decoded and drawn one by one and explained together, as LitServe's guide to batching
has it; the target of each image is its predicted class.
"""

from __future__ import annotations

import base64
import io
import sys
from typing import Any

import cv2
import litserve
import numpy as np
import torch
import torchvision
from fastapi import Response
from PIL import Image
from pytorch_grad_cam import GradCAM
from pytorch_grad_cam.utils.image import show_cam_on_image
from torchvision import transforms


class GradCamApi(litserve.LitAPI):
    def setup(self, device: str) -> None:
        torch.manual_seed(0)
        self.model = torchvision.models.resnet50(weights=None).eval().to(device)
        self.cam = GradCAM(model=self.model, target_layers=[self.model.layer4])
        self.to_device = device
        self.preprocess = transforms.Compose(
            [
                transforms.ToTensor(),
                transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
            ]
        )

    def decode_request(self, request):  # type: ignore[no-untyped-def] # LitServe reads hints
        return Image.open(io.BytesIO(base64.b64decode(request["image"]))).convert("RGB")

    def batch(self, inputs: list[Image.Image]) -> tuple[list[Image.Image], torch.Tensor]:
        small = [photo.resize((224, 224), Image.Resampling.BILINEAR) for photo in inputs]
        return inputs, torch.stack([self.preprocess(each) for each in small])

    def predict(self, batch: tuple[list[Image.Image], torch.Tensor]) -> list[Any]:
        photos, images = batch
        heats = self.cam(input_tensor=images.to(self.to_device), targets=None)
        return list(zip(photos, heats, strict=True))

    def unbatch(self, output: list[Any]) -> list[Any]:
        return output

    def encode_response(self, output: Any) -> Response:
        photo, heat = output
        heat = cv2.resize(heat, photo.size)
        shown = show_cam_on_image(np.asarray(photo, np.float32) / 255, heat, use_rgb=True)
        _, encoded = cv2.imencode(".png", cv2.cvtColor(shown, cv2.COLOR_RGB2BGR))
        return Response(encoded.tobytes(), media_type="image/png")


if __name__ == "__main__":
    api = GradCamApi(max_batch_size=16, batch_timeout=0.01)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1, timeout=600)
    server.run(
        port=int(sys.argv[1]),
        num_api_servers=2,
        generate_client_file=False,
        log_level="warning",
    )

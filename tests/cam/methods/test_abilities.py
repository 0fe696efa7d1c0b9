"""Which methods a model cannot do: said beforehand as it is said on trying."""

from __future__ import annotations

import pytest
import timm
import torch
import torchvision
from torch import nn

from cam import METHODS, CamError, default_layer, explain, survey
from cam.methods.abilities import unsuited
from tests.cam.methods.test_attention import of_hugging_face, of_timm, of_torchvision
from tests.cam.nets import ATTENDING, DETECTING, detector, hook_count, images, segmenter

MODELS = {
    "resnet18": lambda: torchvision.models.resnet18(),
    "vgg11": lambda: torchvision.models.vgg11(),
    "densenet121": lambda: torchvision.models.densenet121(),
    "convnext": lambda: timm.create_model("test_convnext"),
    "lite0": lambda: timm.create_model("tf_efficientnet_lite0"),
    "swin": lambda: torchvision.models.swin_t(),
    "vit": of_timm,
    "vit of torchvision": of_torchvision,
    "vit of Hugging Face": of_hugging_face,
    "segmenter": segmenter,
    "detector": detector,
}
CANNOT = {
    "resnet18": {*ATTENDING},
    "vgg11": {*ATTENDING, "cam"},
    "vit": {"cam", "lrp", "fullgrad", "guidedbackprop", "guidedgradcam"},
    "segmenter": {*ATTENDING, "cam", "finercam", "lrp"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_what_is_said_is_what_happens(name: str) -> None:
    torch.manual_seed(0)
    model: nn.Module = MODELS[name]().eval()
    x = images(1, size=64)
    layers = survey(model, x)
    layer = default_layer(layers)
    grid = next(each.grid for each in layers if each.name == layer)
    assert grid is not None
    cannot = unsuited(model, x, layer, grid)
    boxes = set() if name == "detector" else set(DETECTING)
    assert set(cannot) & set(DETECTING) == boxes
    assert set(cannot) - boxes == CANNOT.get(name, set(cannot) - boxes)
    assert hook_count(model) == 0
    for method in ("cam", "finercam", "fullgrad", "guidedbackprop", *ATTENDING, "lrp", "odam"):
        refused: CamError | None = None
        try:
            explain(model, x, method=method, layer=layer)
        except CamError as error:
            refused = error
        # Nothing is detected in noise, whatever the method.
        unseen = "detects nothing" in str(refused)
        assert (method in cannot) == (refused is not None) or unseen, (method, refused)
    assert set(cannot) <= set(METHODS)

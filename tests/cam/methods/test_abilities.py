"""Which methods a model cannot do: said beforehand as it is said on trying."""

from __future__ import annotations

from dataclasses import replace

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn

from cam import METHODS, CamError, default_layer, explain, survey
from cam.methods.abilities import unsuited
from cam.methods.trial import Trial
from cam.outputs.outputs import forward
from cam.outputs.reading import Reading
from tests.cam.methods.needs import ATTENDING, DETECTING
from tests.zoo.convolutional import segmenter, small
from tests.zoo.detectors import detector
from tests.zoo.parts import hook_count, images
from tests.zoo.transformers import of_hugging_face, of_timm, vit

MODELS = {
    "resnet18": lambda: torchvision.models.resnet18(),
    "vgg11": lambda: torchvision.models.vgg11(),
    "densenet121": lambda: torchvision.models.densenet121(),
    "convnext": lambda: timm.create_model("test_convnext"),
    "lite0": lambda: timm.create_model("tf_efficientnet_lite0"),
    "swin": lambda: torchvision.models.swin_t(),
    "vit": of_timm,
    "vit of torchvision": vit,
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


def choosy(trial: Trial, name: str) -> str | None:
    if trial.output.kind == "value":
        raise RuntimeError("no value")
    return f"{name} needs 3 logits" if trial.once(counted) != 3 else None


def counted(model: nn.Module, image: Tensor, reading: Reading) -> int:
    counts.append(1)
    return len(forward(model, image, reading)[0].logits)  # type: ignore[arg-type]


counts: list[int] = []


def headed(classes: int) -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, classes))


def test_a_method_of_a_package_says_itself_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("choosy", "picky"):
        own = replace(METHODS["gradcam"], name=name, unsuited=choosy)
        monkeypatch.setitem(METHODS, name, own)
    counts.clear()
    x = images(1)
    problems = unsuited(headed(4), x, None, None)
    assert problems["choosy"] == "choosy needs 3 logits"
    assert problems["picky"] == "picky needs 3 logits"
    assert len(counts) == 1  # both methods share the check
    assert "choosy" not in unsuited(headed(3), x, None, None)
    failed = unsuited(headed(1), x, None, None, Reading(activation="none", meaning="value"))[
        "choosy"
    ]
    assert failed == "its check failed: RuntimeError: no value"


def test_each_reason_is_of_a_method_that_states_one() -> None:
    """What needs no gradient, and states nothing, suits every model."""
    assert set(unsuited(small(), images(1), None, None)) <= {
        name for name, method in METHODS.items() if method.unsuited
    }

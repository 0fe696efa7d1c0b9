"""Autocast around the call: the model's passes are the caller's, the maps are float32."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import timm
import torch
from torch import nn

from cam import METHODS, CamError, Question, explain, explain_in_steps
from cam.hooks.precision import callers_precision, full_precision, steps_in_full_precision
from cam.targets import ClassTarget
from tests.cam.methods.needs import ATTENDING, DETECTING
from tests.zoo.convolutional import small
from tests.zoo.parts import images

ATTENTION = ATTENDING


def vit() -> nn.Module:
    torch.manual_seed(0)
    made = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2
    )
    assert isinstance(made, nn.Module)
    return made.eval()


@pytest.mark.parametrize("method", [name for name in METHODS if name not in (*DETECTING, "lrp")])
def test_every_method_answers_under_autocast(method: str) -> None:
    model = vit() if method in ATTENTION else small()
    x = images(2, size=32 if method in ATTENTION else 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = explain(model, x, target=1, method=method, layer="relu2", budget=8)
        assert torch.is_autocast_enabled("cpu")
    plain = explain(model, x, target=1, method=method, layer="relu2", budget=8)
    for each, exact in zip(found, plain, strict=True):
        assert each.map.dtype == np.float32
        assert np.isfinite(each.map).all()
        assert each.score == pytest.approx(exact.score, abs=0.1)


def test_the_model_runs_in_the_callers_precision_and_the_arithmetic_does_not() -> None:
    """What a convolution gives is rounded to bfloat16; what cam sums of it is not."""
    model, x = small(), images(1)
    dtypes = []
    handle = model.conv2.register_forward_hook(lambda m, a, out: dtypes.append(out.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (found,) = explain(model, x, target=0, method="scorecam", layer="relu2")
        (one,) = explain(model, x, target=0, layer="relu2")
    handle.remove()
    assert set(dtypes) == {torch.bfloat16}
    for each in (found, one):
        rounded = torch.from_numpy(each.map).bfloat16().float().numpy()
        assert (each.map != rounded).any()


def test_between_two_steps_autocast_is_the_callers() -> None:
    question = Question((ClassTarget(0),), "rise", (), budget=32)
    steps = explain_in_steps(small(), images(1)[0], question, chunk=16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        next(steps)
        assert torch.is_autocast_enabled("cpu")
    next(steps)
    assert not torch.is_autocast_enabled("cpu")


def test_blocks_nest() -> None:
    def on() -> bool:
        return torch.is_autocast_enabled("cpu")

    def steps() -> Iterator[bool]:
        yield on()

    with torch.autocast("cpu", dtype=torch.bfloat16):
        with full_precision(), full_precision():
            assert not on()
            with callers_precision():
                assert on()
                assert torch.get_autocast_dtype("cpu") == torch.bfloat16
                with full_precision():
                    assert not on()
            assert not on()
        assert list(steps_in_full_precision(steps())) == [False]  # type: ignore[arg-type]
        with pytest.raises(KeyError), full_precision():
            raise KeyError
        assert on()
    with full_precision(), callers_precision():
        assert not on()


def test_a_prediction_before_a_gradient_leaves_it_nothing_that_cannot_be_saved() -> None:
    """Autocast keeps what it cast for the whole block, in inference mode, too."""
    model, x = small(), images(1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.inference_mode():
            model(x)
        try:
            (found,) = explain(model, x, target=0, layer="conv1")
        except CamError as error:
            pytest.fail(str(error))
    assert np.isfinite(found.map).all()


@pytest.mark.parametrize("method", ["gradcam", "hirescam", "layercam", "gradient"])
def test_a_very_sure_probability_has_a_map_in_float16(method: str) -> None:
    """1 - p is 6e-6 here; over the layer's 256 positions its gradient is 0 in float16."""
    torch.manual_seed(0)
    head = nn.Linear(8, 3)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head
    ).eval()
    photos = torch.rand(2, 3, 16, 16)
    with torch.no_grad():
        # The second image is far less sure: each has a factor of its own.
        photos[1] *= 0.1
        head.bias.copy_(torch.tensor([12.0, 0.0, 0.0]))
        head.weight[0] += 1
        photos, model = photos.half().float(), model.half().float()
    asked: dict[str, Any] = {"target": ClassTarget(0, of="probability"), "method": method}
    if method == "gradient":
        asked |= {"layer": "auto"}
    else:
        asked |= {"layer": "1", "signed": True}
    exact = explain(model, photos, **asked)
    rounded = explain(model.half(), photos.half(), **asked)
    for one, other in zip(exact, rounded, strict=True):
        assert 0 < np.abs(one.map).max() < 1e-4
        np.testing.assert_allclose(other.map, one.map, rtol=0, atol=0.02 * np.abs(one.map).max())
        assert not other.warnings

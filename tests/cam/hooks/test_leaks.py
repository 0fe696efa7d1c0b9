"""Nothing grows: after any method, in a loop and after an exception (grad-cam #78, #132, #195,
#483; #575 of Shapley-CAM's graph), no tensor, hook or gradient stays."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import Tensor, nn

from cam import METHODS, CamError, explain
from tests.cam.methods.needs import ATTENDING, DETECTING
from tests.zoo.convolutional import small
from tests.zoo.hostile import Failing
from tests.zoo.parts import hook_count, images
from tests.zoo.transformers import of_timm

ATTENTION = ATTENDING


@pytest.fixture(scope="module", autouse=True)
def only_what_is_new() -> None:
    """To look through all that other tests hold takes a second each time."""
    gc.collect()
    gc.freeze()


def tensors() -> int:
    gc.collect()
    # Not isinstance: some objects of others answer that with a warning.
    return sum(issubclass(type(each), Tensor) for each in gc.get_objects())


@pytest.mark.parametrize("method", [name for name in METHODS if name not in (*DETECTING, "lrp")])
def test_a_loop_leaves_nothing(method: str) -> None:
    torch.manual_seed(0)
    model: nn.Module = of_timm().eval() if method in ATTENTION else small(inplace=True)
    x = images(1, size=64 if method in ATTENTION else 8)
    layer = "blocks.2.norm1" if method in ATTENTION else "relu2"
    budget = 20 if METHODS[method].budget else None

    def run() -> None:
        explain(model, x, target=[0, 1], method=method, layer=layer, budget=budget)
        with pytest.raises(CamError):
            explain(model, x, target=10**6, method=method, layer=layer, budget=budget)

    run()
    before = tensors()
    for _ in range(3):
        run()
    assert tensors() == before
    assert hook_count(model) == 0
    assert not any("forward" in vars(module) for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    "method", [name for name in METHODS if name not in (*ATTENTION, *DETECTING, "lrp")]
)
def test_an_exception_in_the_models_own_forward_leaves_nothing(method: str) -> None:
    torch.manual_seed(0)
    model = Failing().eval()
    x = images(1)

    def run() -> None:
        model.broken = True
        with pytest.raises(RuntimeError, match="broken"):
            explain(model, x, target=0, method=method, layer="relu1", budget=None)
        model.broken = False

    run()
    before = tensors()
    for _ in range(3):
        run()
    assert tensors() == before
    assert hook_count(model) == 0
    assert torch.is_grad_enabled()


def test_a_model_can_be_forgotten() -> None:
    model = small()
    for method in METHODS:
        if method not in (*ATTENTION, *DETECTING, "lrp"):
            budget = 10 if METHODS[method].budget else None
            if method != "cam":
                explain(model, images(1), target=0, method=method, layer="relu1", budget=budget)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None

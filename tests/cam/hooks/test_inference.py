"""Models as people bring them: trained, compiled, checkpointed, scripted, quantised, shared by
threads. Each is explained as the plain model is, and left as found."""

from __future__ import annotations

import copy
import gc
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cam import Explanation, explain, survey
from cam.errors import MethodUnsuited, NoGradientPath, NoTargetLayer, ScriptedModel
from cam.hooks.inference import alone, evaluating
from cam.inputs import HOOKLESS
from tests.cam.hooks.test_precision import vit
from tests.zoo.convolutional import Small, small
from tests.zoo.hostile import Frozen
from tests.zoo.parts import hook_count, images, pooled


def assert_same(found: list[Explanation], plain: list[Explanation]) -> None:
    for each, other in zip(found, plain, strict=True):
        assert each.layer == other.layer
        np.testing.assert_allclose(each.map, other.map, rtol=1e-4, atol=1e-7)


# --- checkpointing


class Checkpointed(Small):
    """`Small` whose second half is run again in the backward pass."""

    reentrant = True

    def second(self, x: Tensor) -> Tensor:
        return checkpoint(super().second, x, use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("method", ["gradcam", "shapleycam", "fullgrad", "guidedgradcam", "cam"])
def test_checkpoints_change_nothing(method: str, reentrant: bool) -> None:
    plain, model, x = small(), Checkpointed().eval(), images(2)
    model.reentrant = reentrant
    model.load_state_dict(plain.state_dict())
    assert_same(explain(model, x, method=method), explain(plain, x, method=method))
    layers = ["conv1", "conv2", "relu2"]
    assert_same(explain(model, x, layer=layers), explain(plain, x, layer=layers))
    assert [each.problem for each in survey(model, x[:1])] == [
        each.problem for each in survey(plain, x[:1])
    ]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["gradcam", "chefer", "rollout", "legrad"])
def test_timms_checkpoints_change_nothing(method: str) -> None:
    plain, x = vit(), images(1, size=32)
    model = copy.deepcopy(plain)
    model.set_grad_checkpointing(True)  # type: ignore[operator]
    assert_same(explain(model, x, method=method), explain(plain, x, method=method))
    assert vars(model)["grad_checkpointing"] is True


def test_checkpoints_of_other_threads_stay_and_all_are_back_afterwards() -> None:
    def names() -> dict[str, Any]:
        found = {
            name: value
            for name, value in vars(torch.utils.checkpoint).items()
            if name.startswith("_checkpoint")
        }
        return found | {"apply": torch.utils.checkpoint.CheckpointFunction.apply}

    runs = 0

    def work(x: Tensor) -> Tensor:
        nonlocal runs
        runs += 1
        return x.sin()

    def differentiate() -> int:
        nonlocal runs
        runs = 0
        for reentrant in (True, False):
            x = torch.ones(2, requires_grad=True)
            checkpoint(work, x, use_reentrant=reentrant).sum().backward()  # type: ignore[no-untyped-call]
        return runs

    before = names()
    with ThreadPoolExecutor(1) as other:
        with evaluating(small()):
            assert differentiate() == 2
            assert other.submit(differentiate).result() == 4
        with pytest.raises(KeyError), evaluating(small()):
            raise KeyError
        assert differentiate() == 4
    assert names() == before


# --- compiled and scripted


def by_module(model: Small) -> nn.Module:
    compiled: nn.Module = torch.compile(model, backend="eager")  # type: ignore[assignment]
    return compiled


def in_place(model: Small) -> nn.Module:
    model.compile(backend="eager")
    return model


def by_forward(model: Small) -> nn.Module:
    model.forward = torch.compile(model.forward, backend="eager")  # type: ignore[method-assign]
    return model


def by_part(model: Small) -> nn.Module:
    model.conv2 = torch.compile(model.conv2, backend="eager")  # type: ignore[assignment]
    return model


@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("way", [by_module, in_place, by_forward, by_part])
def test_what_is_compiled_is_explained_as_it_was_written(
    way: Callable[[Small], nn.Module],
) -> None:
    plain, x = small(), images(2)
    model = way(small())
    expected = model(x)  # compiled without hooks
    attributes = dict(vars(model))
    for layer in ("auto", "relu2", "conv2"):
        assert_same(explain(model, x, layer=layer), explain(plain, x, layer=layer))
    assert_same(explain(model, x, layer="_orig_mod.relu2"), explain(plain, x, layer="relu2"))
    assert_same(explain(model, x, method="fullgrad"), explain(plain, x, method="fullgrad"))
    assert dict(vars(model)) == attributes
    torch.testing.assert_close(model(x), expected)


@pytest.mark.filterwarnings("ignore")
def test_a_layer_inside_a_compiled_block_has_its_name_with_and_without_the_prefix() -> None:
    torch.manual_seed(0)
    trunk: nn.Module = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Sequential(nn.ReLU()))
    head = pooled(nn.Conv2d(4, 5, 3, 2, 1), nn.ReLU(), nn.Linear(5, 3))
    plain, x = nn.Sequential(OrderedDict(trunk=trunk, head=head)).eval(), images(1)
    expected = explain(plain, x, target=1, layer="trunk.1.0")
    plain.trunk = torch.compile(trunk, backend="eager")  # type: ignore[assignment]
    for name in ("trunk.1.0", "trunk._orig_mod.1.0"):
        (found,) = explain(plain, x, target=1, layer=name)
        np.testing.assert_allclose(found.map, expected[0].map, rtol=1e-5)
        assert found.layer == "trunk._orig_mod.1.0"


@pytest.fixture
def scripted() -> Iterator[list[nn.Module]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is old
        traced = torch.jit.trace(small(), images(1))  # type: ignore[no-untyped-call]
        yield [torch.jit.script(small()), traced]


def test_a_scripted_model_is_explained_from_outside_alone(scripted: list[nn.Module]) -> None:
    x = images(1)
    for model in scripted:
        for method in HOOKLESS:
            options = {"target": 1, "method": method, "budget": 4}
            assert_same(explain(model, x, **options), explain(small(), x, **options))  # type: ignore[arg-type]
        for method in ("gradcam", "fullgrad", "guidedbackprop", "rollout"):
            with pytest.raises(ScriptedModel, match=r"TorchScript runs none: .* or use rise,"):
                explain(model, x, method=method)


def test_a_scripted_part_is_passed_over(scripted: list[nn.Module]) -> None:
    for part in scripted:
        model = nn.Sequential(OrderedDict(conv=nn.Conv2d(3, 3, 3, padding=1), part=part)).eval()
        (found,) = explain(model, images(1), target=1)
        assert found.layer == "conv"
        explain(model, images(1), method="ablationcam")
        for layer in ("part", "part.relu2"):
            with pytest.raises(ScriptedModel, match=f"layer '{layer}' is TorchScript"):
                explain(model, images(1), layer=layer)
        with pytest.raises(MethodUnsuited, match="TorchScript"):
            explain(model, images(1), method="fullgrad")


# --- inference mode, gradients switched off, quantised


@pytest.mark.parametrize("method", ["gradcam", "eigencam", "gradient", "fullgrad", "ablationcam"])
def test_parameters_made_in_inference_mode(method: str) -> None:
    model = small()
    with torch.inference_mode():
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                setattr(module, name, nn.Parameter(parameter.clone()))
    held = {name: id(each) for name, each in model.named_parameters()}
    assert all(each.is_inference() for each in model.parameters())
    x = images(2)
    assert_same(explain(model, x, method=method), explain(small(), x, method=method))
    assert {name: id(each) for name, each in model.named_parameters()} == held


def test_images_made_in_inference_mode() -> None:
    with torch.inference_mode():
        x = images(2)
    assert_same(explain(small(), x), explain(small(), images(2)))


@pytest.mark.parametrize("how", ["no_grad", "on"])
@pytest.mark.parametrize("method", ["gradcam", "shapleycam", "smoothgradcam++"])
def test_a_block_that_sets_the_grad_mode_hides_no_layer(method: str, how: str) -> None:
    torch.manual_seed(0)
    model, plain, x = Frozen(how).eval(), small(), images(2)
    for layer in ("auto", "relu2", ["conv1", "conv2"]):
        found = explain(model, x, target=1, method=method, layer=layer, budget=4)
        assert_same(found, explain(plain, x, target=1, method=method, layer=layer, budget=4))
    if how == "no_grad":
        with pytest.raises(NoGradientPath, match="reaches the image: the model cuts it off"):
            explain(model, x, method="gradient")
    assert torch.is_grad_enabled()
    assert hook_count(model) == 0


@pytest.mark.parametrize(
    ("how", "named", "automatic"),
    [
        ("inference", "'relu2': the model runs it in torch.inf", "layers with a spatial output in"),
        ("detach", "or the model cuts off the gradient", "that a gradient of its logits reaches"),
    ],
)
def test_why_no_gradient_comes_is_said(how: str, named: str, automatic: str) -> None:
    model, x = Frozen(how).eval(), images(1)
    for method in ("gradcam", "shapleycam"):
        with pytest.raises(NoGradientPath, match=named):
            explain(model, x, layer="relu2", method=method)
    with pytest.raises(NoTargetLayer, match=automatic):
        explain(model, x)
    with pytest.raises(NoGradientPath, match="reaches the image: the model cuts it off"):
        explain(model, x, method="gradient")
    for method in ("eigencam", "cam", "scorecam", "rise"):
        explain(model, x, method=method, layer="relu2", budget=4)
    assert torch.is_grad_enabled()


@pytest.fixture
def quantised() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.ao is old
        made: nn.Module = torch.ao.quantization.quantize_dynamic(  # type: ignore[no-untyped-call]
            small(), {nn.Linear}, dtype=torch.qint8
        )
    return made


def test_the_gradient_of_a_quantised_head_is_that_of_its_weights(quantised: nn.Module) -> None:
    """Behind a mean over 16 positions: w_ck / 16 at each."""
    x = images(1)
    weights = quantised.head.weight().dequantize()  # type: ignore[operator,union-attr]
    plain = small()
    activation = plain.relu2(plain.conv2(plain.relu1(plain.conv1(x))))
    expected = torch.einsum("k,khw->hw", weights[1], activation[0]) / 16
    for method, scale in (("gradcam", 1), ("hirescam", 1), ("cam", 16)):
        (found,) = explain(quantised, x, target=1, method=method, layer="relu2", signed=True)
        np.testing.assert_allclose(
            found.map, scale * expected.detach().numpy(), rtol=1e-4, atol=1e-6
        )
        assert found.score == pytest.approx(quantised(x)[0, 1].item(), abs=1e-6)
    for method in ("gradient", "fullgrad", "guidedgradcam", "shapleycam"):
        explain(quantised, x, method=method)
    assert hook_count(quantised) == 0


# --- threads


@pytest.mark.slow
def test_threads_take_turns_and_leave_modes_and_statistics() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5)),
        *(nn.Conv2d(4, 5, 3, padding=1), nn.BatchNorm2d(5), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 3)),
    )
    model[5].eval()
    x = images(1)
    methods = ("gradcam", "hirescam", "fullgrad", "ablationcam", "guidedgradcam")
    options = [{"method": each, "target": 2, "budget": 2} for each in methods]
    expected = [explain(model, x, **each)[0].map for each in options]  # type: ignore[arg-type]
    assert sum(each.any() for each in expected) >= 4
    modes = [module.training for module in model.modules()]
    buffers = {name: each.clone() for name, each in model.named_buffers()}

    def work(turn: int) -> float:
        at = turn % len(options)
        (found,) = explain(model, x, **options[at])  # type: ignore[arg-type]
        return float(np.abs(found.map - expected[at]).max() / max(expected[at].max(), 1e-6))

    with ThreadPoolExecutor(8) as threads:
        assert max(threads.map(work, range(8 * 20))) <= 1e-4
    assert [module.training for module in model.modules()] == modes
    for name, each in model.named_buffers():
        torch.testing.assert_close(each, buffers[name], rtol=0, atol=0)
    assert hook_count(model) == 0


def test_models_do_not_wait_for_each_other_and_leave_no_lock_behind() -> None:
    from cam.hooks import inference

    one, other = small(), small()
    with ThreadPoolExecutor(1) as thread, alone(one), evaluating(one):
        thread.submit(explain, other, images(1)).result(timeout=60)
    count = len(inference._locks)
    del one
    gc.collect()
    assert len(inference._locks) < count


def test_between_steps_another_thread_may_explain() -> None:
    from cam import ClassTarget, Question, explain_in_steps

    model, x = small(), images(1)
    for method in ("rise", "smoothgradcam++", "fullgrad", "shapleycam"):
        question = Question((ClassTarget(0), ClassTarget(1)), method, ("relu2",), budget=32)
        steps = explain_in_steps(model, x[0], question)
        next(steps)
        with ThreadPoolExecutor(1) as thread:
            thread.submit(explain, model, x).result(timeout=60)
        steps.close()

"""From a catalog entry to a served model: every source, weights, labels, layers, devices."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torchvision
from pydantic import ValidationError
from safetensors.torch import save_file
from torch import nn

from cam import explain
from service.core.errors import ConfigError
from service.loading.served_model import ServedModel, load
from service.loading.sources import build
from service.models.catalog import EMBEDDED, ModelEntry, read_catalog
from service.settings import Settings
from tests.service.conftest import encoded, noise, running_app, values
from tests.zoo.convolutional import small
from tests.zoo.factories import evil_checkpoint

TINY = "factory:tests.zoo.factories:tiny"


def entry(source: str = TINY, **given: Any) -> ModelEntry:
    given = {"weights": "none", "input_size": 32, **given}
    return ModelEntry(name="m", source=source, **given)


@pytest.fixture(scope="module")
def embedded() -> ServedModel:
    return load(EMBEDDED)


@pytest.mark.slow
def test_the_embedded_model(embedded: ServedModel) -> None:
    assert (embedded.classes, embedded.default_layer, str(embedded.dtype)) == (
        1000,
        "bn2",
        "torch.float32",
    )
    # The last stage ends where Grad-CAM++ looks, which RefineCAM is made of.
    stages = ("blocks.2.0.bn1", "blocks.3.0.bn1", "blocks.5.0.bn1", "blocks.6")
    assert embedded.layers_of("refinecam") == stages
    seen = embedded.preprocessing
    assert (seen.height, seen.width, seen.shorter_side) == (224, 224, 256)
    assert seen.mean == seen.std == (0.5, 0.5, 0.5)
    assert seen.resampling.name == "BICUBIC"
    assert embedded.labels.name(285) == "Egyptian cat"
    assert not any(p.requires_grad for p in embedded.module.parameters())
    assert load(EMBEDDED).fingerprint == embedded.fingerprint


def test_a_quantised_model_is_served_and_its_weights_are_told_apart() -> None:
    factories = "factory:tests.zoo.factories:"
    one, same, other, plain = (
        load(entry(factories + name)).fingerprint
        for name in ("quantised", "quantised", "quantised_otherwise", "tiny")
    )
    assert one == same
    assert len({one, other, plain}) == 3


@pytest.mark.slow
def test_seeded_random_weights_are_reproducible() -> None:
    one, same, other = (
        load(entry("torchvision:squeezenet1_1", seed=seed, input_size=224)) for seed in (1, 1, 2)
    )
    assert one.fingerprint == same.fingerprint != other.fingerprint
    assert one.default_layer == "classifier.2"
    assert one.labels.name(285) == "Egyptian cat"


@pytest.mark.slow
def test_hub_weights_of_torchvision_come_from_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(11)
    expected = torchvision.models.squeezenet1_1()
    checkpoints = tmp_path / "hub" / "checkpoints"
    checkpoints.mkdir(parents=True)
    url = torchvision.models.SqueezeNet1_1_Weights.DEFAULT.url
    torch.save(expected.state_dict(), checkpoints / Path(url).name)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    model = load(entry("torchvision:squeezenet1_1", weights="default", input_size=None))
    assert model.preprocessing.height == 224
    state = model.module.state_dict()
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(state[name], tensor, rtol=0, atol=0)


@pytest.mark.slow
def test_hub_weights_of_timm_come_from_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(12)
    expected = timm.create_model("test_resnet")
    hub = tmp_path / "models--timm--test_resnet.r160_in1k"
    snapshot = hub / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (hub / "refs").mkdir()
    (hub / "refs" / "main").write_text("0" * 40)
    save_file(expected.state_dict(), snapshot / "model.safetensors")
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    model = load(entry("timm:test_resnet", weights="default", input_size=None))
    assert model.preprocessing.height == 160
    state = model.module.state_dict()
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(state[name], tensor, rtol=0, atol=0)


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".pth", ".bin", ".ckpt"])
@pytest.mark.parametrize("wrapping", ["", "state_dict", "model", "model_state_dict", "ema"])
def test_weights_and_labels_from_files_beside_the_catalog(
    tmp_path: Path, suffix: str, wrapping: str
) -> None:
    state = {f"module.{name}": tensor for name, tensor in small(seed=9).state_dict().items()}
    file = tmp_path / f"weights{suffix}"
    if suffix == ".safetensors":
        save_file(state, file)
    else:
        torch.save({wrapping: state, "epoch": 3} if wrapping else state, file)
    (tmp_path / "labels.txt").write_text("ape\nbee\ncat\n")
    (tmp_path / "models.toml").write_text(
        f'[[models]]\nname = "m"\nsource = "{TINY}"\nweights = "{file.name}"\n'
        'labels = "labels.txt"\ninput_size = [16, 24]\nlayer = "conv2"\n'
        "mean = [0, 0, 0]\nstd = [1, 1, 1]\nmax_batch = 2\n"
    )
    (given,) = read_catalog(tmp_path / "models.toml")
    model = load(given)
    torch.testing.assert_close(
        model.module.get_parameter("conv1.weight"), small(seed=9).conv1.weight
    )
    assert model.labels.names == ("ape", "bee", "cat")
    assert (model.default_layer, model.max_batch) == ("conv2", 2)
    seen = model.preprocessing
    assert (seen.height, seen.width, seen.shorter_side) == (16, 24, 18)
    assert (seen.mean, seen.std) == ((0, 0, 0), (1, 1, 1))


@pytest.mark.parametrize(
    ("named", "beside"),
    [
        ("model.{}", {"criterion.weight": torch.ones(3)}),  # Lightning
        ("module.{}", {"n_averaged": torch.tensor(3)}),  # torch.optim.swa_utils
        ("_orig_mod.{}", {}),  # torch.compile
        ("module._orig_mod.{}", {}),
        ("module.model.{}", {"module.loss.centres": torch.ones(2)}),
    ],
)
def test_the_prefixes_of_training_are_left_out(
    tmp_path: Path, named: str, beside: dict[str, torch.Tensor]
) -> None:
    state = {named.format(name): tensor for name, tensor in small(seed=9).state_dict().items()}
    torch.save({"epoch": 3, "state_dict": {**state, **beside}}, tmp_path / "last.pt")
    model = load(entry(weights=str(tmp_path / "last.pt")))
    torch.testing.assert_close(
        model.module.get_parameter("conv1.weight"), small(seed=9).conv1.weight
    )


@pytest.mark.parametrize("prefix", ["", "model.", "net.backbone."])
def test_weights_of_a_deeper_model_are_refused(tmp_path: Path, prefix: str) -> None:
    """ResNet-34 has all tensors of ResNet-18, in the same shapes."""
    state = torchvision.models.resnet34().state_dict()
    torch.save({prefix + name: tensor for name, tensor in state.items()}, tmp_path / "w.pt")
    with pytest.raises(ConfigError, match="96 tensors are unknown to the model"):
        build(entry("torchvision:resnet18", weights=str(tmp_path / "w.pt")), None)


def test_weights_beside_the_models_own_are_left_out(tmp_path: Path) -> None:
    state = {f"net.{name}": each for name, each in small(seed=9).state_dict().items()}
    torch.save({**state, "net.aux.weight": torch.ones(3, 3)}, tmp_path / "w.pt")
    model = load(entry(weights=str(tmp_path / "w.pt")))
    torch.testing.assert_close(
        model.module.get_parameter("conv1.weight"), small(seed=9).conv1.weight
    )


def lightning(path: Path, attribute: str, **more: Any) -> dict[str, Any]:
    """Arguments of an entry whose weights are a checkpoint as Lightning's Trainer writes it."""
    state = {f"{attribute}.{name}": value for name, value in small(seed=9).state_dict().items()}
    checkpoint = {
        "epoch": 3,
        "pytorch-lightning_version": "2.5.0",
        "state_dict": {**state, "criterion.weight": torch.ones(2)},
        "callbacks": {"ModelCheckpoint": {"best_model_score": torch.tensor(0.9)}},
        "hyper_parameters": {"lr": 1e-3},
    }
    torch.save({**checkpoint, **more}, path / "last.ckpt")
    return {"weights": str(path / "last.ckpt")}


@pytest.mark.parametrize("attribute", ["model", "backbone", "classifier.net"])
def test_a_checkpoint_of_lightning(tmp_path: Path, attribute: str) -> None:
    model = load(entry(**lightning(tmp_path, attribute)))
    for name, tensor in small(seed=9).state_dict().items():
        torch.testing.assert_close(model.module.state_dict()[name], tensor)


def test_a_checkpoint_with_objects_says_which_and_what_to_save(tmp_path: Path) -> None:
    given = lightning(tmp_path, "model", hyper_parameters=argparse.Namespace(lr=1e-3))
    words = (
        r"it holds argparse.Namespace, .* is refused; .*FILE, weights_only=False\)\['state_dict'\]"
    )
    with pytest.raises(ConfigError, match=words):
        load(entry(**given))


def test_a_checkpoint_of_two_models_is_refused(tmp_path: Path) -> None:
    both = {
        f"{who}.{name}": value
        for who in ("student", "teacher")
        for name, value in small().state_dict().items()
    }
    with pytest.raises(ConfigError, match=r"under 'student\.' and 'teacher\.'; save one"):
        load(entry(**lightning(tmp_path, "model", state_dict=both)))


@pytest.mark.slow
@pytest.mark.parametrize("source", ["torchvision:squeezenet1_1", "timm:test_resnet"])
def test_the_classes_are_those_of_the_files_head(tmp_path: Path, source: str) -> None:
    (tmp_path / "labels.txt").write_text("a\nb\nc\n")
    trained = load(entry(source, labels=str(tmp_path / "labels.txt"), input_size=64, seed=4))
    torch.save(trained.module.state_dict(), tmp_path / "w.pt")
    model = load(entry(source, weights=str(tmp_path / "w.pt"), input_size=64))
    assert (model.classes, model.labels.names) == (3, ())
    for name, tensor in trained.module.state_dict().items():
        torch.testing.assert_close(model.module.state_dict()[name], tensor)
    (tmp_path / "labels.txt").write_text("a\nb\n")
    words = r"it has 3 classes \('.*' is 3 × .*\), and the model has 2; name 3 labels"
    with pytest.raises(ConfigError, match=words):
        load(
            entry(
                source,
                weights=str(tmp_path / "w.pt"),
                labels=str(tmp_path / "labels.txt"),
                input_size=64,
            )
        )


def headed(name: str, where: str, *layers: nn.Module) -> nn.Module:
    """A model of torchvision with another last layer, with statistics as after training."""
    torch.manual_seed(4)
    model: nn.Module = torchvision.models.get_model(name, weights=None)
    parent, _, last = where.rpartition(".")
    head = nn.Sequential(*layers) if len(layers) > 1 else layers[0]
    setattr(model.get_submodule(parent), last, head)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.get_buffer("running_mean"), 0, 0.1)
            nn.init.uniform_(module.get_buffer("running_var"), 0.5, 1.5)
    return model.eval()


def dropped(inputs: int) -> tuple[nn.Module, nn.Module]:
    return nn.Dropout(0.2), nn.Linear(inputs, 3)


@pytest.mark.parametrize(
    ("name", "where", "layers", "told"),
    [
        ("resnet18", "fc", dropped(512), "'fc.1' of the file is loaded as the model's 'fc'"),
        ("mobilenet_v2", "classifier", (nn.Linear(1280, 3),), "'classifier' .* 'classifier.1'"),
        ("mobilenet_v2", "classifier.1", dropped(1280), "'classifier.1.1' .* 'classifier.1'"),
        (
            "mobilenet_v2",
            "classifier",
            (nn.Dropout(), nn.Identity(), nn.Linear(1280, 3)),
            "'classifier.2' .* 'classifier.1'",
        ),
    ],
)
def test_a_head_that_stands_in_another_place(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    name: str,
    where: str,
    layers: tuple[nn.Module, ...],
    told: str,
) -> None:
    """What fine-tuning makes of the last layer, loaded with a warning of what is unknown."""
    model = headed(name, where, *layers)
    torch.save(model.state_dict(), tmp_path / "w.pt")
    module = build(entry(f"torchvision:{name}", weights=str(tmp_path / "w.pt")), None).module.eval()
    images = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(module(images), model(images))
    assert re.search(told, caplog.text)


@pytest.mark.parametrize(
    ("name", "where", "layers", "words"),
    [
        (
            "resnet18",
            "fc",
            (nn.Linear(512, 9), nn.ReLU(), nn.Linear(9, 3)),
            "2 tensors are missing",
        ),
        ("convnext_tiny", "classifier", (nn.Linear(768, 3),), "classifier.0.bias"),
        # The model's own head has an activation, which the file's model may not have.
        ("squeezenet1_1", "classifier", (nn.Linear(512, 3),), "classifier.1.bias"),
        ("resnet18", "fc", (nn.Linear(512, 3, bias=False),), "1 tensor is missing"),
    ],
)
def test_a_head_of_which_more_is_unknown(
    tmp_path: Path, name: str, where: str, layers: tuple[nn.Module, ...], words: str
) -> None:
    torch.save(headed(name, where, *layers).state_dict(), tmp_path / "w.pt")
    with pytest.raises(ConfigError, match=words):
        build(entry(f"torchvision:{name}", weights=str(tmp_path / "w.pt")), None)


@pytest.mark.parametrize(
    ("held", "words"),
    [
        ({"weights": {"a": torch.ones(1)}, "epoch": 3}, "a table of 'weights', 'epoch', and none"),
        ({}, "a table of nothing, and none of state_dict, model_state_dict"),
        (
            {"conv1.weight": torch.ones(1)},
            r"[0-9]+ tensors are missing, such as 'conv1.bias'$",
        ),
        (
            {**small().state_dict(), "more": torch.ones(1)},
            "1 tensor is unknown to the model, such as 'more'$",
        ),
        (
            {**small().state_dict(), "conv1.bias": torch.ones(2, 2)},
            r"1 tensor has another shape, such as 'conv1.bias': 2 × 2 in the file, 4 in the model",
        ),
    ],
)
def test_a_file_of_other_weights_says_what_it_holds(
    tmp_path: Path, held: object, words: str
) -> None:
    torch.save(held, tmp_path / "w.pt")
    with pytest.raises(ConfigError, match=words):
        load(entry(weights=str(tmp_path / "w.pt")))


def test_the_preprocessing_as_it_is_stated() -> None:
    seen = load(entry(resize=40, interpolation="lanczos", channel_order="bgr")).preprocessing
    assert (seen.shorter_side, seen.resampling.name, seen.reversed) == (40, "LANCZOS", True)
    assert load(entry(crop_ratio=0.5)).preprocessing.shorter_side == 64
    with pytest.raises(ConfigError, match="resized to 20 pixels cannot be cropped to 32 × 32"):
        load(entry(resize=20))
    with pytest.raises(ValidationError, match="resize or crop_ratio, one of them"):
        entry(resize=40, crop_ratio=0.5)


def test_a_factory_may_state_the_preprocessing() -> None:
    source = "factory:tests.zoo.factories:stating"
    seen = load(entry(source, input_size=None)).preprocessing
    assert (seen.height, seen.width, seen.shorter_side) == (24, 24, 30)
    assert (seen.mean, seen.reversed, seen.byte_range) == ((104, 117, 123), True, True)
    assert load(entry(source, input_size=None, resize=28)).preprocessing.shorter_side == 28
    with pytest.raises(ConfigError, match="states sizes beside its module; what it may state is"):
        load(entry("factory:tests.zoo.factories:stating_nonsense"))
    with pytest.raises(ConfigError, match="stating_too_small states input_size: "):
        load(entry("factory:tests.zoo.factories:stating_too_small"))


def test_what_a_factory_raises_is_a_sentence() -> None:
    words = "key 'source': .*:raising raised ZeroDivisionError: division by zero"
    with pytest.raises(ConfigError, match=words):
        load(entry("factory:tests.zoo.factories:raising"))


def test_a_model_of_no_numbers_is_refused(tmp_path: Path) -> None:
    state = small().state_dict()
    state["conv1.weight"][0] = torch.nan
    torch.save(state, tmp_path / "w.pt")
    with pytest.raises(ConfigError, match=r"key 'weights': the model's outputs .* are not finite"):
        load(entry(weights=str(tmp_path / "w.pt")))


@pytest.mark.slow
def test_seeds_hold_whoever_loads_beside() -> None:
    """Random weights are drawn from one generator in the process: one model after the other."""
    source = "timm:test_resnet"
    alone = load(entry(source, seed=5, input_size=64)).module.state_dict()
    before = torch.get_rng_state()
    with ThreadPoolExecutor(4) as pool:
        seeds = [5, 6, 5, 7]
        found = list(pool.map(lambda seed: load(entry(source, seed=seed, input_size=64)), seeds))
    for model, seed in zip(found, seeds, strict=True):
        same = [torch.equal(each, alone[k]) for k, each in model.module.state_dict().items()]
        assert all(same) == (seed == 5)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_head_has_as_many_classes_as_there_are_labels(tmp_path: Path) -> None:
    labels = tmp_path / "three.txt"
    labels.write_text("a\nb\nc\n")
    for source in ("torchvision:squeezenet1_1", "timm:test_resnet"):
        model = load(entry(source, labels=str(labels), input_size=64))
        assert (model.classes, model.labels.names) == (3, ("a", "b", "c"))


def test_a_model_without_labels_numbers_its_classes() -> None:
    model = load(entry())
    assert model.classes == 3
    assert model.labels.names == ()
    assert model.labels.name(1) is None


def test_the_layers_of_a_method_that_multiplies_stages() -> None:
    assert load(entry()).layers_of("refinecam") == ("relu1", "relu2")
    tuned = load(entry(method_layers={"gradcam++": "conv2"}))
    assert tuned.layers_of("refinecam") == ("relu1", "conv2")
    single = load(entry(method_layers={"refinecam": "conv1"}))
    assert single.layers_of("refinecam") == ("conv1",)
    assert single.layers_of("gradcam") == ("relu2",)


def same_layers(model: ServedModel, methods: Sequence[str]) -> None:
    """Check that the library looks at the layers that the service takes."""
    side = model.preprocessing.height
    for method in methods:
        (found,) = explain(model.module, torch.rand(1, 3, side, side), method=method, budget=2)
        assert found.layer == " + ".join(model.layers_of(method))


def test_the_library_looks_at_the_layers_that_are_served() -> None:
    model = load(entry(layer="conv2", method_layers={"layercam": "conv1", "gradcam++": "relu1"}))
    assert model.layers_of("layercam") == ("conv1",)
    same_layers(model, ("gradcam", "layercam", "refinecam", "elementwise"))
    together = explain(model.module, torch.rand(1, 3, 32, 32), method=("gradcam", "layercam"))
    assert [each.layer for each in together] == ["conv2", "conv2"]


@pytest.mark.slow
def test_the_library_looks_at_the_measured_layers_of_the_embedded_model(
    embedded: ServedModel,
) -> None:
    assert embedded.layers_of("gradcam++") == ("blocks.6",)
    same_layers(embedded, ("gradcam", "gradcam++", "layercam", "elementwise", "refinecam"))


def test_half_precision() -> None:
    model = load(entry(dtype="bfloat16"))
    assert {p.dtype for p in model.module.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"source": "torchvision:resnet51"},
            "'source': .*no model for images 'resnet51'.*resne",
        ),
        ({"source": "torchvision:raft_small"}, "no model for images 'raft_small'"),
        ({"source": "timm:resnet5"}, "timm has no model 'resnet5'"),
        ({"source": "embedded:vgg"}, "no embedded model 'vgg'; there are e.g. efficientnet-lite0"),
        ({"source": "factory:nowhere.at_all:f"}, "cannot import 'nowhere.at_all'"),
        ({"source": "factory:tests.zoo.factories:missing"}, "has no 'missing'"),
        ({"source": "factory:tests.zoo.factories:no_module"}, "returned a str, not a torch.nn"),
        ({"source": "factory:tests.zoo.factories:no_logits"}, r"not logits of shape \(batch"),
        ({"layer": "conv3"}, "'layer': the model has no layer 'conv3'; .*relu2"),
        ({"method_layers": {"layercam": "conv9"}}, "'method_layers': the model has no layer 'con"),
        (
            {"method_layers": {"kam": "conv1"}},
            "'method_layers': there is no method 'kam'",
        ),
        ({"layer": "head"}, r"'layer': no map can be made at 'head': its output \(3,\)"),
        ({"reshape": "14 14"}, "'reshape': a reshape is 'tokens HEIGHT WIDTH PREFIX'"),
        ({"reshape": {"conv1": "tokens 1"}}, "'reshape': a reshape is 'tokens HEIGHT"),
        (
            {"reshape": {"conv1": "tokens 2 2"}, "layer": "conv1"},
            "'layer': no map can be made at 'conv1': its output .* has no 4 tokens for",
        ),
        ({"labels": "imagenet"}, "'labels': imagenet has 1000 labels, but the model has 3 classes"),
        ({"labels": "none.txt"}, "'labels': none.txt cannot be read: No such file"),
        ({"weights": "none.pt"}, "'weights': none.pt: it cannot be read: No such file"),
        ({"weights": "weights.onnx"}, "'weights': .*must end in .safetensors, .pt, .pth, .bin"),
        ({"device": "cuda:7"}, "'device': 'cuda:7' is not on this machine; it has cpu"),
        (
            {"source": "torchvision:vit_b_16", "input_size": 100},
            "'input_size': the model fails on an input of shape",
        ),
    ],
)
def test_a_mistake_names_entry_key_and_what_is_allowed(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        load(entry(**given))
    assert "model 'm': key " in str(caught.value)


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    save_file({"conv1.weight": torch.zeros(1)}, tmp_path / "w.safetensors")
    with pytest.raises(ConfigError, match=r"does not fit the model: 5 tensors are missing"):
        load(entry(weights=str(tmp_path / "w.safetensors")))
    (tmp_path / "broken.safetensors").write_bytes(b"nonsense")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(entry(weights=str(tmp_path / "broken.safetensors")))
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(ConfigError, match="it holds list, and none of state_dict"):
        load(entry(weights=str(tmp_path / "list.pt")))


def test_a_pickle_that_needs_code_execution_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "evil.pt"
    evil_checkpoint(file)
    words = re.escape(str(file)) + r": .*run code to load, which is refused"
    with pytest.raises(ConfigError, match=words):
        load(entry(weights=str(file)))


@pytest.mark.filterwarnings("ignore")  # torch's own: TorchScript is deprecated
@pytest.mark.parametrize("name", ["scripted", "frozen", "optimised", "exported"])
def test_a_factory_may_return_a_program(name: str) -> None:
    """It has no layers to look at, and methods that need none explain it."""
    entries = [
        ModelEntry(
            name=each,
            source=f"factory:tests.zoo.factories:{each}",
            input_size=8,
            mean=(0, 0, 0),
            std=(1, 1, 1),
        )
        for each in ("tiny", name)
    ]
    asked: dict[str, str | int] = {"method": "occlusion", "target": 1, "output": "values"}
    with running_app(Settings(), entries) as client:
        told = client.get(f"/v1/models/{name}").json()
        able = {each["name"] for each in told["methods"] if each["available"]}
        assert {"occlusion", "rise"} <= able
        plain, found = (
            client.post(
                f"/v1/models/{entry.name}:explain",
                params=asked,
                content=encoded(noise(8, 8)),
                headers={"Content-Type": "image/png"},
            ).json()["explanations"][0]
            for entry in entries
        )
    assert values(plain).any()
    np.testing.assert_allclose(values(found), values(plain), atol=1e-4)

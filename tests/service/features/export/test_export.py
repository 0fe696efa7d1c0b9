"""`gradcam export`: the file's logits and maps are the model's, in ONNX Runtime, in OpenVINO and
served again from the file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from typer.testing import CliRunner

import cam
from service.cli.main import cli
from service.core.errors import ConfigError
from service.features.export.write import Form, export, export_entry
from service.loading.served_model import ServedModel, load
from service.models.catalog import ModelEntry
from tests.service.sources.test_graph import loaded
from tests.zoo.parts import Net, means

pytest.importorskip("openvino")
onnx = pytest.importorskip("onnx")
Run = Callable[[NDArray[np.float32]], list[NDArray[np.float32]]]
FILES: dict[Form, str] = {"onnx": "model.onnx", "openvino": "model.xml"}


def layers() -> dict[str, nn.Module]:
    """A head of 3 classes behind 4 channels."""
    head = nn.Linear(4, 3)
    with torch.no_grad():
        head.weight *= 100
    last = nn.Sequential(nn.Conv2d(4, 4, 3, 2, 1), nn.ReLU())
    return {"first": nn.Conv2d(3, 4, 3, 2, 1), "last": last, "head": head}


def pooled() -> nn.Module:
    return Net(lambda x, first, last, head: head(means(last(first(x).relu()))), **layers())


def residual() -> nn.Module:
    """Two layers behind the mean, and an earlier layer that is read after the last one."""

    def forward(x: Tensor, **parts: nn.Module) -> Any:
        early = parts["first"](x).relu()
        mixed = parts["more"](means(parts["last"](early)) + early.amax((2, 3))).tanh()
        return parts["head"](mixed)

    return Net(forward, **layers(), more=nn.Linear(4, 4))


def model_of(name: str, **keys: Any) -> ServedModel:
    source = f"factory:tests.service.features.export.test_export:{name}"
    return load(ModelEntry(name=name, source=source, input_size=32, mode="exact", **keys))


def runner(file: Path, form: Form) -> Run:
    """What runs the file without anything of ours."""
    if form == "onnx":
        runtime = pytest.importorskip("onnxruntime")
        session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        assert [each.name for each in session.get_outputs()] == ["logits", "maps"]
        return lambda images: session.run(None, {"images": images})
    import openvino

    compiled = openvino.compile_model(str(file), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return lambda images: [*compiled(images).values()]


def metadata_of(file: Path, form: Form) -> Any:
    if form == "onnx":
        (said,) = (each.value for each in onnx.load(str(file)).metadata_props)
        return json.loads(said)
    import openvino

    return json.loads(openvino.Core().read_model(str(file)).get_rt_info(["gradcam"]).value)


def images(count: int = 3, side: int = 32) -> Tensor:
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(1))


def close(found: NDArray[np.float32], expected: NDArray[np.float32], *, slack: float = 0.0) -> None:
    assert found.shape == expected.shape
    most = 1e-4 * np.abs(expected).max() + slack
    np.testing.assert_allclose(found, expected, rtol=0, atol=most)


def check_cam(model: ServedModel, run: Run, side: int = 32) -> None:
    """The maps of all classes, before the relu, for any number of images."""
    assert model.default_layer is not None
    for given in (images(1, side), images(3, side)):
        logits, maps = run(given.numpy())
        with torch.no_grad():
            close(logits, model.module(given).numpy())
        for target in (0, logits.shape[1] - 1):
            said = cam.explain(model.module, given, target=target, method="cam", signed=True,
                               layer=model.default_layer)  # fmt: skip
            close(maps[:, target], np.stack([each.map for each in said]))


def check_reciprocam(
    model: ServedModel, run: Run, layer: str, side: int = 32, count: int = 3
) -> None:
    """The map of the predicted class, before the relu."""
    given = images(count, side)
    logits, maps = run(given.numpy())
    with torch.no_grad():
        close(logits, model.module(given).numpy())
    said = cam.explain(model.module, given, method="reciprocam", signed=True, layer=layer)
    rounding = 1e-6 * float(np.abs(logits).max())  # the maps are differences of logits
    close(maps, np.stack([each.map for each in said]), slack=rounding)


@pytest.mark.parametrize("form", [pytest.param("onnx", marks=pytest.mark.slow), "openvino"])
def test_class_activation_maps(form: Form, tmp_path: Path) -> None:
    model, file = model_of("pooled"), tmp_path / FILES[form]
    done = export(model, file, form)
    assert (done.method, done.layer, done.any_batch) == ("cam", "last", True)
    check_cam(model, runner(file, form))
    said = metadata_of(file, form)
    assert (said["layer"], said["method"], said["model"]) == ("last", "cam", "pooled")
    assert said["outputs"]["maps"].startswith("(batch, classes, rows, columns)")
    assert said["preprocessing"]["input_size"] == [32, 32]
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(
        [file.name] + ["model.bin"] * (form == "openvino")
    )


@pytest.mark.slow
@pytest.mark.parametrize("form", ["onnx", "openvino"])
def test_recipro_cam_where_no_linear_head_reads_the_mean(form: Form, tmp_path: Path) -> None:
    model, file = model_of("residual"), tmp_path / FILES[form]
    done = export(model, file, form)
    assert (done.method, done.layer, done.any_batch) == ("reciprocam", "last", True)
    check_reciprocam(model, runner(file, form), "last")
    assert metadata_of(file, form)["outputs"]["maps"].startswith("(batch, rows, columns)")
    export(model, file, form, "first")
    check_reciprocam(model, runner(file, form), "first")


@pytest.mark.parametrize("form", [pytest.param("onnx", marks=pytest.mark.slow), "openvino"])
def test_the_file_is_served_as_the_model_was(form: Form, tmp_path: Path) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text("ant\nbee\ncat\n")
    keys = {"mean": (0.1, 0.2, 0.3), "std": (1.0, 2.0, 3.0), "resize": 40, "channel_order": "bgr"}
    model = model_of("pooled", labels=str(labels), interpolation="bicubic", **keys)
    file = tmp_path / FILES[form]
    export(model, file, form)
    again = loaded(file)
    assert again.preprocessing == model.preprocessing
    assert again.labels.names == ("ant", "bee", "cat")
    assert (again.activation, again.activation_reason) == (model.activation, "the file says so")
    given = images()
    assert again.default_layer is not None
    for method in ("cam", "gradcam", "reciprocam"):
        pairs = zip(
            cam.explain(model.module, given, target=1, method=method, layer="last"),
            cam.explain(again.module, given, target=1, method=method, layer=again.default_layer),
            strict=True,
        )
        for expected, found in pairs:
            close(found.map, expected.map)


@pytest.mark.slow
def test_a_single_output_has_the_map_of_what_it_says(tmp_path: Path) -> None:
    """The negative class is explained by minus the logit."""
    net: Any = residual()
    net.head = nn.Linear(4, 1)
    torch.manual_seed(0)
    model = model_of("residual")
    for sign in (1, -1):
        with torch.no_grad():
            net.head.bias.fill_(3.0 * sign)
        single = replace(
            model, module=net.eval(), reading=cam.Reading(None, "sigmoid"), labels=model.labels
        )
        export(single, tmp_path / "model.xml", "openvino")
        check_reciprocam(single, runner(tmp_path / "model.xml", "openvino"), "last")


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("pooled")
    for file, form, layer, sentence in (
        ("model.xml", "onnx", None, "the format onnx has files that end in .onnx"),
        ("away/model.onnx", "onnx", None, "there is no folder"),
        ("model.xml", "openvino", "lost", "has no such layer; did you mean 'last'?"),
        ("model.xml", "openvino", "head", "--layer head: no map can be made there: its output"),
    ):
        with pytest.raises(ConfigError) as refused:
            export(model, tmp_path / file, form, layer)  # type: ignore[arg-type]
        assert sentence in str(refused.value)
    with pytest.raises(ConfigError, match="--format tflite: it is one of onnx, openvino"):
        export_entry(ModelEntry(name="m", source="timm:resnet18"), tmp_path / "m", "tflite", None)
    export(model, tmp_path / "model.xml", "openvino")
    with pytest.raises(ConfigError, match="is a network in a file already"):
        export(loaded(tmp_path / "model.xml"), tmp_path / "other.xml", "openvino")
    monkeypatch.setattr("service.features.export.write.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'gradcam-service\[export\]'"):
        export(model, tmp_path / "model.onnx", "onnx")


def test_a_file_that_is_not_the_models_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.features.export.write.TOLERANCE", -2.0)
    with pytest.raises(ConfigError, match="the logits of the file are not the model's"):
        export(model_of("pooled"), tmp_path / "model.xml", "openvino")
    assert not any(tmp_path.iterdir())


@pytest.mark.contract
def test_the_command(tmp_path: Path) -> None:
    catalog = tmp_path / "models.toml"
    catalog.write_text(
        f'[[models]]\nname = "m"\nsource = "factory:{__name__}:pooled"\ninput_size = 32\n'
    )
    file = tmp_path / "m.xml"
    command = ["export", "m", "--format", "openvino", "--output", str(file)]
    done = CliRunner().invoke(cli, [*command, "--models", str(catalog)])
    assert done.output == (f"{file}: logits, and maps by cam at last; takes any number of images\n")
    failed = CliRunner().invoke(cli, [*command, "--models", str(catalog), "--layer", "lost"])
    assert isinstance(failed.exception, ConfigError)
    unknown = CliRunner().invoke(cli, ["export", "other", *command[2:], "--models", str(catalog)])
    assert str(unknown.exception) == "there is no model 'other'; there are m"

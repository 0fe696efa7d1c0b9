"""Networks of ONNX and OpenVINO files: their maps are those of the torch model that they were
exported from, and what they cannot do is refused with the reason."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torchvision
from PIL import Image
from torch import Tensor, nn

import cam
from cam import METHODS
from service.core.errors import ConfigError
from service.features.export.write import export
from service.loading.served_model import ServedModel, check, load
from service.models.catalog import EMBEDDED, ModelEntry, read_catalog
from service.settings import Settings
from tests.service.conftest import KEPT, running_app, wait_until_ready
from tests.zoo.parts import Net, as_after_training, means

onnx = pytest.importorskip("onnx")
openvino = pytest.importorskip("openvino")


def written(folder: Path, model: Any, name: str = "model.onnx") -> Path:
    file = folder / name
    onnx.save(model, str(file))
    return file


def entry_of(file: Path, folder: Path | None = None, **keys: Any) -> Any:
    """An entry for a network, in a catalog beside it, or in another folder."""
    kind = "onnx" if file.suffix == ".onnx" else "openvino"
    lines = [f'name = "m"\nsource = "{kind}:{file if folder else file.name}"']
    lines += [f"{key} = {value!r}".replace("'", '"') for key, value in keys.items()]
    catalog = (folder or file.parent) / "models.toml"
    catalog.write_text("[[models]]\n" + "\n".join(lines))
    (entry,) = read_catalog(catalog)
    return entry


def loaded(file: Path, **keys: Any) -> ServedModel:
    return load(entry_of(file, **keys))


def graph_of(
    nodes: Sequence[Any],
    weights: dict[str, Any],
    *,
    inputs: dict[str, Sequence[Any]] | None = None,
    outputs: dict[str, Sequence[Any]],
    kind: int = onnx.TensorProto.FLOAT,
) -> Any:
    """An ONNX model of nodes, written by hand."""

    def values(named: dict[str, Sequence[Any]], of: int) -> list[Any]:
        return [onnx.helper.make_tensor_value_info(name, of, s) for name, s in named.items()]

    graph = onnx.helper.make_graph(
        nodes,
        "by hand",
        values(inputs or {"images": (1, 3, 4, 4)}, kind),
        values(outputs, onnx.TensorProto.FLOAT),
        [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    model.ir_version = 9
    return model


node = onnx.helper.make_node
CONVOLUTION = np.array([[[[1]], [[0]], [[0]]], [[[0]], [[-1]], [[0]]]], np.float32)
"""Channel 0 is red, channel 1 is minus green."""
HEAD = np.array([[2, 1], [-1, 3]], np.float32)  # (classes, channels)
BIAS = np.array([10, 20], np.float32)
BODY = [
    node("Conv", ["images", "kernel"], ["mixed"]),
    node("Relu", ["mixed"], ["features"]),
    node("GlobalAveragePool", ["features"], ["pooled"]),
]
LINEAR = [
    node("Flatten", ["pooled"], ["flat"]),
    node("Gemm", ["flat", "head", "bias"], ["logits"], transB=1),
]
WEIGHTS = {"kernel": CONVOLUTION, "head": HEAD, "bias": BIAS}


def image_by_hand() -> Tensor:
    image = torch.zeros(1, 3, 4, 4)
    image[0, 0, 0, 1] = 8  # A_0 = 8 there
    image[0, 1, 2, 3] = -4  # A_1 = 4 there
    image[0, 1, 3, 3] = 5  # A_1 = relu(-5) = 0
    return image


def check_by_hand(model: ServedModel, *, layer: str = "features") -> None:
    image = image_by_hand()
    assert model.default_layer == layer
    assert model.head is not None
    # mean(A) = (8/16, 4/16) = (0.5, 0.25): z = (2·0.5 + 0.25 + 10, -0.5 + 3·0.25 + 20)
    with torch.no_grad():
        torch.testing.assert_close(model.module(image), torch.tensor([[11.25, 20.25]]))
    expected = np.zeros((4, 4), np.float32)
    expected[0, 1], expected[2, 3] = 2 * 8, 1 * 4
    (first,) = cam.explain(model.module, image, target=0, method="cam", layer=layer)
    np.testing.assert_allclose(first.map, expected, atol=1e-5)
    # CAM divided by the number of positions, for Grad-CAM, Recipro-CAM and HiResCAM.
    for method in ("gradcam", "reciprocam", "hirescam"):
        (found,) = cam.explain(model.module, image, target=0, method=method, layer=layer)
        np.testing.assert_allclose(found.map, expected / 16, atol=1e-5)
    expected[0, 1], expected[2, 3] = -1 * 8, 3 * 4
    (second,) = cam.explain(model.module, image, target=1, method="cam", layer=layer, signed=True)
    np.testing.assert_allclose(second.map, expected, atol=1e-5)


def test_cam_of_a_graph_by_hand(tmp_path: Path) -> None:
    file = written(tmp_path, graph_of([*BODY, *LINEAR], WEIGHTS, outputs={"logits": (1, 2)}))
    model = loaded(file, activation="softmax")
    check_by_hand(model)
    assert model.preprocessing.height == model.preprocessing.width == 4
    assert model.max_batch == 16  # the batch of one was freed


def test_a_head_of_a_convolution(tmp_path: Path) -> None:
    nodes = [
        *BODY,
        node("Conv", ["pooled", "one", "bias"], ["scores"]),
        node("Flatten", ["scores"], ["logits"]),
    ]
    weights = {"kernel": CONVOLUTION, "one": HEAD[:, :, None, None], "bias": BIAS}
    file = written(tmp_path, graph_of(nodes, weights, outputs={"logits": (1, 2)}))
    check_by_hand(loaded(file, activation="softmax"))


@pytest.mark.parametrize("biased", [True, False])
def test_a_head_before_the_mean(tmp_path: Path, biased: bool) -> None:
    """The mean of a 1 × 1 convolution is the linear head of the mean."""
    nodes = [
        *BODY[:2],
        node("Conv", ["features", "one", *["bias"] * biased], ["maps"]),
        node("ReduceMean", ["maps"], ["means"], axes=[2, 3], keepdims=0),
        *([] if biased else [node("Add", ["means", "bias"], ["logits"])]),
    ]
    if biased:
        nodes[-1].output[:] = ["logits"]
    weights = {"kernel": CONVOLUTION, "one": HEAD[:, :, None, None], "bias": BIAS}
    file = written(tmp_path, graph_of(nodes, weights, outputs={"logits": (1, 2)}))
    check_by_hand(loaded(file, activation="softmax"))


def test_a_mean_of_other_kinds(tmp_path: Path) -> None:
    """A pooling of the whole, and a product and a sum in place of a Gemm."""
    nodes = [
        *BODY[:2],
        node("AveragePool", ["features"], ["pooled"], kernel_shape=[4, 4]),
        node("Reshape", ["pooled", "sizes"], ["flat"]),
        node("MatMul", ["flat", "turned"], ["product"]),
        node("Add", ["product", "bias"], ["logits"]),
    ]
    weights = {"kernel": CONVOLUTION, "turned": HEAD.T.copy(), "bias": BIAS}
    sizes = {"sizes": np.array([1, 2], np.int64)}
    file = written(tmp_path, graph_of(nodes, weights | sizes, outputs={"logits": (1, 2)}))
    check_by_hand(loaded(file, activation="softmax"))


@pytest.mark.parametrize(("ending", "classes"), [("Softmax", 2), ("Sigmoid", 2)])
def test_what_goes_into_a_softmax_is_explained(tmp_path: Path, ending: str, classes: int) -> None:
    axis = {"axis": 1} if ending == "Softmax" else {}
    nodes = [*BODY, *LINEAR, node(ending, ["logits"], ["shares"], **axis)]
    file = written(tmp_path, graph_of(nodes, WEIGHTS, outputs={"shares": (1, 2)}))
    model = loaded(file)
    assert model.activation == ending.lower()
    assert model.activation_reason == (
        f"the network ends in a {ending.lower()}, whose input is explained"
    )
    check_by_hand(model)
    (said,) = cam.explain(
        model.module, image_by_hand(), target=0, layer="features", activation=model.activation
    )
    logits = torch.tensor([11.25, 20.25])
    shares = logits.softmax(0) if ending == "Softmax" else logits.sigmoid()
    assert said.probability == pytest.approx(float(shares[0]), abs=1e-6)


def test_probabilities_that_the_entry_wants_as_they_are(tmp_path: Path) -> None:
    nodes = [*BODY, *LINEAR, node("Softmax", ["logits"], ["shares"], axis=1)]
    file = written(tmp_path, graph_of(nodes, WEIGHTS, outputs={"shares": (1, 2)}))
    model = loaded(file, activation="none")
    assert model.activation == "none"
    with torch.no_grad():
        assert float(model.module(image_by_hand()).sum()) == pytest.approx(1)


def test_channels_last(tmp_path: Path) -> None:
    turn = node("Transpose", ["turned"], ["images"], perm=[0, 3, 1, 2])
    model = graph_of(
        [turn, *BODY, *LINEAR],
        WEIGHTS,
        inputs={"turned": (1, 4, 4, 3)},
        outputs={"logits": (1, 2)},
    )
    check_by_hand(loaded(written(tmp_path, model), activation="softmax"))


def test_a_batch_that_the_graph_insists_on(tmp_path: Path) -> None:
    """A constant joined to the batch: one image at a time, and the same numbers."""
    nodes = [
        *BODY[:2],
        node("Concat", ["features", "more"], ["wider"], axis=1),
        node("GlobalAveragePool", ["wider"], ["pooled"]),
        *LINEAR,
    ]
    head = np.concatenate([HEAD, np.zeros((2, 1), np.float32)], 1)
    weights = WEIGHTS | {"head": head, "more": np.ones((1, 1, 4, 4), np.float32)}
    file = written(tmp_path, graph_of(nodes, weights, outputs={"logits": (1, 2)}))
    model = loaded(file, activation="softmax", layer="features")
    images = torch.cat([image_by_hand(), image_by_hand().flip(-1) * 2, image_by_hand()])
    with torch.no_grad():
        together = model.module(images)
        alone = torch.cat([model.module(row[None]) for row in images])
    torch.testing.assert_close(together, alone)
    assert model.batching is None


def test_a_layer_that_the_entry_names(tmp_path: Path) -> None:
    file = written(tmp_path, graph_of([*BODY, *LINEAR], WEIGHTS, outputs={"logits": (1, 2)}))
    model = loaded(file, activation="softmax", layer="mixed")
    assert model.default_layer == "mixed"
    assert "gradcam" in model.unsuited
    assert model.unsuited["gradcam"] == (
        "it needs a gradient at the layer: OpenVINO runs the network, and computes no gradients"
    )
    # Only one position counts at a time: y(A ⊙ 1_ij) - y(0), with the rectifier between.
    image = image_by_hand()
    (found,) = cam.explain(model.module, image, target=0, method="reciprocam", layer="mixed")
    expected = np.zeros((4, 4), np.float32)
    expected[0, 1], expected[2, 3] = 2 * 8 / 16, 4 / 16
    np.testing.assert_allclose(found.map, expected, atol=1e-5)


def test_what_needs_gradients_is_refused_elsewhere(tmp_path: Path) -> None:
    file = written(tmp_path, graph_of([*BODY, *LINEAR], WEIGHTS, outputs={"logits": (1, 2)}))
    model = loaded(file, activation="softmax")
    why = "OpenVINO runs the network, and computes no gradients"
    for name in METHODS:
        if METHODS[name].gradient == "image":
            assert model.unsuited[name] == f"it needs a gradient at the image: {why}"
    assert model.unsuited["refinecam"] == f"it needs gradients at the earlier layers: {why}"
    able = [name for name in METHODS if name not in model.unsuited]
    for name in able:
        image = image_by_hand()
        explained = cam.explain(model.module, image, target=0, method=name, budget=8, layer="auto")
        assert np.isfinite(explained[0].map).all(), name
    with pytest.raises(cam.CamError, match="an operation without a derivative"):
        cam.explain(loaded(file, layer="mixed").module, image_by_hand(), layer="mixed")


def test_the_file_counts_as_the_weights(tmp_path: Path) -> None:
    prints = set()
    for bias in (BIAS, BIAS + 1):
        model = graph_of([*BODY, *LINEAR], WEIGHTS | {"bias": bias}, outputs={"logits": (1, 2)})
        prints.add(loaded(written(tmp_path, model)).fingerprint)
    kernel = graph_of(
        [*BODY, *LINEAR], WEIGHTS | {"kernel": 2 * CONVOLUTION}, outputs={"logits": (1, 2)}
    )
    prints.add(loaded(written(tmp_path, kernel)).fingerprint)
    assert len(prints) == 3


HERE: dict[str, Any] = {"outputs": {"logits": (1, 2)}}
IMAGES = {"images": (1, 3, 4, 4)}


@pytest.mark.parametrize(
    ("model", "keys", "sentence"),
    [
        (
            graph_of([*BODY, *LINEAR], WEIGHTS, inputs={**IMAGES, "more": (1, 2)}, **HERE),
            {},
            "has 2 inputs (images, more); it should have one, a batch of images",
        ),
        (
            graph_of([node("Relu", ["text"], ["logits"])], {}, inputs={"text": (1, 2)}, **HERE),
            {},
            "the input has the shape [1,2]; images have (batch, 3, height, width)",
        ),
        (
            graph_of([*BODY, *LINEAR], WEIGHTS | {"kernel": CONVOLUTION[:, :1]},
                     inputs={"images": (1, 1, 4, 4)}, **HERE),
            {},
            "the input has the shape [1,1,4,4]: 1 channel, not 3 (RGB)",
        ),
        (
            graph_of([node("Cast", ["bytes"], ["images"], to=onnx.TensorProto.FLOAT),
                      *BODY, *LINEAR], WEIGHTS, inputs={"bytes": (1, 3, 4, 4)}, **HERE,
                     kind=onnx.TensorProto.UINT8),
            {},
            "the input is of type u8; it should be float32: normalised pixels",
        ),
        (
            graph_of([*BODY, *LINEAR], WEIGHTS, **HERE),
            {"input_size": 8},
            "takes only images of 4 × 4 pixels, but input_size is 8 × 8",
        ),
        (
            graph_of([*BODY, *LINEAR], WEIGHTS, outputs={"logits": (1, 2), "flat": (1, 2)}),
            {"output": "scores"},
            "the network has no output 'scores'; it has logits, flat",
        ),
        (
            graph_of([*BODY, *LINEAR[:1]], WEIGHTS,
                     outputs={"flat": (1, 2), "pooled": (1, 2, 1, 1)}),
            {},
            "the network has 2 outputs, flat, pooled; say which with output",
        ),
        (
            graph_of([*BODY, *LINEAR], WEIGHTS, outputs={"logits": (1, 2), "flat": (1, 2)}),
            {"output": 2},
            "output is 2, but the network has 2: logits, flat",
        ),
        (
            graph_of([*BODY, *LINEAR, node("Own", ["logits"], ["mine"], domain="here")], WEIGHTS,
                     outputs={"mine": (1, 2)}),
            {},
            "here.Own",
        ),
        (
            graph_of([*BODY, *LINEAR, node("ArgMax", ["logits"], ["best"], axis=1)], WEIGHTS,
                     outputs={"best": (1, 1)}),
            {},
            "the output best is of type i64, like indices of classes",
        ),
        (
            graph_of([node("Flatten", ["images"], ["flat"]),
                      node("MatMul", ["flat", "head"], ["logits"])],
                     {"head": np.ones((48, 2), np.float32)}, **HERE),
            {},
            "so no layer can be looked at",
        ),
        (
            graph_of([node("Conv", ["images", "kernel"], ["one"]),
                      node("Conv", ["images", "more"], ["other"]),
                      node("Add", ["one", "other"], ["features"]), *BODY[2:], *LINEAR],
                     WEIGHTS | {"more": 2 * CONVOLUTION}, **HERE),
            {"layer": "one"},
            "'one' is not a layer at which the network can be cut: other paths bypass it",
        ),
        (
            graph_of([*BODY, *LINEAR], WEIGHTS, **HERE),
            {"layer": "elsewhere"},
            "the model has no layer 'elsewhere'; among its last are mixed, features",
        ),
    ],
)  # fmt: skip
def test_networks_that_cannot_be_served(
    tmp_path: Path, model: Any, keys: dict[str, Any], sentence: str
) -> None:
    file = written(tmp_path, model)
    with pytest.raises(ConfigError) as refused:
        loaded(file, **keys)
    said = str(refused.value)
    assert sentence in said
    assert said.startswith(f"{tmp_path / 'models.toml'}: model 'm': key ")
    assert "\n" not in said


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"weights": "none"}, "key 'weights': the file"),
        ({"dtype": "bfloat16"}, "key 'dtype': a network in a file is run in float32, not bfloat16"),
        ({"device": "cuda"}, "key 'device': OpenVINO runs networks on the cpu, not on cuda"),
    ],
)
def test_what_openvino_does_not_do(tmp_path: Path, keys: dict[str, Any], sentence: str) -> None:
    file = written(tmp_path, graph_of([*BODY, *LINEAR], WEIGHTS, **HERE))
    with pytest.raises(ConfigError, match=sentence):
        check(entry_of(file, **keys))


def test_broken_files(tmp_path: Path) -> None:
    whole = written(tmp_path, graph_of([*BODY, *LINEAR], WEIGHTS, **HERE)).read_bytes()
    file = tmp_path / "broken.onnx"
    for length in (0, 1, 10, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(ConfigError, match=r"broken\.onnx cannot be read: "):
            loaded(file)
    with pytest.raises(ConfigError, match=r"absent\.onnx cannot be read: No such file"):
        check(entry_of(tmp_path / "absent.onnx"))
    (tmp_path / "model.pb").write_bytes(whole)
    (entry,) = [entry_of(file)]
    with pytest.raises(ConfigError, match=r"model\.pb does not end in \.onnx"):
        check(entry.model_copy(update={"source": "onnx:model.pb"}))


def test_files_without_their_weights(tmp_path: Path) -> None:
    head = np.arange(2 * 512, dtype=np.float32).reshape(2, 512)
    kernel = np.ones((512, 3, 1, 1), np.float32)
    model = graph_of([*BODY, *LINEAR], {"kernel": kernel, "head": head, "bias": BIAS}, **HERE)
    network = openvino.Core().read_model(str(written(tmp_path, model)))
    onnx.save(
        model, str(tmp_path / "apart.onnx"), save_as_external_data=True, location="apart.data"
    )
    loaded(tmp_path / "apart.onnx")
    (tmp_path / "apart.data").unlink()
    with pytest.raises(ConfigError, match=r"apart\.onnx cannot be read: .*apart\.data"):
        loaded(tmp_path / "apart.onnx")
    openvino.save_model(network, tmp_path / "model.xml", compress_to_fp16=False)
    loaded(tmp_path / "model.xml")
    weights = tmp_path / "model.bin"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(ConfigError, match=r"model\.xml cannot be read: "):
        loaded(tmp_path / "model.xml")
    weights.unlink()
    with pytest.raises(ConfigError, match=r"there is no file .*model\.bin, which holds the weig"):
        loaded(tmp_path / "model.xml")


def test_without_openvino(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path, graph_of([*BODY, *LINEAR], WEIGHTS, **HERE))
    monkeypatch.setattr("service.sources.graph.build.is_installed", lambda: False)
    with pytest.raises(ConfigError, match="not installed; install the extra 'openvino'"):
        check(entry_of(file))


def test_a_file_is_not_named_over_http(tmp_path: Path) -> None:
    file = written(tmp_path, graph_of([*BODY, *LINEAR], WEIGHTS, **HERE))
    entry = EMBEDDED.model_copy(update={"source": f"onnx:{file}"})
    with pytest.raises(ConfigError, match=r"is named in models\.toml, not over HTTP"):
        check(entry)


def test_half_precision_in_the_file(tmp_path: Path) -> None:
    """As OpenVINO's converter writes it by default: computed in float32 all the same."""
    network = openvino.Core().read_model(
        str(written(tmp_path, graph_of([*BODY, *LINEAR], WEIGHTS, **HERE)))
    )
    openvino.save_model(network, tmp_path / "model.xml", compress_to_fp16=True)
    check_by_hand(loaded(tmp_path / "model.xml", activation="softmax"))


def test_through_http(tmp_path: Path, cat: bytes) -> None:
    size: dict[str, Any] = {
        "inputs": {"images": ("batch", 3, 32, 32)},
        "outputs": {"logits": ("batch", 2)},
    }
    entry = entry_of(written(tmp_path, graph_of([*BODY, *LINEAR], WEIGHTS, **size)))
    with running_app(Settings(), [entry]) as client:
        wait_until_ready(client)
        about = client.get("/v1/models/m").json()
        assert (about["default_layer"], about["runtime"]) == ("features", "openvino")
        methods = {each["name"]: each for each in about["methods"]}
        assert methods["cam"]["available"]
        assert not methods["smoothgrad"]["available"]
        picture = {"Content-Type": "image/png"}
        for method in ("gradcam", "cam", "reciprocam", "rise", "scorecam"):
            address = f"/v1/models/m:explain?method={method}&budget=20"
            (said,) = client.post(address, content=cat, headers=picture).json()["explanations"]
            assert "error" not in said, said
        refused = client.post(
            "/v1/models/m:explain?method=smoothgrad", content=cat, headers=picture
        )
        assert refused.status_code == 422
        assert "OpenVINO runs the network, and computes no gradients" in refused.json()["detail"]
        refused = client.post(
            "/v1/models/m:explain?method=gradcam&layer=mixed", content=cat, headers=picture
        )
        assert refused.status_code == 422


def written_by_torch(net: nn.Module, file: Path, *, optimize: bool, size: int = 64) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's exporter warns of itself
        torch.onnx.export(
            net, (torch.rand(2, 3, size, size),), file, dynamo=True, optimize=optimize,
            dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=4096)},),
            external_data=False, verbose=False,
        )  # fmt: skip
    return file


def normed() -> nn.Module:
    """Convolutions and batch norms, and a mean before the head."""
    torch.manual_seed(0)
    return Net(
        lambda x, stem, body, head: head(means(body(stem(x)))),
        stem=nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU()),
        body=nn.Sequential(nn.Conv2d(8, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.Hardswish()),
        head=nn.Linear(16, 5),
    )


@pytest.mark.slow
@pytest.mark.parametrize("optimize", [False, True])
def test_names_of_layers_are_those_of_the_file_and_stay(tmp_path: Path, optimize: bool) -> None:
    """Norms that are not folded into convolutions were refused: OpenVINO makes their operations,
    and numbers them anew at each load."""
    net = as_after_training(normed())
    file = written_by_torch(net, tmp_path / "model.onnx", optimize=optimize)
    image = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(3))
    first, second = loaded(file), loaded(file)
    names = [layer.name for layer in first.layers]
    assert names == [layer.name for layer in second.layers]
    assert first.fingerprint == second.fingerprint
    with torch.no_grad():
        torch.testing.assert_close(first.module(image), net(image), rtol=1e-4, atol=1e-4)
    for name in (layer.name for layer in first.layers if layer.explainable):
        if not name.startswith("head"):
            assert loaded(file, layer=name).default_layer == name
    assert first.default_layer is not None
    (found,) = cam.explain(first.module, image[:1], target=2, layer=first.default_layer)
    (expected,) = cam.explain(net, image[:1], target=2, layer="body")
    np.testing.assert_allclose(found.map, expected.map, atol=1e-4 * expected.map.max())


@pytest.mark.slow
def test_an_own_export_to_openvino_is_read_and_its_names_stay(tmp_path: Path) -> None:
    torch.save(as_after_training(timm.create_model("test_resnet")).state_dict(), tmp_path / "w.pt")
    source = ModelEntry(
        name="m", source="timm:test_resnet", weights=str(tmp_path / "w.pt"), input_size=64
    )
    model = load(source)
    export(model, tmp_path / "model.xml", "openvino")
    one, other = (loaded(tmp_path / "model.xml", output="logits") for _ in range(2))
    assert [layer.name for layer in one.layers] == [layer.name for layer in other.layers]
    image = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(one.module(image), model.module(image), rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_a_vit_with_weights_of_norms_has_a_layer_before_the_last_attention(tmp_path: Path) -> None:
    """The scale and the shift of the last norm took the places of the layers before it, so that no
    method with a gradient was left."""
    net = timm.create_model("vit_tiny_patch16_224", img_size=64, num_classes=5, depth=4)
    nn.init.normal_(net.head.weight, 0, 0.2)
    file = written_by_torch(as_after_training(net), tmp_path / "model.onnx", optimize=False)
    found = loaded(file)
    image = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(3))
    assert found.default_layer is not None
    assert not found.unsuited.keys() & {"gradcam", "hirescam", "layercam", "elementwise"}
    # Behind a norm, Σ g ⊙ A of a token is 0, so methods that add before they rectify have no map.
    for method in ("layercam", "elementwise"):
        expected, said = (
            cam.explain(model, image, target=2, method=method, layer=at)[0].map
            for model, at in ((net, "blocks.2"), (found.module, found.default_layer))
        )
        np.testing.assert_allclose(said, expected, atol=1e-3 * expected.max())


def networks() -> dict[str, tuple[nn.Module, str]]:
    """Name → a seeded network, and the layer of it that the exported one is compared at."""
    named = torchvision.models.get_model
    vgg = named("vgg11")
    vgg.classifier = nn.Sequential(nn.Linear(25088, 64), nn.ReLU(), nn.Linear(64, 1000))
    swin = torchvision.models.SwinTransformer([4, 4], 48, [1, 1, 2, 1], [2, 2, 4, 8], [7, 7])
    return {
        "resnet18": (named("resnet18"), "layer4"),
        "convnext": (timm.create_model("convnext_atto"), "stages"),
        "vgg11": (vgg, "avgpool"),
        "swin": (swin, "norm"),
        "vit_tiny": (timm.create_model("vit_tiny_patch16_224"), "blocks.10"),
    }


POOLED = ("resnet18", "efficientnet-lite0", "swin")
"""Those whose linear head reads the mean of the layer."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dynamic"),
    [
        ("resnet18", True),
        ("efficientnet-lite0", False),
        ("convnext", False),
        ("vgg11", False),
        ("swin", False),
        ("vit_tiny", True),
    ],
)
def test_maps_are_those_of_torch(name: str, dynamic: bool, tmp_path: Path, cat: bytes) -> None:
    torch.manual_seed(0)
    if name == "efficientnet-lite0":
        served = load(EMBEDDED, KEPT)
        net, layer = served.module, "bn2"
    else:
        net, layer = networks()[name]
    net = net.eval()
    photo = Image.open(BytesIO(cat)).convert("RGB").resize((224, 224))
    pixels = np.stack([np.asarray(photo), np.asarray(photo)[:, ::-1]])
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 127.5 - 1
    file = tmp_path / "model.onnx"
    sizes = ({0: torch.export.Dim("batch", min=1, max=4096)},) if dynamic else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's exporter warns of itself
        torch.onnx.export(
            net, (images if dynamic else images[:1],), file, dynamo=True, dynamic_shapes=sizes,
            external_data=False, verbose=False,
        )  # fmt: skip
    graph = loaded(file)
    assert graph.default_layer is not None
    with torch.no_grad():
        expected, found = net(images), graph.module(images)
    scale = float(expected.abs().max())
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4 * scale)
    assert (graph.head is not None) == (name in POOLED)
    methods = {"gradcam": 1e-4, "reciprocam": 1e-4, "scorecam": 1e-3, "rise": 1e-3}
    methods |= {"cam": 1e-4} if name in POOLED else {}
    for method, tolerance in methods.items():
        budget = {"scorecam": 8, "rise": 8}.get(method)
        signed = METHODS[method].signed  # a map of a random network may be below 0 everywhere
        said = [
            cam.explain(
                model, images[:1], target=7, method=method, layer=at, budget=budget, signed=signed
            )[0].map
            for model, at in ((net, layer), (graph.module, graph.default_layer))
        ]
        assert said[0].shape == said[1].shape, method
        assert np.abs(said[0]).max() > 0, method
        # Recipro-CAM's map is a difference of logits, which are rounded.
        most = tolerance * np.abs(said[0]).max() + 1e-6 * scale * (method == "reciprocam")
        np.testing.assert_allclose(said[1], said[0], rtol=0, atol=most)

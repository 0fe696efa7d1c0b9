"""Models of Hugging Face by their folder: what config.json and preprocessor_config.json say is
what is served, or the entry is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skimage.data
import timm
import torch
import transformers
from PIL import Image

from service.core.errors import ConfigError
from service.loading.served_model import ServedModel, load
from service.loading.transforms import Normalisation
from service.models.catalog import ModelEntry, read_catalog
from service.models.preprocessing import Preprocessing
from tests.quick import quick
from tests.zoo.factories import evil_checkpoint

PHOTOS = [
    Image.fromarray(skimage.data.chelsea()),
    Image.fromarray(skimage.data.coffee()).resize((333, 517)),
    Image.fromarray(skimage.data.astronaut()).resize((150, 99)),
]


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names on the hub are looked up in the cache alone."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def config(kind: str, **changes: Any) -> Any:
    """The config of a tiny model."""
    small: dict[str, dict[str, Any]] = {
        "vit": {
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 16,
            "image_size": 32,
            "patch_size": 8,
        },
        "resnet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
        "segformer": {
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [4, 2],
            "hidden_sizes": [8, 16],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "num_attention_heads": [1, 2],
            "mlp_ratios": [2, 2],
            "decoder_hidden_size": 16,
        },
        "yolos": {
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 16,
            "image_size": [64, 64],
            "num_detection_tokens": 5,
        },
    }
    return transformers.AutoConfig.for_model(kind, **{**small[kind], **changes})


def saved(folder: Path, model: Any, processor: Any = None) -> Path:
    """The folder, with a model and its image processor."""
    model.save_pretrained(folder)
    if processor is not None:
        processor.save_pretrained(folder)
    return folder


def vit(folder: Path, **changes: Any) -> Path:
    torch.manual_seed(0)
    given = {"id2label": {0: "cat, house cat", 1: "dog", 2: "owl"}, **changes}
    return saved(
        folder,
        transformers.ViTForImageClassification(config("vit", **given)),
        transformers.ViTImageProcessor(size={"height": 32, "width": 32}),
    )


def entry(folder: Path, lines: str = "") -> ModelEntry:
    file = folder.parent / "models.toml"
    file.write_text(f'[[models]]\nname = "m"\nsource = "hf:{folder.name}"\n{lines}\n')
    (read,) = read_catalog(file)
    return read


def served(folder: Path, lines: str = "") -> ServedModel:
    return load(entry(folder, lines))


def seen(preprocessing: Preprocessing, photo: Image.Image) -> np.ndarray[Any, Any]:
    """What the model gets of one photo, float32 (3, H, W)."""
    pixels = preprocessing.apply(photo, "crop").pixels[None].copy()
    return Normalisation(preprocessing, torch.device("cpu"))(pixels)[0].numpy()


def test_labels_preprocessing_and_weights_are_those_of_the_folder(tmp_path: Path) -> None:
    model = served(vit(tmp_path / "vit"))
    assert model.labels.names == ("cat, house cat", "dog", "owl")
    assert model.labels.index("house cat") == 0
    assert (model.preprocessing.height, model.preprocessing.width) == (32, 32)
    assert model.preprocessing.mean == model.preprocessing.std == (0.5, 0.5, 0.5)
    assert model.activation == "softmax"
    theirs = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "vit").eval()
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "vit", backend="pil")
    for photo in PHOTOS:
        expected = theirs(**processor(photo, return_tensors="pt")).logits
        found = model.module(torch.from_numpy(seen(model.preprocessing, photo))[None]).logits
        torch.testing.assert_close(found, expected)


def test_the_entry_overrides_the_folder(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("one\ntwo\nthree\n")
    given = 'labels = "labels.txt"\nmean = [0.1, 0.2, 0.3]\nactivation = "sigmoid"'
    model = served(vit(tmp_path / "vit"), given)
    assert model.labels.names == ("one", "two", "three")
    assert model.preprocessing.mean == (0.1, 0.2, 0.3)
    assert model.activation_reason == "it is set in the model's entry"


@pytest.mark.parametrize(
    ("changes", "activation", "labels"),
    [
        ({"problem_type": "multi_label_classification"}, "sigmoid", ("cat", "dog")),
        ({"problem_type": "single_label_classification"}, "softmax", ("cat", "dog")),
        ({"id2label": {0: "rust"}}, "sigmoid", ("not rust", "rust")),
        ({"id2label": None, "num_labels": 2}, "softmax", ()),
    ],
)
def test_problem_type_and_labels(
    tmp_path: Path, changes: dict[str, Any], activation: str, labels: tuple[str, ...]
) -> None:
    model = served(vit(tmp_path / "vit", **{"id2label": {0: "cat", 1: "dog"}, **changes}))
    assert model.activation == activation
    assert model.labels.names == labels


def test_other_weights_and_another_number_of_classes(tmp_path: Path) -> None:
    torch.manual_seed(1)
    five = transformers.ViTForImageClassification(config("vit", num_labels=5))
    torch.save(five.state_dict(), tmp_path / "five.pt")
    model = served(vit(tmp_path / "vit"), 'weights = "five.pt"')
    assert model.classes == 5
    assert torch.equal(model.module.get_parameter("classifier.weight"), five.classifier.weight)
    assert served(vit(tmp_path / "vit"), 'weights = "none"').classes == 3


def test_a_segmenter(tmp_path: Path) -> None:
    made = transformers.SegformerForSemanticSegmentation(config("segformer", num_labels=4))
    processor = transformers.SegformerImageProcessor(size={"height": 64, "width": 64})
    model = served(saved(tmp_path / "segformer", made, processor))
    assert (model.kind, model.classes) == ("segments", 4)
    assert model.preprocessing.crop_fit == "squash"


def test_a_detector_keeps_the_photos_shape_so_its_input_is_named(tmp_path: Path) -> None:
    made = transformers.YolosForObjectDetection(config("yolos", id2label={0: "cat", 1: "dog"}))
    folder = saved(tmp_path / "yolos", made, transformers.YolosImageProcessor())
    with pytest.raises(ConfigError, match=r"size .*'shortest_edge': 800.*set input_size"):
        served(folder)
    model = served(folder, "input_size = 64")
    assert (model.kind, model.labels.names) == ("detections", ("cat", "dog"))
    assert model.preprocessing.crop_fit == "pad"
    assert model.preprocessing.mean == (0.485, 0.456, 0.406)


def timm_wrapper(folder: Path) -> Path:
    """A folder as timm saves it for the hub: the preprocessing is in config.json."""
    model = timm.create_model("test_resnet", pretrained=False)
    timm.models.save_for_hf(model, str(folder))
    return folder


def test_a_model_that_timm_has_saved(tmp_path: Path) -> None:
    model = served(timm_wrapper(tmp_path / "timm"))
    assert model.labels.name(285) == "Egyptian cat"
    transform = timm.data.create_transform(
        **timm.data.resolve_model_data_config(timm.create_model("test_resnet"))
    )
    for photo in PHOTOS:
        apart = np.abs(seen(model.preprocessing, photo) - transform(photo).numpy())
        assert apart.mean() < 0.5 / 255 / 0.2


PROCESSORS: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("ViTImageProcessor", {}),
    "swin, size as a number": ("ViTImageProcessor", {"size": 192}),
    "convnext": ("ConvNextImageProcessor", {"size": {"shortest_edge": 224}}),
    "convnext, squashed": ("ConvNextImageProcessor", {"size": {"shortest_edge": 384}}),
    "resnet": ("ConvNextImageProcessor", {"size": 224, "crop_pct": 0.95}),
    "deit": ("DeiTImageProcessor", {}),
    "beit": ("BeitImageProcessor", {"do_center_crop": True, "size": 256, "crop_size": 224}),
    "mobilenet v2": ("MobileNetV2ImageProcessor", {}),
    "mobilevit, of blue, green, red": ("MobileViTImageProcessor", {"size": 288}),
    "segformer": ("SegformerImageProcessor", {}),
    "clip": ("CLIPImageProcessor", {}),
    "levit": ("LevitImageProcessor", {}),
    "poolformer": ("PoolFormerImageProcessor", {}),
    "efficientnet, normalised twice": ("EfficientNetImageProcessor", {"rescale_offset": True}),
    "rt-detr": ("RTDetrImageProcessor", {}),
    "not normalised": ("ViTImageProcessor", {"do_normalize": False}),
    "not rescaled": ("ViTImageProcessor", {"do_rescale": False}),
    "rescaled otherwise": ("ViTImageProcessor", {"rescale_factor": 1 / 127.5}),
    "bicubic": ("ViTImageProcessor", {"resample": 3}),
    "an input that is not square": ("ViTImageProcessor", {"size": {"height": 96, "width": 160}}),
}


OF_EACH_STEP = (
    *("vit", "convnext", "mobilevit, of blue, green, red", "efficientnet, normalised twice"),
    *("not rescaled", "bicubic", "an input that is not square"),
)


@pytest.mark.parametrize("case", quick(PROCESSORS, OF_EACH_STEP))
def test_pixels_equal_those_of_the_image_processor(tmp_path: Path, case: str) -> None:
    """At most one gray level apart, and a few at edges that Pillow's passes clip."""
    name, changes = PROCESSORS[case]
    folder = saved(
        tmp_path / "m",
        transformers.ResNetForImageClassification(config("resnet")),
        getattr(transformers, name)(**changes),
    )
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    from service.sources.huggingface.models import prepared

    preprocessing = prepared(entry(folder), str(folder))
    for photo in PHOTOS:
        expected = np.asarray(processor(photo, return_tensors="pt")["pixel_values"])[0]
        found = seen(preprocessing, photo)
        assert found.shape == expected.shape
        std = preprocessing.std[::-1] if preprocessing.reversed else preprocessing.std
        levels = np.abs(found - expected) * 255 * np.reshape(std, (3, 1, 1))
        assert levels.mean() <= 0.5
        assert np.percentile(levels, 99.9) <= 3
        assert levels.max() <= 16


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "photos keep their shape": (
        "ViTImageProcessor",
        {"do_resize": False},
        "inputs of different sizes.*set input_size",
    ),
    "padded at the right and the bottom": (
        "DonutImageProcessor",
        {"size": {"height": 96, "width": 96}},
        "do_pad True.*do_thumbnail True",
    ),
    "patches": ("Siglip2ImageProcessor", {}, r"pixel_values of shape \(1, 256, 768\)"),
    "a crop larger than the photo": (
        "CLIPImageProcessor",
        {"size": 96, "crop_size": 128},
        r"128 × 128 pixels that no fit represents.*size \{'shortest_edge': 96\}",
    ),
    "a crop of the photo as it is": (
        "CLIPImageProcessor",
        {"do_resize": False},
        "no fit represents.*crop_size",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_represented_is_refused_by_its_settings(tmp_path: Path, case: str) -> None:
    name, changes, words = REFUSED[case]
    model = transformers.ResNetForImageClassification(config("resnet"))
    folder = saved(tmp_path / "m", model, getattr(transformers, name)(**changes))
    with pytest.raises(ConfigError, match=rf"key 'source': the image processor {name}.*{words}"):
        served(folder)
    model_ = served(folder, "input_size = 64\nmean = [0, 0, 0]\nstd = [1, 1, 1]")
    assert (model_.preprocessing.height, model_.preprocessing.crop_fit) == (64, "squash")


def without_processor(folder: Path) -> None:
    (vit(folder) / "preprocessor_config.json").unlink()


def without_config(folder: Path) -> None:
    (vit(folder) / "config.json").unlink()


def without_head(folder: Path) -> None:
    saved(folder, transformers.ViTModel(config("vit")), transformers.ViTImageProcessor())


def with_half_of_the_weights(folder: Path) -> None:
    vit(folder)
    whole = transformers.ViTModel(config("vit"))
    whole.save_pretrained(folder / "base")
    (folder / "base" / "model.safetensors").replace(folder / "model.safetensors")


def with_a_pickle(folder: Path) -> None:
    (vit(folder) / "model.safetensors").unlink()
    evil_checkpoint(folder / "pytorch_model.bin")


def with_code(folder: Path) -> None:
    file = vit(folder) / "config.json"
    given = json.loads(file.read_text())
    given |= {"model_type": "mine", "auto_map": {"AutoConfig": "evil.Mine"}}
    file.write_text(json.dumps(given))
    (folder / "evil.py").write_text("raise SystemExit('the code was run')")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (without_processor, "has no image processor.*save it beside the model, or set input_size"),
        (without_config, "the folder .*m has no config.json"),
        (without_head, r"architectures \['ViTModel'\], of which none is an image classifier"),
        (with_half_of_the_weights, "2 tensors of the ViTFor.*'classifier.bias'.*would be random"),
        (with_a_pickle, "key 'weights': the weights of .*m cannot be loaded: "),
        (with_code, "the config.json of .*m cannot be used: ValueError: The repository"),
    ],
)
def test_a_folder_that_is_not_whole_is_refused(
    tmp_path: Path, damage: Callable[[Path], None], words: str
) -> None:
    damage(tmp_path / "m")
    with pytest.raises(ConfigError, match=words):
        served(tmp_path / "m")


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text('[[models]]\nname = "m"\nsource = "hf:a/b/c"')
    (read,) = read_catalog(tmp_path / "models.toml")
    with pytest.raises(ConfigError, match=f"key 'source': there is no folder {tmp_path}/a/b/c"):
        load(read)


def test_a_name_on_the_hub_needs_the_internet(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the config\.json of nobody cannot be used: OSError"):
        served(tmp_path / "nobody")


def test_only_an_entry_of_a_file_may_name_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(vit(tmp_path / "vit").parent)
    for source in ("hf:vit", f"hf:{tmp_path / 'vit'}"):
        with pytest.raises(ConfigError, match="there is no folder"):
            load(ModelEntry(name="m", source=source))


def test_without_transformers_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = vit(tmp_path / "vit")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match=r"'hf': .*gradcam-service\[hf\]'.* EXTRAS=hf"):
        served(folder)


def factory() -> Any:
    return transformers.ViTForImageClassification(config("vit"))


def test_a_factory_that_states_no_mean_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    source = f"factory:{__name__}:factory"
    load(ModelEntry(name="m", source=source, input_size=32, mean=(0, 0, 0), std=(1, 1, 1)))
    assert "ImageNet" not in caplog.text
    load(ModelEntry(name="m", source=source, input_size=32))
    assert "model m: " in caplog.text
    assert 'source = "hf:FOLDER or NAME"' in caplog.text

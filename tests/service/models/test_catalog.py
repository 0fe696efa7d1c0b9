from __future__ import annotations

from pathlib import Path

import pytest

from service.core.errors import ConfigError
from service.models.catalog import EMBEDDED, read_catalog

FULL = """
[[models]]
name = "resnet50"
source = "torchvision:resnet50"
weights = "weights.safetensors"
sha256 = "0000000000000000000000000000000000000000000000000000000000000000"
seed = 7
labels = "imagenet"
prompts = ["a cat", "a dog"]
templates = ["a photo of {}."]
output = 1
activation = "sigmoid"
kind = "classes"
layer = "layer4"
method_layers = {layercam = "layer3"}
reshape = {"blocks.*" = "tokens 14 14 1"}
input_size = [224, 320]
fit = "pad"
resize = 256
interpolation = "lanczos"
channel_order = "bgr"
value_range = "0-255"
mean = [0.1, 0.2, 0.3]
std = [1, 1, 1]
device = "cpu"
dtype = "bfloat16"
max_batch = 4
detections = "detr"
min_score = 0.3
layout = "contiguous"
mode = "fast"
runtime = "openvino"

[[models]]
name = "mine"
source = "factory:package.module:function"
"""


def test_without_a_file_the_embedded_model_is_served() -> None:
    assert read_catalog(None) == (EMBEDDED,)


def test_every_key_is_read(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    file.write_text(FULL)
    resnet, mine = read_catalog(file)
    assert resnet.model_dump() == {
        "name": "resnet50",
        "source": "torchvision:resnet50",
        "weights": "weights.safetensors",
        "sha256": "0" * 64,
        "seed": 7,
        "labels": "imagenet",
        "prompts": ("a cat", "a dog"),
        "templates": ("a photo of {}.",),
        "output": 1,
        "activation": "sigmoid",
        "kind": "classes",
        "layer": "layer4",
        "method_layers": {"layercam": "layer3"},
        "reshape": {"blocks.*": "tokens 14 14 1"},
        "input_size": (224, 320),
        "fit": "pad",
        "resize": 256,
        "crop_ratio": None,
        "interpolation": "lanczos",
        "channel_order": "bgr",
        "value_range": "0-255",
        "mean": (0.1, 0.2, 0.3),
        "std": (1, 1, 1),
        "device": "cpu",
        "dtype": "bfloat16",
        "mode": "fast",
        "runtime": "openvino",
        "layout": "contiguous",
        "max_batch": 4,
        "detections": "detr",
        "min_score": 0.3,
        "audit": None,
        "reference": None,
        "explain_sample": 0.0,
    }
    assert mine.source == "factory:package.module:function"
    assert mine.path("w.pt") == tmp_path / "w.pt"


ENTRY = '[[models]]\nname = "a"\nsource = "torchvision:resnet18"\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[models]", "models.toml: is not TOML"),
        ("", r"models.toml: cannot be read: it is empty"),
        ("\n", r"models.toml: has no \[\[models\]\] entry"),
        ("colour = 1\n" + ENTRY, "models.toml: unknown key 'colour'"),
        ('[[models]]\nname = "a"\n', "models.toml: entry 1 .'a'.: key 'source' is missing"),
        (ENTRY + 'wieghts = "x"\n', "entry 1 .'a'.: unknown key 'wieghts'; did you mean 'weights'"),
        (ENTRY + 'dtype = "float8"\n', "entry 1 .'a'.: key 'dtype': 'float8' is not allowed"),
        (ENTRY + 'activation = "relu"\n', "key 'activation': 'relu' is not allowed; it is how"),
        (ENTRY + "output = true\n", "key 'output': True is not allowed"),
        (ENTRY + "output = -1\n", "key 'output': -1 is not allowed"),
        (ENTRY + "crop_ratio = 1.5\n", "key 'crop_ratio': 1.5 is not allowed"),
        (ENTRY + 'interpolation = "cubic"\n', "key 'interpolation': 'cubic' is not allowed"),
        (ENTRY + "crop_ratio = 0.9\nresize = 300\n", "resize or crop_ratio, one of them"),
        (ENTRY + "max_batch = 0\n", "key 'max_batch': 0 is not allowed"),
        (ENTRY + 'device = "tpu"\n', "key 'device': 'tpu' is not allowed; it is 'auto'.*'cpu'"),
        (ENTRY + "std = [0, 1, 1]\n", "key 'std': 0 is not allowed"),
        (
            '[[models]]\nname = "a"\nsource = "keras:x"\n',
            "'keras:x' is not allowed.*timm:NAME",
        ),
        ('[[models]]\nname = "a/b"\nsource = "timm:x"\n', "key 'name': 'a/b' is not allowed"),
        (ENTRY + ENTRY, "entry 2: key 'name': 'a' is taken by entry 1"),
    ],
)
def test_a_mistake_names_file_entry_key_and_what_is_allowed(
    tmp_path: Path, text: str, words: str
) -> None:
    file = tmp_path / "models.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_catalog(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read: No such file"):
        read_catalog(tmp_path / "none.toml")

"""Checkpoints as people have them: what `gradcam init` finds out about each.

    python -m bench.own_checkpoints [--only NAME …] [--write]

Thirty-three files of weights, three of them of models that take no images. The truth is the model
that wrote the file: the entry of `models.toml` is right if the model that the service loads from it
has the same outputs for the same input, to 1e-4 of the largest. Weights are seeded, and norms have
statistics as after training. Four models are trained for seconds on parts of four photos, at sizes
and with preprocessing of their own; `gradcam init` gets other parts, in a folder for each class.

The list was made before the command was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import timm
import torch
import torchvision
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

Make = Callable[[], nn.Module]
Save = Callable[[nn.Module, Path], Path]
IMAGENET: Final = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALVES: Final = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
PHOTOS: Final = ("astronaut", "chelsea", "coffee", "rocket")
EACH: Final = 60
"""Parts of each photo for training; a third as many are for `gradcam init`."""


@dataclass(frozen=True)
class Training:
    """How a model was trained, which the file does not say."""

    side: int
    """Side of the model's input in pixels."""
    photo: int
    """Side of the photos in pixels."""
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)
    bgr: bool = False
    most: float = 1.0
    """Value of a white pixel before it is normalised: 1 or 255."""

    def inputs(self, photos: NDArray[np.uint8]) -> Tensor:
        """Return photos (N, H, W, 3) as the model takes them: float32 (N, 3, side, side)."""
        sized = [
            Image.fromarray(photo).resize((self.side, self.side), Image.Resampling.BILINEAR)
            for photo in photos
        ]
        values = np.stack([np.asarray(each) for each in sized]) / 255 * self.most
        normal = (values - np.array(self.mean)) / np.array(self.std)
        planes = torch.from_numpy(normal).float().permute(0, 3, 1, 2)
        return (planes.flip(1) if self.bgr else planes).contiguous()


@dataclass(frozen=True)
class Checkpoint:
    """One file of weights, and the model that wrote it."""

    name: str
    make: Make
    save: Save
    side: int = 224
    """Side of an input on which outputs are compared."""
    training: Training | None = None
    images: bool = True
    """Whether the model takes images."""
    whole: bool = True
    """Whether the file says what the whole model is. The layers between two layers of a new head
    are not in it, so that nothing can be sure of them."""


def tv(name: str, **options: Any) -> Make:
    return lambda: torchvision.models.get_model(name, weights=None, **options)


def of_timm(name: str, **options: Any) -> Make:
    return lambda: timm.create_model(name, pretrained=False, **options)


def headed(make: Make, name: str, *layers: nn.Module) -> Make:
    """Return a model whose submodule is replaced."""

    def made() -> nn.Module:
        model = make()
        parent, _, last = name.rpartition(".")
        head = layers[0] if len(layers) == 1 else nn.Sequential(*layers)
        setattr(model.get_submodule(parent), last, head)
        return model

    return made


def plain(model: nn.Module, folder: Path) -> Path:
    torch.save(model.state_dict(), folder / "best.pth")
    return folder / "best.pth"


def safetensors(model: nn.Module, folder: Path) -> Path:
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, folder / "w.safetensors")
    return folder / "w.safetensors"


def prefixed(prefix: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: value for name, value in state.items()}


def parallel(model: nn.Module, folder: Path) -> Path:
    torch.save(prefixed("module.", model.state_dict()), folder / "checkpoint.pt")
    return folder / "checkpoint.pt"


def compiled(model: nn.Module, folder: Path) -> Path:
    torch.save({"model": prefixed("_orig_mod.", model.state_dict())}, folder / "compiled.pt")
    return folder / "compiled.pt"


def training_state(model: nn.Module, folder: Path) -> Path:
    optimizer = torch.optim.AdamW(model.parameters())
    held = {"epoch": 7, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(held, folder / "last.pt")
    return folder / "last.pt"


def lightning(prefix: str, **other: Tensor) -> Save:
    def save(model: nn.Module, folder: Path) -> Path:
        held = {
            "epoch": 3,
            "global_step": 900,
            "pytorch-lightning_version": "2.5.0",
            "state_dict": {**prefixed(prefix, model.state_dict()), **other},
            "hyper_parameters": {"lr": 1e-3, "arch": "mine"},
        }
        torch.save(held, folder / "epoch=3.ckpt")
        return folder / "epoch=3.ckpt"

    return save


def averaged(model: nn.Module, folder: Path) -> Path:
    """As timm's training script saves it."""
    raw = {name: value + 0 for name, value in model.state_dict().items()}
    held = {"epoch": 1, "arch": "x", "state_dict": raw, "state_dict_ema": model.state_dict()}
    torch.save(held, folder / "model_best.pth.tar.pt")
    return folder / "model_best.pth.tar.pt"


def hugging_face(model: nn.Module, folder: Path) -> Path:
    model.save_pretrained(folder)  # type: ignore[operator]
    return folder / "model.safetensors"


def vit_of_transformers() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    model: nn.Module = ViTForImageClassification(
        ViTConfig(hidden_size=96, num_hidden_layers=3, num_attention_heads=3, intermediate_size=192)
    )
    return model


def resnet_of_transformers() -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    model: nn.Module = ResNetForImageClassification(ResNetConfig(num_labels=6))
    return model


def bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    model: nn.Module = BertForSequenceClassification(
        BertConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=2, vocab_size=999)
    )
    return model


def recurrent() -> nn.Module:
    return nn.ModuleDict({"lstm": nn.LSTM(40, 64, 2), "fc": nn.Linear(64, 12)})


def tabular() -> nn.Module:
    return nn.Sequential(nn.Linear(30, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 2))


def dropped(inputs: int, classes: int) -> tuple[nn.Module, nn.Module]:
    return nn.Dropout(0.3), nn.Linear(inputs, classes)


CHECKPOINTS: Final[tuple[Checkpoint, ...]] = (
    Checkpoint(
        "tv-resnet18-trained-64",
        headed(tv("resnet18"), "fc", *dropped(512, 4)),
        plain,
        training=Training(64, 64, *IMAGENET),
    ),
    Checkpoint(
        "timm-resnet10t-trained-96",
        of_timm("resnet10t", num_classes=4),
        parallel,
        training=Training(96, 200, *HALVES),
    ),
    Checkpoint(
        "tv-mobilenetv3-trained-128",
        tv("mobilenet_v3_small", num_classes=4),
        lightning("model."),
        training=Training(128, 180),
    ),
    Checkpoint(
        "timm-resnet14t-trained-bgr",
        of_timm("resnet14t", num_classes=4),
        plain,
        training=Training(112, 160, (103.5, 116.3, 123.7), (57.4, 57.1, 58.4), True, 255),
    ),
    Checkpoint("tv-resnet50", tv("resnet50"), plain),
    Checkpoint("timm-resnet50-37", of_timm("resnet50", num_classes=37), safetensors),
    Checkpoint("timm-convnext-tiny", of_timm("convnext_tiny", num_classes=9), lightning("model.")),
    Checkpoint("tv-mobilenet-v3-large", tv("mobilenet_v3_large", num_classes=10), parallel),
    Checkpoint("timm-efficientnet-b0", of_timm("efficientnet_b0", num_classes=21), training_state),
    Checkpoint("timm-efficientnetv2-s", of_timm("efficientnetv2_rw_s", num_classes=5), averaged),
    Checkpoint("tv-vit-b-16", tv("vit_b_16", num_classes=100), safetensors),
    Checkpoint("timm-vit-small", of_timm("vit_small_patch16_224", num_classes=8), plain),
    Checkpoint("timm-deit3-small", of_timm("deit3_small_patch16_224"), plain),
    Checkpoint("timm-swin-tiny", of_timm("swin_tiny_patch4_window7_224", num_classes=3), plain),
    Checkpoint("tv-swin-t", headed(tv("swin_t"), "head", *dropped(768, 6)), compiled),
    Checkpoint(
        "tv-densenet121", headed(tv("densenet121"), "classifier", nn.Linear(1024, 14)), plain
    ),
    Checkpoint("tv-vgg16-bn", headed(tv("vgg16_bn"), "classifier.6", nn.Linear(4096, 5)), plain),
    Checkpoint(
        "tv-efficientnet-b0", headed(tv("efficientnet_b0"), "classifier", nn.Linear(1280, 7)), plain
    ),
    Checkpoint("timm-regnety", of_timm("regnety_032", num_classes=11), training_state),
    Checkpoint("timm-seresnext50", of_timm("seresnext50_32x4d", num_classes=4), plain),
    Checkpoint("timm-mobilenetv4", of_timm("mobilenetv4_conv_small", num_classes=12), compiled),
    Checkpoint("tv-inception-v3", tv("inception_v3", init_weights=False), plain, side=299),
    Checkpoint(
        "timm-resnet34-in-a-backbone",
        of_timm("resnet34", num_classes=3),
        lightning("net.backbone.", **{"criterion.weight": torch.ones(3)}),
    ),
    Checkpoint("timm-maxvit-tiny", of_timm("maxvit_tiny_tf_224", num_classes=6), plain),
    Checkpoint("timm-mobilevit-s", of_timm("mobilevit_s", num_classes=2), safetensors, side=256),
    Checkpoint("timm-ghostnet", of_timm("ghostnet_100", num_classes=15), plain),
    Checkpoint("tv-shufflenet", tv("shufflenet_v2_x1_0", num_classes=3), parallel),
    Checkpoint("hf-vit-in-its-folder", vit_of_transformers, hugging_face),
    Checkpoint(
        "tv-resnet50-two-layers",
        headed(
            tv("resnet50"), "fc", nn.Linear(2048, 256), nn.ReLU(), nn.Dropout(), nn.Linear(256, 3)
        ),
        plain,
        whole=False,
    ),
    Checkpoint("hf-resnet-alone", resnet_of_transformers, plain, whole=False),
    Checkpoint("bert", bert, plain, images=False),
    Checkpoint("lstm", recurrent, plain, images=False),
    Checkpoint("table", tabular, lightning("model."), images=False),
)

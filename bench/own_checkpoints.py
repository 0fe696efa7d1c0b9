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

import argparse
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any, Final

import cv2
import numpy as np
import skimage.data
import timm
import torch
import torchvision
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console
from rich.table import Table
from safetensors.torch import save_file
from torch import Tensor, nn

from bench.record import record
from service.loading.sources import Built, build
from service.loading.transforms import Normalisation
from service.models.catalog import read_catalog

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
    from transformers import ViTImageProcessor

    model.save_pretrained(folder)  # type: ignore[operator]
    ViTImageProcessor().save_pretrained(folder)
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


def parts(side: int, count: int, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return random square parts of the four photos, uint8 (4 · count, side, side, 3), and the
    number of each one's photo."""
    rng = np.random.default_rng(seed)
    found = []
    for name in PHOTOS:
        source = getattr(skimage.data, name)()
        for _ in range(count):
            length = int(min(source.shape[:2]) * rng.uniform(0.25, 0.6))
            top, left = (int(rng.integers(0, each - length)) for each in source.shape[:2])
            part = source[top : top + length, left : left + length]
            found.append(cv2.resize(part, (side, side), interpolation=cv2.INTER_AREA))
    return np.stack(found), np.repeat(np.arange(len(PHOTOS)), count)


def as_trained(model: nn.Module) -> nn.Module:
    """Give norms statistics and weights as after training."""
    for module in model.modules():
        if (
            isinstance(module, nn.BatchNorm2d | nn.LayerNorm | nn.GroupNorm)
            and module.weight is not None
        ):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.1)
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.get_buffer("running_mean"), 0, 0.1)
            nn.init.uniform_(module.get_buffer("running_var"), 0.5, 1.5)
    return model.eval()


def trained(model: nn.Module, training: Training) -> nn.Module:
    """Train a model on parts of the photos until it knows them."""
    photos, truth = parts(training.photo, EACH, 0)
    inputs, labels = training.inputs(photos), torch.from_numpy(truth)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.1  # a hundred steps must do for its statistics
    model.train()
    for _ in range(12):
        for chosen in torch.split(torch.randperm(len(labels)), 32):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs[chosen]), labels[chosen])
            torch.autograd.backward(loss)
            optimizer.step()
    return model.eval()


def folder_of(training: Training, folder: Path) -> Path:
    photos, truth = parts(training.photo, EACH // 3, 1)
    for number, (photo, kind) in enumerate(zip(photos, truth, strict=True)):
        file = folder / "photos" / PHOTOS[kind] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(photo).save(file)
    return folder / "photos"


def outcome(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return what the command says of a checkpoint, and whether that is right."""
    torch.manual_seed(7)
    model = checkpoint.make()
    training = checkpoint.training
    model = trained(model, training) if training else as_trained(model)
    with TemporaryDirectory() as name:
        folder = Path(name)
        file = checkpoint.save(model, folder)
        command = [sys.executable, "-m", "service", "init", str(file)]
        if training:
            command += ["--photos", str(folder_of(training, folder))]
        begun = monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        row: dict[str, Any] = {"name": checkpoint.name, "seconds": monotonic() - begun}
        written = folder / "models.toml"
        if not written.exists():
            (last, *_) = (done.stdout + done.stderr).strip().splitlines()[-1:]
            near = re.search(r"nearest architecture is (\S+),", done.stdout + done.stderr)
            refused = near[1].partition(":")[2] if near else ""
            right = (not checkpoint.whole and refused in checkpoint.name.replace("-", "_")) or (
                not checkpoint.images and not near
            )
            return row | {"source": near[1] if near else "", "right": right, "said": last[:300]}
        (entry,) = read_catalog(written)
        surety = re.search(r"# (sure|likely|not known): .*\nsource", written.read_text())
        row |= {"source": entry.source, "sure": surety[1] if surety else ""}
        built = build(entry, None)
        right = checkpoint.images and is_same(model, built, checkpoint.side)
        row |= {"right": right, "whole": checkpoint.whole}
        if training:
            row["accuracy"] = accuracy(built, training)
            photos, truth = parts(training.photo, EACH, 2)
            with torch.inference_mode():
                found = model(training.inputs(photos)).argmax(1).numpy()
            row["true accuracy"] = float((found == truth).mean())
        return row


def is_same(model: nn.Module, built: Built, side: int) -> bool:
    images = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        mine, theirs = model(images), built.module.eval()(images)
    mine = getattr(mine, "logits", mine)
    theirs = getattr(theirs, "logits", theirs)
    return bool((mine - theirs).abs().max() <= 1e-4 * mine.abs().max())


def accuracy(built: Built, training: Training) -> float:
    """Return how often the served model is right about parts that nobody has seen."""
    photos, truth = parts(training.photo, EACH, 2)
    prepared = [built.preprocessing.apply(Image.fromarray(each), "auto").pixels for each in photos]
    normalise = Normalisation(built.preprocessing, torch.device("cpu"))
    with torch.inference_mode():
        found = built.module.eval()(normalise(np.stack(prepared))).argmax(1).numpy()
    return float((found == truth).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=[each.name for each in CHECKPOINTS])
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    chosen = [each for each in CHECKPOINTS if each.name in (arguments.only or [each.name])]
    table = Table("checkpoint", "source", "right", "sure", "accuracy", "of", "s")
    rows = []
    for checkpoint in chosen:
        row = outcome(checkpoint)
        rows.append(row)
        shares = (f"{row[key]:.3f}" if key in row else "" for key in ("accuracy", "true accuracy"))
        right, sure = "yes" if row["right"] else "NO", row.get("sure", row.get("said", ""))
        table.add_row(row["name"], row["source"], right, sure, *shares, f"{row['seconds']:.0f}")
        print(row, file=sys.stderr, flush=True)
    Console(width=120).print(table)
    wrong = [row["name"] for row in rows if not row["right"]]
    confident = [row["name"] for row in rows if not row["right"] and row.get("sure") == "sure"]
    print(f"right: {len(rows) - len(wrong)} of {len(rows)}; wrong and sure: {confident}")
    if arguments.write:
        record("own_checkpoints", rows=rows)


if __name__ == "__main__":
    main()

"""Detectors with seeded weights that find something in anything, surely none of it right: those of
torchvision on a small backbone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
import torchvision
from torch import Tensor, nn
from torchvision.models.detection import FCOS, FasterRCNN, KeypointRCNN, MaskRCNN, RetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator, DefaultBoxGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.ssd import SSD
from torchvision.models.detection.ssdlite import ssdlite320_mobilenet_v3_large
from torchvision.ops import MultiScaleRoIAlign
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool, LastLevelP6P7

from tests.zoo.parts import Net

SIDE = 128
"""Of the images: every detector's own size, so that none resizes them, but for ssdlite's 320."""
WIDTH = 32
"""Channels of the pyramid."""


class Stage(nn.Sequential):
    """Half the height and width, twice the channels."""

    def __init__(self, channels: int, stride: int = 2) -> None:
        super().__init__(
            nn.Conv2d(channels // 2 if stride == 2 else 3, channels, 3, stride, 1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
        )


def trunk(count: int = 5) -> nn.Sequential:
    """Stages named "0" … at strides 1, 2, 4 …, of 4, 8, 16 … channels."""
    return nn.Sequential(Stage(4, stride=1), *(Stage(4 * 2**turn) for turn in range(1, count + 1)))


def pyramid(stages: tuple[int, ...], top: nn.Module) -> BackboneWithFPN:
    """A feature pyramid over these stages of a trunk."""
    names = {str(stage): str(turn) for turn, stage in enumerate(stages)}
    channels = [4 * 2**stage for stage in stages]
    return BackboneWithFPN(trunk(), names, channels, WIDTH, top)


def of_regions(kind: type[FasterRCNN], **more: Any) -> nn.Module:
    """Two stages: boxes at strides 4 … 32, as their size is."""
    model: nn.Module = kind(
        pyramid((2, 3, 4, 5), LastLevelMaxPool()),
        min_size=SIDE,
        max_size=SIDE,
        rpn_anchor_generator=AnchorGenerator(
            ((8,), (24,), (48,), (96,), (128,)), ((0.5, 1.0, 2.0),) * 5
        ),
        box_roi_pool=MultiScaleRoIAlign(
            ["0", "1", "2", "3"], 4, 2, canonical_scale=64, canonical_level=4
        ),
        box_head=nn.Sequential(nn.Flatten(1), nn.Linear(WIDTH * 16, 32), nn.ReLU()),
        **{"num_classes": 4} | more,
        rpn_pre_nms_top_n_test=40,
        rpn_post_nms_top_n_test=60,
        rpn_nms_thresh=0.9,
        box_score_thresh=0.0,
        box_detections_per_img=30,
    )
    return model


def region_head() -> dict[str, Any]:
    """What the second stage ends in: few features, so few weights."""
    from torchvision.models.detection.faster_rcnn import FastRCNNPredictor

    return {"num_classes": None, "box_predictor": FastRCNNPredictor(32, 4)}


def mask_rcnn() -> nn.Module:
    from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor

    return of_regions(
        MaskRCNN,
        **region_head(),
        mask_head=MaskRCNNHeads(WIDTH, (8,), 1),
        mask_predictor=MaskRCNNPredictor(8, 8, 4),
    )


def keypoint_rcnn() -> nn.Module:
    from torchvision.models.detection.keypoint_rcnn import KeypointRCNNHeads, KeypointRCNNPredictor

    return of_regions(
        KeypointRCNN,
        **region_head(),
        keypoint_head=KeypointRCNNHeads(WIDTH, (8,)),
        keypoint_predictor=KeypointRCNNPredictor(8, 3),
    )


def retinanet(classes: int = 4) -> nn.Module:
    """One stage: strides 4 … 64 (LastLevelP6P7's names are those of strides 64 and 128)."""
    sizes = tuple((x, int(x * 2 ** (1 / 2))) for x in (8, 16, 32, 64, 128))
    model: nn.Module = RetinaNet(
        pyramid((2, 3, 4), LastLevelP6P7(WIDTH, WIDTH)),
        classes,
        min_size=SIDE,
        max_size=SIDE,
        anchor_generator=AnchorGenerator(sizes, ((0.5, 1.0, 2.0),) * 5),
        score_thresh=0.0,
        topk_candidates=30,
    )
    return model


def fcos(classes: int = 4) -> nn.Module:
    model: nn.Module = FCOS(
        pyramid((2, 3, 4), LastLevelP6P7(WIDTH, WIDTH)),
        classes,
        min_size=SIDE,
        max_size=SIDE,
        anchor_generator=AnchorGenerator(((4,), (8,), (16,), (32,), (64,)), ((1.0,),) * 5),
        score_thresh=0.0,
        topk_candidates=30,
    )
    return model


class Scales(nn.Module):
    """Stages one behind the other, each a scale: SSD's backbone."""

    def __init__(self) -> None:
        super().__init__()
        self.features = trunk(3)
        self.extra = nn.ModuleList([Stage(64), Stage(128)])
        self.out_channels = [32, 64, 128]

    def forward(self, x: Tensor) -> OrderedDict[str, Tensor]:
        maps = [self.features(x)]
        for stage in self.extra:
            maps.append(stage(maps[-1]))
        return OrderedDict((str(turn), each) for turn, each in enumerate(maps))


def ssd() -> nn.Module:
    model: nn.Module = SSD(
        Scales(),
        DefaultBoxGenerator([[2]] * 3),
        (SIDE, SIDE),
        4,
        score_thresh=0.0,
        topk_candidates=30,
    )
    return model


def ssdlite() -> nn.Module:
    limits: dict[str, Any] = {"score_thresh": 0.0, "topk_candidates": 30}
    model: nn.Module = ssdlite320_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=4, **limits
    )
    return model


def detector() -> nn.Module:
    """Finds six boxes of four classes in anything, surely none of them right."""
    torch.manual_seed(0)
    model: nn.Module = torchvision.models.detection.fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None,
        weights_backbone=None,
        num_classes=5,
        min_size=96,
        max_size=96,
        box_score_thresh=0.0,
        box_detections_per_img=6,
    )
    return model.eval()


TORCHVISION: dict[str, Callable[[], nn.Module]] = {
    "fasterrcnn": lambda: of_regions(FasterRCNN, **region_head()),
    "maskrcnn": mask_rcnn,
    "keypointrcnn": keypoint_rcnn,
    "retinanet": retinanet,
    "fcos": fcos,
    "ssd": ssd,
    "ssdlite": ssdlite,
}


def torchvision_detector(name: str) -> tuple[nn.Module, Tensor]:
    """One of torchvision's, and an image (1, 3, side, side) for it."""
    torch.manual_seed(0)
    model = TORCHVISION[name]().eval().requires_grad_(False)
    return model, blurry(320 if name == "ssdlite" else SIDE)


def blurry(side: int, count: int = 1, seed: int = 1) -> Tensor:
    """Coloured clouds with a little noise, (count, 3, side, side), about 0 … 1."""
    rng = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, 8, 8, generator=rng)
    image = nn.functional.interpolate(coarse, size=(side, side), mode="bicubic").clamp(0, 1)
    return image + 0.1 * torch.rand(count, 3, side, side, generator=rng)


class Yolo(nn.Module):
    """Strides 8 and 16, each with a head of its own: boxes of twice the stride around each cell,
    and `classes` probabilities, in the form that YOLOs of that version return."""

    def __init__(self, form: str, classes: int = 3) -> None:
        super().__init__()
        self.form, self.nc = form, classes
        self.stem = trunk(3)
        self.deep = Stage(64)
        self.up = nn.Conv2d(64, 32, 1)
        self.fuse = nn.Conv2d(64, 32, 3, padding=1)
        channels = 4 + classes + (form == "yolov5")
        self.heads = nn.ModuleList(  # each has branches for places and for classes
            nn.ModuleList([nn.Conv2d(width, 4, 1), nn.Conv2d(width, channels - 4, 1)])
            for width in (32, 64)
        )

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, list[Tensor]]:
        fine = self.stem(x)
        coarse = self.deep(fine)
        up = nn.functional.interpolate(self.up(coarse), scale_factor=2)
        fine = self.fuse(torch.cat([fine, up], 1)).relu()
        rows = []
        for stride, features, head in zip((8, 16), (fine, coarse), self.heads, strict=True):
            places, classes = head.children()
            height, width = features.shape[-2:]
            where = places(features)
            centres = (cells(height, width).to(features) + where[:, :2].tanh() / 2) * stride
            sides = 2 * stride * where[:, 2:].exp().clamp(max=4)
            said = torch.cat([centres, sides, classes(features).sigmoid()], 1)
            rows.append(said.flatten(2))
        found = torch.cat(rows, 2)
        if self.form == "yolov8":
            return found, rows
        return found.transpose(1, 2)


def yolo_like(form: str, classes: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return Yolo(form, classes).eval()


def scenes(count: int, *, seed: int) -> tuple[Tensor, list[dict[str, Tensor]]]:
    """Photos (count, 3, SIDE, SIDE) of a textured ground with three coloured shapes that do not
    overlap, and for each their boxes and labels: a square, a disc, a diamond."""
    rng = torch.Generator().manual_seed(seed)
    images, truths = [], []
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    for _ in range(count):
        image = 0.35 + 0.3 * blurry(SIDE, seed=int(torch.randint(0, 2**31, (1,), generator=rng)))[0]
        quarters = torch.randperm(4, generator=rng)[:3].tolist()
        boxes = []
        for label, quarter in enumerate(quarters):
            half = int(torch.randint(9, 22, (1,), generator=rng))
            space = SIDE // 2 - 2 * half - 2
            dy, dx = torch.randint(0, space, (2,), generator=rng).tolist()
            cy, cx = (
                (quarter // 2) * SIDE // 2 + half + 1 + dy,
                (quarter % 2) * SIDE // 2 + half + 1 + dx,
            )
            inside = (
                (abs(y - cy) <= half) & (abs(x - cx) <= half),
                (y - cy) ** 2 + (x - cx) ** 2 <= half**2,
                abs(y - cy) + abs(x - cx) <= half,
            )[label]
            colour = torch.tensor([[0.9, 0.1, 0.1], [0.1, 0.9, 0.1], [0.1, 0.1, 0.9]][label])
            image[:, inside] = colour[:, None] + 0.05 * torch.randn(
                3, int(inside.sum()), generator=rng
            )
            boxes.append([cx - half, cy - half, cx + half + 1, cy + half + 1])
        images.append(image.clamp(0, 1))
        truths.append({"boxes": torch.tensor(boxes).float(), "labels": torch.tensor([1, 2, 3])})
    return torch.stack(images), truths


def trained(steps: int) -> nn.Module:
    """A small FCOS that has seen so many batches of `scenes`."""
    torch.manual_seed(0)
    model = fcos()
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(steps):
        images, truths = scenes(8, seed=step)
        loss = sum(model(list(images), truths).values())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
    setattr(model, "score_thresh", 0.05)  # noqa: B010  # torchvision's own attribute
    return model.eval().requires_grad_(False)


class Heads(nn.Module):
    """Boxes at stride 8 of 2 classes, and what other heads of YOLOs add behind them.

    Args:
        extra: the channels behind the classes, and the range of their values.
    """

    def __init__(self, extra: int, low: float, high: float, *, names: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = trunk(3)
        self.classes, self.extra = nn.Conv2d(32, 2, 1), nn.Conv2d(32, extra, 1)
        self.low, self.high = low, high
        if names:
            self.names = {0: "plane", 1: "ship"}

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        features = self.stem(x)
        height, width = features.shape[-2:]
        centres = 8 * cells(height, width)
        near = torch.cat([centres, torch.full_like(centres, 20.0)])[None]
        places = near + features[:, :4].tanh()
        said = self.low + (self.high - self.low) * (8 * self.extra(features)).sigmoid()
        rows = torch.cat([places, self.classes(features).sigmoid() / 2, said], 1)
        return rows.flatten(2), {"features": features}


def cells(height: int, width: int) -> Tensor:
    """The middles of the cells of a grid, x before y, (2, height, width)."""
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.stack([x, y]) + 0.5


Found = tuple[tuple[float, float, float, float], int, float]
"""A box, its label and its score."""


def finding(found: Callable[[Tensor], list[Found]], **more: Tensor) -> Net:
    """In each image the boxes that a function finds, and what else it says of all."""

    def of(image: Tensor) -> dict[str, Tensor]:
        boxes = found(image)
        return {
            "boxes": torch.tensor([box for box, *_ in boxes]).view(-1, 4),
            "labels": torch.tensor([label for _, label, _ in boxes], dtype=torch.int64),
            "scores": torch.tensor([score for *_, score in boxes]),
            **more,
        }

    return Net(lambda x: [of(image) for image in x])


def says(found: list[Found], *, dark: list[Found] | None = None, **more: Tensor) -> Net:
    """Whatever it sees, these boxes; of what is darkened at a pixel, the others."""
    return finding(lambda image: found if dark is None or image[0, 3, 3] >= 0.25 else dark, **more)


def joined_yolo() -> Net:
    """Stride 8 alone, places and classes from one convolution, as in YOLOv5."""

    def forward(x: Tensor, stem: nn.Module, head: nn.Module) -> Tensor:
        said = head(stem(x))
        centres = (cells(*said.shape[-2:]) + said[:, :2].tanh() / 2) * 8
        sides = 16 * said[:, 2:4].exp().clamp(max=4)
        rows = torch.cat([centres, sides, said[:, 4:].sigmoid()], 1)
        return rows.flatten(2).transpose(1, 2)

    torch.manual_seed(0)
    model = Net(forward, stem=trunk(3), head=nn.Conv2d(32, 8, 1)).eval()
    setattr(model, "nc", 3)  # noqa: B010  # as YOLOs have it
    return model

"""`Small` networks that fail, wait or take too much; what is white makes some of them sick.

Functions give them the weights of `factories.tiny`, in each process.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from tests.waiting import hang
from tests.zoo.convolutional import Around, Small, around, small
from tests.zoo.parts import hook_count

SICK: Final = 255
"""The shade of gray that a network cannot bear."""
MOST: Final = 2
"""Number of pictures for which `hungry` has memory."""
LARGEST: Final = 4
"""Number of images for which `wide` has memory."""
STUCK: Final = threading.Event()
"""Whether `stuck_once` has been."""


class Slow(Small):
    """A forward pass takes some seconds more, however many images it holds. The dozens of passes
    with which a service examines a model do not: every start would take half a minute."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def forward(self, x: Tensor) -> Tensor:
        if not _is_examined():
            time.sleep(self.seconds)
        return super().forward(x)


def _is_examined() -> bool:
    """Whether the pass is one of a service that loads the model."""
    loading = "service.loading.served_model", "load"
    calls = (frame for frame, _ in traceback.walk_stack(None))
    return any((call.f_globals.get("__name__"), call.f_code.co_name) == loading for call in calls)


def is_sick(x: Tensor, least: float = (SICK - 1) / 255) -> Tensor:
    """Which of the pictures are."""
    return x.amin(dim=(1, 2, 3)) > least


def at_sick(act: Callable[[], object], least: float = (SICK - 1) / 255) -> Around:
    """Acts before a batch with a sick picture."""
    return around(lambda x: act() if is_sick(x, least).any() else None, seed=4)


def fragile() -> Around:
    """Fails at a sick picture, and with it the whole batch."""

    def fail() -> None:
        raise RuntimeError("too bright")

    return at_sick(fail)


def lethal() -> Around:
    """Ends the process as an exception that nobody catches does, at a white picture."""
    return at_sick(partial(os._exit, 1), least=2)


def stuck() -> Around:
    """Never comes back from a sick picture. Takes a while to build, as real ones do: so long there
    is no worker."""
    time.sleep(0.5)
    return at_sick(hang)


def stuck_once() -> Around:
    """The first sick picture keeps it for seconds; no other one does."""

    def stick() -> None:
        if not STUCK.is_set():
            STUCK.set()
            time.sleep(4)

    return at_sick(stick)


class Unsound(Small):
    """A sick picture's logits, and so its gradient, are not numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * torch.where(is_sick(x), torch.nan, 1.0)[:, None]


def unsound() -> Small:
    torch.manual_seed(4)
    return Unsound().eval()


def hungry() -> Around:
    """Has memory for `MOST` pictures at a time."""

    def allocate(x: Tensor) -> None:
        if len(x) > MOST:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    return around(allocate, seed=4)


def wide() -> Around:
    """Has no memory for more than `LARGEST` images: on an accelerator the device's own allocator
    refuses, on a CPU the module raises what it would raise."""

    def allocate(x: Tensor) -> None:
        if len(x) > LARGEST:
            if x.device.type == "cpu":
                raise torch.OutOfMemoryError("no memory is left")
            free, _ = torch.cuda.mem_get_info(x.device)
            torch.empty(2 * free, dtype=torch.uint8, device=x.device)

    return around(allocate, seed=4)


def hanging() -> Around:
    """Computes for six seconds if the photo is white: in a kernel, if the device has kernels."""

    def compute(x: Tensor) -> None:
        if bool((x > 2).all()):
            if x.device.type == "cuda":
                # Cycles at 3 GHz: at a lower clock the kernel takes longer.
                torch.cuda._sleep(int(6 * 3e9))  # type: ignore[no-untyped-call]
            else:
                time.sleep(6)

    return around(compute, seed=4)


def branching() -> Around:
    """Its operations depend on the numbers of the image: a recorded run would be wrong for other
    images."""
    return around(lambda x: x if x.mean() > 0 else -x, seed=4)


def watched() -> Small:
    """Tells, in a file, how many hooks there are on its modules."""
    return _watch(small(seed=4))


def leaky() -> Small:
    """What a careless service does at every request: a hook, a file and memory that stay."""
    kept: list[object] = []

    def leak(x: Tensor) -> None:
        model.conv2.register_forward_hook(lambda module, args, out: None)
        kept.append(bytearray(os.urandom(50_000)))
        if len(kept) % 20 == 0:
            kept.append(Path(os.devnull).open())  # noqa: SIM115
            threading.Thread(target=threading.Event().wait, daemon=True).start()

    model = around(leak, seed=4)
    return _watch(model)


def _watch(model: Small) -> Small:
    file = Path(os.environ["CHAOS_HOOKS"])

    def tell() -> None:
        while True:
            file.write_text(str(hook_count(model)))
            time.sleep(0.5)

    threading.Thread(target=tell, daemon=True, name="tell of hooks").start()
    return model


class BatchNormed(Small):
    """A batch normalisation that takes the batch's statistics in eval mode, too."""

    def __init__(self) -> None:
        super().__init__()
        normed = nn.Sequential(nn.BatchNorm2d(4, track_running_stats=False), nn.ReLU())
        self.add_module("relu1", normed)


class Attending(Small):
    """Attends to the other images instead of the other positions: its batch is not first."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(5, 1, batch_first=False)

    def classified(self, x: Tensor) -> Tensor:
        x = x.flatten(2).mT
        out: Tensor = self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))
        return out


class Flattening(Small):
    """Takes it for granted that there is one image."""

    def classified(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x.mean((2, 3)).view(1, 5))
        return out


class Dropping(Small):
    """Its dropout is on in eval mode, too."""

    def classified(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(nn.functional.dropout(x.mean((2, 3)), 0.5, training=True))
        return out


class Failing(Small):
    """Its second convolution fails while `broken` is set, in the middle of a pass."""

    broken = False

    def second(self, x: Tensor) -> Tensor:
        if self.broken:
            raise RuntimeError("broken")
        return super().second(x)


class Frozen(Small):
    """Its convolutions are a feature extractor in a block that sets the grad mode."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "detach":
            return self.classified(self.second(self.first(x)).detach())
        block = {"inference": torch.inference_mode, "on": torch.enable_grad}
        with block.get(self.how, torch.no_grad)():
            x = self.second(self.first(x))
        return self.classified(x.clone() if self.how == "inference" else x)

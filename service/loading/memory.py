"""The memory that a model needs for its images, before it is run, and the memory that there is.

need = activations(module, (1, 3, 4096, 4096), torch.float32)
need.examination                      # bytes that examining the model takes
free_bytes(torch.device("cpu"))       # bytes that there are; None if nobody says
"""

from __future__ import annotations

import copy
import logging
import weakref
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from service.models.catalog import ModelEntry

EXAMINED: Final = 2.5
"""Bytes of an examination for each byte of all modules' outputs, beside what a forward pass writes:
it keeps copies of the outputs, those of blocks included, and their gradients. Measured for
EfficientNet-Lite0: 2.5 at 384 × 384; for ResNet-18: 1.9."""
EXPLAINED: Final = 1.5
"""Bytes of an image in a batch for each byte that a forward pass without gradients holds at a
time: convolutions need some for themselves. EfficientNet-Lite0 takes 1.3."""
GIGABYTE: Final = 1e9
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Activations:
    """The bytes that one image's activations take."""

    examination: int
    """Bytes that it takes to examine the model."""
    image: int
    """Bytes of each image in a batch that is explained."""


NONE: Final = Activations(0, 0)
"""Stands for a model whose need is not known."""


class _Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes that operations write, those that are held at a time, and those of modules'
    outputs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.written = self.held = self.most_held = self.outputs = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        for one in tree_leaves(made):
            if isinstance(one, Tensor) and (key := one.untyped_storage()._cdata) not in self._known:
                count = one.untyped_storage().nbytes()
                self._known.add(key)
                self.written += count
                self.held += count
                self.most_held = max(self.most_held, self.held)
                weakref.finalize(one.untyped_storage(), self._free, key, count)
        return made

    def note_output(self, module: nn.Module, given: Any, output: Any) -> None:
        """Count the output of a module."""
        self.outputs += sum(one.nbytes for one in tree_leaves(output) if isinstance(one, Tensor))

    def _free(self, key: int, count: int) -> None:
        self.held -= count
        self._known.discard(key)


def activations(module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> Activations:
    """Return what an image of a shape takes, which is found out without computing anything. If the
    model stops before its end, because what it does depends on values, what it took until then
    counts; of a model that cannot be copied, nothing does."""
    counted = _Counted()
    with suppress(Exception):  # the module may be the operator's own and raise anything
        tensors = [*module.parameters(), *module.buffers()]
        # Nothing of the weights is copied but their shapes.
        shapes = {id(one): _without_values(one) for one in tensors}
        shadow = copy.deepcopy(module, shapes)
        for each in shadow.modules():
            each.register_forward_hook(counted.note_output)
        image = torch.empty(shape, dtype=dtype, device="meta")
        with torch.no_grad(), counted:
            shadow(image)
    examination = counted.written + EXAMINED * counted.outputs
    return Activations(int(examination), int(EXPLAINED * counted.most_held))


def _without_values(one: Tensor) -> Tensor:
    empty = one.detach().to("meta")
    return nn.Parameter(empty, requires_grad=False) if isinstance(one, nn.Parameter) else empty


def fitted(
    entry: ModelEntry,
    need: Activations,
    size: tuple[int, int],
    device: torch.device,
    *,
    examined: bool = False,
) -> ModelEntry:
    """Return the entry with as many images in a batch as there is memory for.

    Args:
        size: rows and columns of the model's input.
        examined: whether the model has been examined at an earlier start.

    Raises:
        ConfigError: if there is not enough memory for one image; the message names what it takes
            and what there is.
    """
    free = free_bytes(device)
    one = need.image if examined else max(need.image, need.examination)
    if free is None or not one:
        return entry
    if one > free:
        rows, columns = size
        raise entry.mistake(
            "input_size",
            f"the model needs about {one / GIGABYTE:.1f} GB for one image of {rows} × {columns}; "
            f"{free / GIGABYTE:.1f} GB are free on the {device.type}",
        )
    most = max(free // need.image, 1) if need.image else entry.max_batch
    if most < entry.max_batch:
        log.warning("model %s: there is memory for batches of %d images", entry.name, most)
    return entry.model_copy(update={"max_batch": min(entry.max_batch, most)})


def free_bytes(device: torch.device, root: Path = Path("/")) -> int | None:
    """Return the bytes that this process may still take on a device: of the CPU, what the system
    and the limits of its control groups leave. None if nothing says so.

    Args:
        root: the folder in which /proc and /sys are.
    """
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    if device.type != "cpu":
        return None
    left = [_available(root), *_left_by_groups(root)]
    return min((count for count in left if count is not None), default=None)


def _available(root: Path) -> int | None:
    with suppress(OSError, ValueError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _left_by_groups(root: Path) -> list[int]:
    """Return the bytes that each control group of this process leaves, of version 2 or 1."""
    left = []
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            number, controllers, path = [*line.split(":", 2), "", ""][:3]
            if number == "0":
                top, names = root / "sys/fs/cgroup", ("max", "current", "inactive_file")
            elif "memory" in controllers.split(","):
                top = root / "sys/fs/cgroup/memory"
                names = ("limit_in_bytes", "usage_in_bytes", "total_inactive_file")
            else:
                continue
            inner = top / path.lstrip("/")  # in a container it is often not there, but the top is
            for folder in {inner, *inner.parents}:
                if folder == top or top in folder.parents:
                    left += _left_by(folder, *names)
    return left


def _left_by(folder: Path, limit: str, used: str, cached: str) -> list[int]:
    with suppress(OSError, ValueError):  # there is no limit, or it is the word "max"
        most, taken = (int((folder / f"memory.{name}").read_text()) for name in (limit, used))
        stat = dict(map(str.split, (folder / "memory.stat").read_text().splitlines()))
        # The system takes pages of files away when it needs them.
        return [max(most - taken + int(stat.get(cached, 0)), 0)]
    return []

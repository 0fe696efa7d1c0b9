"""The index of architectures: a sketch of the tensors of each model of torchvision and timm.

    python -m service.features.init.index

writes `architectures.npz` for the installed versions, in some ten minutes. A thousand architectures
can't be made whenever a checkpoint is looked at: those whose sketches are like its own are.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import numpy as np
import timm
import torch
import torchvision
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

FILE: Final = Path(__file__).parent / "architectures.npz"
KEPT: Final = 16
"""Number of hashes in a sketch."""
PARTS: Final = 3
"""Number of parts of a name that count, from its end: training puts prefixes before names."""
Sketch = NDArray[np.uint32]


def sketch(state: Mapping[str, Tensor]) -> Sketch:
    """Return the sketch of the tensors of a state dict: the `KEPT` least hashes of their names and
    shapes, uint32. The share of equal hashes estimates the share of equal tensors (Broder, "On the
    resemblance and containment of documents", 1997)."""
    said = {
        f"{'.'.join(name.split('.')[-PARTS:])} {list(value.shape)}" for name, value in state.items()
    }
    hashes = sorted(int.from_bytes(blake2b(each.encode(), digest_size=4).digest()) for each in said)
    return np.array((hashes + [2**32 - 1] * KEPT)[:KEPT], np.uint32)


def likeness(one: Sketch, other: Sketch) -> float:
    """Return the estimated share of tensors that two state dicts have in common, 0 … 1."""
    least = np.union1d(one, other)[:KEPT]
    return float((np.isin(least, one) & np.isin(least, other)).mean())


@cache
def sketches() -> dict[str, Sketch]:
    """Return the source of each architecture, such as `timm:resnet18`, with its sketch."""
    with np.load(FILE) as held:
        return dict(zip(held["sources"].tolist(), held["sketches"], strict=True))


def sources() -> list[str]:
    """Return the sources that the installed torchvision and timm have."""
    named = torchvision.models.list_models(module=torchvision.models)
    return [f"torchvision:{name}" for name in named] + [f"timm:{n}" for n in timm.list_models()]


def made(source: str) -> nn.Module | None:
    """Return an architecture with shapes and without numbers; None if it cannot be made so."""
    library, _, name = source.partition(":")
    # Some architectures compute their widths with small tensors, whose numbers are needed.
    for light in (torch.device("meta"), _Empty()):
        try:
            with light, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if library == "timm":
                    module: nn.Module = timm.create_model(name, pretrained=False)
                else:
                    module = torchvision.models.get_model(name, weights=None)
                return module
        except Exception:  # noqa: S112 - an architecture may need what is not installed
            continue
    return None


class _Empty(TorchFunctionMode):
    """Makes parameters on the device `meta`, and small tensors with numbers."""

    MADE: Final = (torch.empty, torch.rand, torch.randn)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        if func in self.MADE:
            given["device"] = "meta"
        return func(*args, **given)


def write() -> None:
    """Write the index of the installed versions."""
    found = {}
    for source in sources():
        if module := made(source):
            found[source] = sketch(module.state_dict())
    np.savez_compressed(FILE, sources=np.array(list(found)), sketches=np.stack([*found.values()]))


if __name__ == "__main__":
    write()

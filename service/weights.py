"""Weights from a file, without running anything that is in it."""

from __future__ import annotations

import hashlib
import hmac
import pickle
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

SUFFIXES = (".safetensors", ".pt", ".pth", ".bin")


class WeightsError(Exception):
    """A weights file that cannot be used: a sentence without the file's name."""


def load_weights(module: nn.Module, file: Path, *, sha256: str | None = None) -> None:
    """Load a state dict (or a checkpoint that holds one under "state_dict" or "model") strictly.

    Args:
        sha256: of the file, in hexadecimal; with another one nothing of it is looked at.

    Raises:
        WeightsError
    """
    if sha256 is not None:
        _check_digest(file, sha256)
    state = {key.removeprefix("module."): value for key, value in _read(file).items()}
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise WeightsError(f"it does not fit the model: {reason[:300]}") from None


def load_in_order(module: nn.Module, file: Path) -> None:
    """Load a state dict whose tensors are those of `module` in the same order, other names.

    Raises:
        WeightsError
    """
    state = _read(file)
    own = module.state_dict()
    shapes = [value.shape for value in state.values()]
    if shapes != [value.shape for value in own.values()]:
        raise WeightsError("its tensors do not fit the model one to one")
    module.load_state_dict(dict(zip(own, state.values(), strict=True)))


def _check_digest(file: Path, sha256: str) -> None:
    try:
        with file.open("rb") as opened:
            found = hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise WeightsError(f"it cannot be read: {error.strerror}") from None
    if not hmac.compare_digest(found, sha256):
        raise WeightsError(f"its SHA-256 is {found}, not the {sha256} that the entry names")


def _read(file: Path) -> Mapping[str, Tensor]:
    if file.suffix not in SUFFIXES:
        raise WeightsError(f"its name must end in {', '.join(SUFFIXES)}")
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        found = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise WeightsError(
            "it holds more than tensors and would have to run code to load, which is refused; "
            "save model.state_dict() instead, best as .safetensors"
        ) from None
    except (OSError, SafetensorError, RuntimeError, EOFError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:200]
        raise WeightsError(f"it cannot be read: {reason}") from None
    for key in ("state_dict", "model"):
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not all(isinstance(v, Tensor) for v in found.values()):
        raise WeightsError("it holds no state dict: a table of names and tensors")
    return found

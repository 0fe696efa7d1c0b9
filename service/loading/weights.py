"""Reading weights from a file and loading them into a module, without running code in the file."""

from __future__ import annotations

import hashlib
import hmac
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from cam.counts import counted
from service.core.errors import one_line
from service.core.files import why_unreadable

SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
WRAPPINGS = ("state_dict", "model_state_dict", "model", "net", "ema", "model_ema", "state_dict_ema")
"""Keys under which training checkpoints store a state dict; earlier keys take precedence."""
PREFIXES = ("module.", "_orig_mod.", "model.", "net.", "ema.")
NEEDED = (
    "what is needed is a state dict, as torch.save(model.state_dict(), FILE) or save_file of "
    "safetensors writes it"
)
STARTS = (b"PK", b"\x80")
"""The first bytes of files of torch.save: of a zip archive, and of a pickle."""
COUNTERS = ("n_averaged",)
"""Names of tensors in averaged models that are not weights."""
IDLE = (nn.Dropout, nn.Identity, nn.Linear)
"""Layers around which a linear layer gives the same at evaluation as alone, and it."""
State = Mapping[str, Tensor]


class WeightsError(Exception):
    """A weights file cannot be used. The message does not contain the file's name."""


def read_weights(file: Path, *, sha256: str | None = None) -> State:
    """Read a state dict from a file, which holds it directly or under one of `WRAPPINGS`.

    Args:
        sha256: expected SHA-256 of the file, in hexadecimal; it is checked before anything is
            loaded.

    Raises:
        WeightsError: if the file cannot be read, holds no state dict or has another SHA-256.
    """
    check_file(file)
    if sha256 is not None:
        _check_digest(file, sha256)
    return _read(file)


def read_shapes(file: Path) -> State:
    """Read the names and shapes of a state dict from a file, as tensors on the device `meta`.

    Raises:
        WeightsError: see `read_weights`.
    """
    check_file(file)
    return _read(file, "meta")


def check_file(file: Path) -> None:
    """Check the file's name, and that its content can be read.

    Raises:
        WeightsError: if the name has an unknown ending, or if it cannot be read.
    """
    if file.suffix not in SUFFIXES:
        raise WeightsError(f"its name must end in {', '.join(SUFFIXES)}")
    if reason := why_unreadable(file):
        raise WeightsError(f"it cannot be read: {reason}")


def load_weights(module: nn.Module, state: State) -> Head | None:
    """Load a state dict into a module: every name and shape must match, after the prefixes that
    training adds to names are removed.

    Returns:
        The linear layer that the state dict has in another place than the model, if it has one.

    Raises:
        WeightsError: if the state dict does not fit the module.
    """
    found = compared(module, state)
    if counts := found.sizes:
        classes = counted(counts.given, "class", "classes")
        raise WeightsError(
            f"it has {classes} ({counts.name!r} is {_sides(found.state[counts.name].shape)}), and "
            f"the model has {counts.own}; name {counted(counts.given, 'label')}, or let the "
            f"factory make a model of {classes}"
        )
    module.load_state_dict(found.state)
    return found.head


@dataclass(frozen=True)
class Compared:
    """A state dict that fits a module, but perhaps for the number of classes."""

    state: State
    """The tensors under the module's names."""
    head: Head | None
    sizes: HeadSizes | None
    """The numbers of classes, if they differ."""
    left_out: tuple[str, ...] = ()
    """Names of tensors beside the model's."""


def compared(module: nn.Module, state: State) -> Compared:
    """Compare the names and shapes of a state dict with a module's, which may be on the device
    `meta`.

    Raises:
        WeightsError: if they differ in more than the number of classes of the head.
    """
    own, whole = module.state_dict(), state
    state = _named_as(own, state)
    taken = {id(value) for value in state.values()}
    left_out = tuple(
        name for name, value in whole.items() if id(value) not in taken and name not in COUNTERS
    )
    head = _head_of(module, own, state)
    if head is not None:
        state = head.renamed(state)
    missing, unknown = [*(own.keys() - state.keys())], [*(state.keys() - own.keys())]
    if missing or unknown:
        said = [
            f"{counted(len(names), 'tensor is', 'tensors are')} {what}, such as "
            f"{sorted(names)[0]!r}"
            for names, what in ((missing, "missing"), (unknown, "unknown to the model"))
            if names
        ]
        raise WeightsError(f"it does not fit the model: {', and '.join(said)}")
    other = [name for name in own if own[name].shape != state[name].shape]
    sizes = {(own[name].shape[:1], state[name].shape[:1]) for name in other}
    alike = all(own[name].shape[1:] == state[name].shape[1:] for name in other)
    if len(sizes) == 1 and alike:
        ((mine, given),) = sizes
        if mine and given:
            return Compared(state, head, HeadSizes(other[0], mine[0], given[0]), left_out)
    if other:
        name = other[0]
        raise WeightsError(
            f"it does not fit the model: {counted(len(other), 'tensor has', 'tensors have')} "
            f"another shape, such as {name!r}: {_sides(state[name].shape)} in the file, "
            f"{_sides(own[name].shape)} in the model"
        )
    return Compared(state, head, None, left_out)


@dataclass(frozen=True)
class Head:
    """A linear layer that ends a model and stands in another place in a state dict: as the only
    layer with weights of an `nn.Sequential` in place of the linear layer, or without the
    `nn.Sequential` that the model has around it."""

    own: str
    """Name of the layer in the model."""
    given: str
    """Name of the layer in the state dict."""

    def renamed(self, state: State) -> State:
        """Return the state dict with the model's name of the layer."""
        mine, theirs = f"{self.own}.", f"{self.given}."
        return {
            mine + name.removeprefix(theirs) if name.startswith(theirs) else name: value
            for name, value in state.items()
        }


def _head_of(module: nn.Module, own: State, state: State) -> Head | None:
    """Return the linear layer that a state dict, named as the model is, has in another place; None
    if there is none, or if other tensors differ, too.

    Around it may be layers without weights. Those of the model must be dropout, which does nothing
    at evaluation; those of the state dict's model are unknown, and are usually dropout.
    """
    missing, unknown = own.keys() - state.keys(), state.keys() - own.keys()
    mine = {name.rpartition(".")[0] for name in missing}
    theirs = {name.rpartition(".")[0] for name in unknown}
    if len(mine) != 1 or len(theirs) != 1 or len(missing) != len(unknown):
        return None
    head = Head(*mine, *theirs)
    weights = [own.get(f"{head.own}.weight"), state.get(f"{head.given}.weight")]
    flat = all(weight is not None and weight.ndim == 2 for weight in weights)
    if not flat or head.renamed(state).keys() != own.keys():
        return None
    inside, outside = head.own.rpartition(".")[0], head.given.rpartition(".")[0]
    if outside == head.own:  # the model's linear layer was replaced
        return head
    if inside not in (head.given, outside):
        return None
    replaced = module.get_submodule(inside)
    is_idle = isinstance(replaced, nn.Sequential) and all(isinstance(m, IDLE) for m in replaced)
    return head if is_idle else None


@dataclass(frozen=True)
class HeadSizes:
    """The numbers of classes of a model and of a state dict whose head differs from the model's."""

    name: str
    """Name of one of the head's tensors in the model."""
    own: int
    """Number of classes of the model."""
    given: int
    """Number of classes in the state dict."""


def classes_of(module: nn.Module, state: State) -> HeadSizes | None:
    """Return the numbers of classes of a model and a state dict that differ in nothing else; None
    in any other case."""
    try:
        return compared(module, state).sizes
    except WeightsError:
        return None


def _named_as(own: State, state: State) -> State:
    """Return the state dict without the additions of training: the prefixes of DataParallel,
    torch.compile and averaged models, the attribute in which a Lightning module keeps the model,
    and the counters of averaged models.

    Raises:
        WeightsError: if all of the model's tensors are there under several unknown prefixes.
    """
    state = {name: value for name, value in state.items() if name not in COUNTERS}
    whole = _prefixes(own, state)
    if len(whole) > 1 and not {"", *PREFIXES} & set(whole):
        names = " and ".join(map(repr, sorted(whole)))
        raise WeightsError(f"it has the tensors of the model under {names}; save one of them alone")
    if len(whole) == 1 and whole[0]:
        # The tensors of a deeper model have all those of a smaller one, and more beside them.
        tops = {name.partition(".")[0] for name in own}
        under = _under(whole[0], state)
        return {name: each for name, each in under.items() if name.partition(".")[0] in tops}
    while not own.keys() & state.keys():
        prefix = next(
            (prefix for prefix in PREFIXES if any(name.startswith(prefix) for name in state)), None
        )
        if prefix is None:
            return state
        # Tensors without the prefix, such as the weights of a loss, do not belong to the model.
        state = _under(prefix, state)
    return state


def _under(prefix: str, state: State) -> State:
    return {
        name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)
    }


def _prefixes(own: State, state: State) -> list[str]:
    """Return the prefixes under which a state dict has every tensor of the model."""
    first = next(iter(own), None)
    if first is None:
        return []
    ends = [name.removesuffix(first) for name in state if name.endswith(first)]
    return [
        prefix
        for prefix in ends
        if prefix[-1:] in ("", ".") and all(prefix + name in state for name in own)
    ]


def _sides(shape: torch.Size) -> str:
    return " × ".join(map(str, shape)) or "a number"


def load_in_order(module: nn.Module, file: Path) -> None:
    """Load a state dict that has the tensors of `module` in the same order, under any names.

    Raises:
        WeightsError: if the file cannot be read, or the shapes differ.
    """
    check_file(file)
    state = _read(file)
    own = module.state_dict()
    shapes = [value.shape for value in state.values()]
    if shapes != [value.shape for value in own.values()]:
        raise WeightsError("its tensors do not fit the model one to one")
    module.load_state_dict(dict(zip(own, state.values(), strict=True)))


def _check_digest(file: Path, sha256: str) -> None:
    try:
        with file.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise WeightsError(f"it cannot be read: {error.strerror}") from None
    if not hmac.compare_digest(digest, sha256):
        raise WeightsError(f"its SHA-256 is {digest}, not the {sha256} that the entry names")


def _read(file: Path, device: str = "cpu") -> Mapping[str, Tensor]:
    try:
        if file.suffix == ".safetensors" and device == "meta":
            with safe_open(file, "pt") as opened:
                shapes = {name: opened.get_slice(name).get_shape() for name in opened.keys()}  # noqa: SIM118
            return {name: torch.empty(shape, device=device) for name, shape in shapes.items()}
        if file.suffix == ".safetensors":
            return load_file(file)
        loaded = torch.load(file, map_location=device, weights_only=True)
    except Exception as error:  # a file that is damaged may raise anything
        raise WeightsError(_why_not(file, error)) from None
    while inner := _unwrapped(loaded):
        loaded = inner
    if not _is_state(loaded):
        what = type(loaded).__name__
        if isinstance(loaded, Mapping):
            keys = ", ".join(map(repr, list(loaded)[:8])) or "nothing"
            what = f"a table of {keys}{' …' if len(loaded) > 8 else ''}"
        raise WeightsError(
            f"it holds {what}, and none of {', '.join(WRAPPINGS)}; what is needed is a state dict: "
            "a table of names and tensors"
        )
    return cast(State, loaded)


def _why_not(file: Path, error: Exception) -> str:
    """Return why a file cannot be used whose loading raised `error`."""
    with file.open("rb") as opened:
        begin = opened.read(8)
    if isinstance(error, pickle.UnpicklingError) and begin.startswith(STARTS):
        named = re.search(r"GLOBAL ([\w.]+)", str(error))
        what = f"{named[1]}, which is more than tensors," if named else "more than tensors"
        remedy = (
            "where you trust the file, write its torch.load(FILE, weights_only=False)['state_dict']"
            if file.suffix == ".ckpt"
            else "save model.state_dict()"
        )
        return (
            f"it holds {what} and would have to run code to load, which is refused; {remedy} "
            "instead, best as .safetensors"
        )
    if file.suffix != ".safetensors" and not begin.startswith(STARTS):
        return (
            f"it cannot be read: it begins with {begin!r}, which torch.save never writes; {NEEDED}"
        )
    reason = getattr(error, "strerror", None) or one_line(error)[:200]
    return (
        f"it cannot be read, perhaps because it is cut off: {type(error).__name__}: {reason}; "
        f"{NEEDED}"
    )


def _unwrapped(loaded: object) -> Mapping[str, object] | None:
    """Return the mapping that a checkpoint holds under the first of `WRAPPINGS` that it has; None
    for a state dict, and if there is none."""
    if not isinstance(loaded, Mapping) or _is_state(loaded):
        return None
    return next((loaded[key] for key in WRAPPINGS if isinstance(loaded.get(key), Mapping)), None)


def _is_state(loaded: object) -> bool:
    return (
        isinstance(loaded, Mapping)
        and bool(loaded)
        and all(isinstance(value, Tensor) for value in loaded.values())
    )

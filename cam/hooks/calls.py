"""Name one call of a module that runs several times in a forward pass: "conv#2" is the second.

modules = Modules(model)
modules["conv#2"].register_forward_hook(hook)     # sees the second call of each forward pass
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch import nn

from cam.errors import UnknownLayer

Turns = tuple[tuple[int, int], ...]
"""The calls in which a layer runs, outermost first: the number of runs of a module, and which of
them it is. Modules that run equally often, such as the stem and the trunk of a siamese network, are
taken to run in turn."""


class Call:
    """One call of a module in each forward pass of a model."""

    def __init__(self, model: nn.Module, module: nn.Module, number: int) -> None:
        self._model, self._module, self._number = model, module, number

    def register_forward_hook(self, hook: Callable[..., Any]) -> Handle:
        """Set a hook that sees this call alone."""
        return self._register(self._module.register_forward_hook, hook)

    def register_forward_pre_hook(self, hook: Callable[..., Any]) -> Handle:
        """Set a hook that sees the inputs of this call alone."""
        return self._register(self._module.register_forward_pre_hook, hook)

    def _register(self, register: Callable[..., Any], hook: Callable[..., Any]) -> Handle:
        runs = 0

        def begin(model: nn.Module, args: Any) -> None:
            nonlocal runs
            runs = 0

        def counted(*given: Any) -> Any:
            nonlocal runs
            runs += 1
            return hook(*given) if runs == self._number else None

        handle = Handle()
        handle.callback(self._model.register_forward_pre_hook(begin).remove)
        handle.callback(register(counted).remove)
        return handle


class Handle(ExitStack):
    """Removes the hooks of a `Call`."""

    def remove(self) -> None:
        self.close()


class Modules(dict[str, nn.Module]):
    """A model's modules by name, without those of TorchScript, which run no hooks.

    A name such as "conv#2" is found, too, and stands for a `Call`. Only the modules are iterated.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__(
            (name, module)
            for name, module in model.named_modules()
            if name and not isinstance(module, torch.jit.ScriptModule)
        )
        self._model = model

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or super().__contains__(call_of(str(name))[0])

    def __missing__(self, name: str) -> nn.Module:
        module, number = call_of(name)
        if number is None:
            raise KeyError(name)
        # A `Call` takes hooks as a module does, and nothing else is asked of it.
        return cast(nn.Module, Call(self._model, self[module], number))


@contextmanager
def hooked(modules: Mapping[str, nn.Module], hook: Callable[..., Any]) -> Iterator[None]:
    """Call `hook(name, module, args, output)` after each run of the modules, in the block."""
    with ExitStack() as scope:
        for name, module in modules.items():
            scope.callback(module.register_forward_hook(partial(hook, name)).remove)
        yield


def call_of(name: str) -> tuple[str, int | None]:
    """Return a layer's module and the number of its call, from 1: "conv#2" → ("conv", 2).

    The number is None if the name means no call.
    """
    module, _, number = name.rpartition("#")
    if module and number.isdecimal() and int(number):
        return module, int(number)
    return name, None


def name_of(module: nn.Module, model: nn.Module) -> str:
    """Return the name of a module of the model, its first one if it has several.

    Raises:
        UnknownLayer: if it is not part of the model, or the model itself.
    """
    module = getattr(module, "_orig_mod", module)
    names = (name for name, submodule in model.named_modules() if submodule is module)
    name: str | None = next(names, None)
    if name:
        return name
    what = f"the {type(module).__name__} that was given as a layer"
    reason = "is not part of the model" if name is None else "is the whole model and no layer of it"
    raise UnknownLayer(f"{what} {reason}")


def turns_of(name: str, runs: Mapping[str, int]) -> Turns:
    """Return the calls in which a layer runs: those of the modules around it, and its own. Its own
    is left out if it has no modules inside and others around it run several times, as for a
    rectifier that is used everywhere in a network.

    Args:
        name: a layer, or one of its calls.
        runs: module → how often it runs in a forward pass.
    """
    module, number = call_of(name)
    count = runs.get(module, 0)
    if number is None or count < 2:
        return ()
    parts = module.split(".")
    around = [".".join(parts[:end]) for end in range(1, len(parts))]
    if any(other.startswith(f"{module}.") for other in runs) or not any(
        runs.get(outer, 0) > 1 for outer in around
    ):
        around.append(module)
    return tuple(
        dict.fromkeys(
            (times, (number - 1) * times // count + 1)
            for times in map(runs.get, around)
            if times and times > 1 and count % times == 0
        )
    )

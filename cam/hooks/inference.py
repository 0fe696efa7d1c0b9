"""Prepare a model for the forward passes of cam, and restore it afterwards."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from types import MethodType
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from cam.errors import ModelError
from cam.hooks.checkpoints import without_checkpoints
from cam.hooks.precision import callers_precision
from cam.hooks.quantised import differentiated

GUARD: Final = "Guard failed"
"""How the assertions of a program of torch.export begin."""
TRAINING: Final = (
    "the model, or a part of it, was in training mode (dropout, batch norm): it was evaluated with "
    "model.eval() for this map, and is in training mode again"
)
"""What is said of a model that `is_training`."""
TRAINED: Final = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._BatchNorm)
"""Modules that compute something else in training mode."""
_locks: WeakKeyDictionary[nn.Module, threading.RLock] = WeakKeyDictionary()
_register = threading.Lock()


@contextmanager
def alone(model: nn.Module) -> Iterator[None]:
    """Reserve `model` for this thread. Other threads of cam wait; the same thread may enter again.

    Hooks see the forward passes of every thread, so code that keeps hooks set for longer than one
    pass must hold this lock.
    """
    with _register:
        lock = _locks.setdefault(model, threading.RLock())
    with lock:
        yield


def is_training(model: nn.Module) -> bool:
    """Return whether a module of the model behaves otherwise in training mode and is in it."""
    return any(isinstance(module, TRAINED) and module.training for module in model.modules())


@contextmanager
def _guards_told() -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        if GUARD not in str(error):
            raise
        raise ModelError(
            f"the program of torch.export does not take this input ({error}); a map needs one "
            "image at a time, so export it for one image, or for batches of any size"
        ) from error


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Prepare `model` for forward passes with hooks and gradients, and restore it on exit.

    Within the block:

    - every module is in eval mode;
    - compiled modules run their original code, because compiled code ignores hooks;
    - activation checkpointing is off;
    - parameters and buffers that were made in inference mode are replaced by copies, which
      autograd can save for a backward pass;
    - gradients pass through quantised linear layers;
    - autocast is as the caller has set it;
    - the thread holds `alone(model)`.

    Raises:
        ModelError: if the model is a program of torch.export for other inputs, such as batches of
            four images.
    """
    with _guards_told(), alone(model), ExitStack() as scope:
        scope.enter_context(callers_precision())
        scope.enter_context(without_checkpoints())
        eager = []
        for module in model.modules():
            if getattr(module, "training", False):  # a frozen TorchScript module has no mode
                scope.callback(setattr, module, "training", True)
                module.training = False
            if not isinstance(module, torch.jit.ScriptModule):
                eager.append(module)
        _uncompile(eager, scope)
        _leave_inference(eager, scope)
        for hook in differentiated(eager):
            scope.callback(hook.remove)
        yield


def _uncompile(modules: Iterable[nn.Module], scope: ExitStack) -> None:
    """Let compiled modules run their original code, in whichever way they were compiled."""
    for module in modules:
        own = vars(module)
        if own.get("_compiled_call_impl") is not None:  # module.compile()
            _put(own, "_compiled_call_impl", None, scope)
        # torch.compile(module) and torch.compile(module.forward) set an attribute of the module; a
        # decorated method is an attribute of its class.
        forward = own.get("forward") or type(module).forward
        code = getattr(forward, "_torchdynamo_orig_callable", None)
        if code is not None:
            _put(own, "forward", code if "forward" in own else MethodType(code, module), scope)


def _leave_inference(modules: Iterable[nn.Module], scope: ExitStack) -> None:
    """Replace the modules' tensors that autograd cannot save by copies. A tensor that several
    modules share gets one copy."""
    copies: dict[int, Tensor] = {}
    own = map(vars, modules)
    for kept in chain.from_iterable((each["_parameters"], each["_buffers"]) for each in own):
        for name, tensor in kept.items():
            if tensor is not None and tensor.is_inference():
                if id(tensor) not in copies:
                    with torch.inference_mode(False), torch.no_grad():
                        copies[id(tensor)] = tensor.clone()
                _put(kept, name, copies[id(tensor)], scope)


def _put(names: dict[str, Any], name: str, value: Any, scope: ExitStack) -> None:
    """Set `names[name]` until the scope ends."""
    if name in names:
        scope.callback(names.__setitem__, name, names[name])
    else:
        scope.callback(names.__delitem__, name)
    names[name] = value

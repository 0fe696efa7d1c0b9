"""A model as every pass of cam runs it, left as it was found."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from cam.hooks.checkpoints import without_checkpoints
from cam.hooks.precision import callers_precision
from cam.hooks.quantised import is_quantised, straight_through

_locks: WeakKeyDictionary[nn.Module, threading.RLock] = WeakKeyDictionary()
_register = threading.Lock()


@contextmanager
def alone(model: nn.Module) -> Iterator[None]:
    """Be the one thread of cam that uses `model`; others wait. A thread may enter again.

    Hooks see every thread's forward pass: those that are set for longer than one pass need this.
    """
    with _register:
        lock = _locks.setdefault(model, threading.RLock())
    with lock:
        yield


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Make `model` ready for forward passes whose numbers, hooks and gradients are its own.

    In the block every module is in eval mode; what `torch.compile` compiled runs as it is written,
    because compiled code passes over hooks; nothing is checkpointed; parameters that were made in
    inference mode are replaced by copies that autograd may save; gradients pass quantised linear
    layers; autocast is the caller's. On exit all is as it was.

    The thread is `alone` with the model.
    """
    with alone(model), ExitStack() as scope:
        scope.enter_context(callers_precision())
        scope.enter_context(without_checkpoints())
        copies: dict[int, Tensor] = {}
        for module in model.modules():
            if module.training:
                scope.callback(setattr, module, "training", True)
                module.training = False
            if not isinstance(module, torch.jit.ScriptModule):
                _uncompile(module, scope)
                _leave_inference(module, copies, scope)
                if is_quantised(module):
                    scope.callback(module.register_forward_hook(straight_through).remove)
        yield


def _uncompile(module: nn.Module, scope: ExitStack) -> None:
    """Let the module run the code that was compiled, whichever way it was."""
    own = vars(module)
    if own.get("_compiled_call_impl") is not None:  # module.compile()
        _put(own, "_compiled_call_impl", None, scope)
    # torch.compile(module) and torch.compile(module.forward) leave an attribute of the module, a
    # decorated method is its class's.
    forward = own.get("forward") or type(module).forward
    code = getattr(forward, "_torchdynamo_orig_callable", None)
    if code is not None:
        _put(own, "forward", code if "forward" in own else MethodType(code, module), scope)


def _leave_inference(module: nn.Module, copies: dict[int, Tensor], scope: ExitStack) -> None:
    """Replace the module's tensors that autograd may not save; a tensor that several modules
    share gets one copy."""
    own = vars(module)
    for kept in (own["_parameters"], own["_buffers"]):
        for name, tensor in kept.items():
            if tensor is not None and tensor.is_inference():
                if id(tensor) not in copies:
                    with torch.inference_mode(False), torch.no_grad():
                        copies[id(tensor)] = tensor.clone()
                _put(kept, name, copies[id(tensor)], scope)


def _put(names: dict[str, Any], name: str, value: Any, scope: ExitStack) -> None:
    """Set an entry until the scope ends."""
    if name in names:
        scope.callback(names.__setitem__, name, names[name])
    else:
        scope.callback(names.__delitem__, name)
    names[name] = value

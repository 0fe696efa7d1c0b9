"""Cascading randomisation: the maps of a model whose weights are replaced, from the output down.

Adebayo et al., "Sanity Checks for Saliency Maps", NeurIPS 2018: a map that stays the same when the
model has lost what it learned does not show what the model does.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from cam.errors import CamError, InvalidOption, NotRandomisable
from cam.evaluation.scorer import Answering
from cam.explanation import ExplainedImage, Map, Question
from cam.hooks.inference import alone, evaluating
from cam.methods import METHODS
from cam.outputs.reading import AUTO, Reading
from cam.passes.stepwise import explain_in_steps
from cam.progress import Progress

Stage = list[Map | None]
"""The map of each question at each of its layers; None where the changed model has no map."""
Pair = tuple[Tensor, Tensor]
RANDOMISATION: Final = 20181003
"""Part of the seed of all random weights."""
STATISTICS: Final = ("running_mean", "running_var", "num_batches_tracked")
"""Names of buffers that normalisation layers have counted, and that stay as they are."""
PACKED: Final = (torch.int8, torch.quint8, torch.qint8, torch.qint32)
"""Types of buffers that hold quantised weights. Indices and masks have others."""


def randomised_in_steps(
    model: nn.Module,
    image: Tensor,
    questions: Sequence[Question],
    *,
    stages: int,
    seed: int,
    answer: Answering,
    chunk: int = 16,
    reading: Reading = AUTO,
) -> Generator[Progress, None, list[Stage] | CamError]:
    """Explain one image by copies of the model with more and more random weights.

    The modules with weights are ordered by their first run. At the first stage the last module,
    which computes the logits, is randomised; at the last stage all are; the stages between are
    evenly spaced. Weights are the parameters and the buffers of real numbers. A weight tensor is
    drawn from the normal distribution with the tensor's own mean and standard deviation, so that
    activations keep their order of magnitude; running statistics of normalisation layers stay, and
    so do tensors whose values are all the same. The model has its own weights back after each pass,
    and other passes may run between two steps.

    Args:
        image: float (C, H, W), preprocessed, on the model's device and in its dtype.
        questions: questions with one resolved target each.
        stages: number of stages, 1 or more; there are fewer if the model has fewer modules.
        seed: seed of the random weights.
        answer: answers one-pass questions by `model` itself and not by a copy.
        chunk: maximum number of images in one forward pass.

    Returns:
        The maps of each stage, in the order of the questions and of their layers.

    Raises:
        InvalidOption: if `stages` is below 1.
        NotRandomisable: if a module that runs has weights that cannot be replaced, such as
            quantised ones, or if no module has weights. Maps that stay because the weights do would
            say nothing.
    """
    if stages < 1:
        raise InvalidOption(f"stages is {stages}; it can be 1 or more")
    units = _units(model, image)
    counts = _counts(len(units), stages)
    quick = [question for question in questions if not question.in_steps]
    total = 1 + len(counts) * len(questions)
    yield Progress(1, total)
    pairs: list[Pair] = []
    per_stage: list[Stage] = []
    for stage, (start, count) in enumerate(zip([0, *counts], counts, strict=False)):
        for number in range(start, count):
            pairs += _drawn(units[number], seed, number)
        done = 1 + stage * len(questions)
        answers: list[ExplainedImage | CamError] = []
        if quick:
            with replaced(model, pairs):
                answers += answer(image[None], quick)
            yield Progress(done + len(quick), total)
        maps: Stage = []
        for number, question in enumerate(questions):
            if question.in_steps:
                steps = explain_in_steps(model, image, question, chunk=chunk, reading=reading)
                said = None
                while said is None:
                    with replaced(model, pairs):
                        try:
                            next(steps)
                        except StopIteration as stop:
                            said = stop.value
                    yield Progress(done + number, total)
            else:
                said = answers.pop(0)
            if isinstance(said, CamError):
                maps += [None] * _count(question)
            else:
                maps += [
                    explanation.map if explanation.map.any() else None
                    for explanation in said.explanations
                ]
        per_stage.append(maps)
    return per_stage


@contextmanager
def replaced(model: nn.Module, pairs: Sequence[Pair]) -> Iterator[None]:
    """Give weights of a model other contents while the block runs, and their own ones back
    afterwards. Other threads that use the model through `cam` wait.

    Args:
        pairs: a parameter or buffer, and the tensor of the same shape and dtype whose contents it
            gets.
    """
    with alone(model), ExitStack() as scope:
        others = {}
        for tensor, other in pairs:
            if tensor.is_inference():
                others[id(tensor)] = other
            else:
                # The tensor itself stays, because some modules, such as `nn.LSTM`, also keep it
                # elsewhere.
                scope.callback(setattr, tensor, "data", tensor.data)
                tensor.data = other
        # A tensor that was made in inference mode takes no other contents, so that the other tensor
        # stands in its place.
        for module in model.modules() if others else ():
            own = vars(module)
            for kept in (own["_parameters"], own["_buffers"]):
                for name, tensor in kept.items():
                    if id(tensor) in others:
                        scope.callback(kept.__setitem__, name, tensor)
                        kept[name] = others[id(tensor)]
        yield


def _count(question: Question) -> int:
    """Return the number of maps of one target."""
    method = METHODS[question.method]
    one = method.at == "input" or method.levels or question.fuse != "none"
    return 1 if one else len(question.layers)


def _counts(units: int, stages: int) -> list[int]:
    """Return how many modules are randomised at each stage: 1 at the first, all at the last."""
    if stages == 1 or units == 1:
        return [units]
    step = (units - 1) / (stages - 1)
    return sorted({1 + round(number * step) for number in range(stages)})


def _units(model: nn.Module, image: Tensor) -> list[list[Tensor]]:
    """Return the weights of each module that runs, the last module first. A module's weights
    include those of the modules below it that do not run themselves, as in
    `nn.MultiheadAttention`.

    Raises:
        NotRandomisable: if there are none, or some that cannot be replaced.
    """
    order = _order(model, image)
    units: dict[str, list[Tensor]] = {}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name.rpartition(".")[2] in STATISTICS:
            continue
        owner = name.rpartition(".")[0]
        while owner and owner not in order:
            owner = owner.rpartition(".")[0]
        if _is_packed(tensor):
            raise NotRandomisable(
                f"the weights {name!r} are of type {str(tensor.dtype).removeprefix('torch.')}, "
                "which cannot be replaced by random ones"
            )
        if tensor.is_floating_point() and _varies(tensor):
            units.setdefault(owner, []).append(tensor)
    if not units:
        raise NotRandomisable(
            f"{type(model).__name__} has no weights that can be replaced by random ones"
        )
    return [units[name] for name in sorted(units, key=lambda name: -order.get(name, 0))]


def _order(model: nn.Module, image: Tensor) -> dict[str, int]:
    """Return the names of the modules that run, each with its place in the order of their first
    runs.

    Raises:
        NotRandomisable: if one of them has weights that are not tensors.
    """
    order: dict[str, int] = {}

    def note(name: str) -> None:
        order.setdefault(name, len(order))

    hooks = [
        module.register_forward_pre_hook(lambda *_, name=name: note(name))
        for name, module in model.named_modules()
    ]
    try:
        with evaluating(model), torch.inference_mode():
            model(image[None])
    finally:
        for hook in hooks:
            hook.remove()
    for name in order:
        module = model.get_submodule(name)
        if hasattr(module, "_packed_params"):  # of quantised layers; for linear ones, a module
            raise NotRandomisable(
                f"the weights of module {name!r} ({type(module).__name__}) are packed, so that "
                "they cannot be replaced by random ones"
            )
    return order


def _is_packed(tensor: Tensor) -> bool:
    """Return whether a tensor holds quantised weights."""
    if isinstance(tensor, nn.Parameter):
        return not (tensor.is_floating_point() or tensor.is_complex())
    return tensor.dtype in PACKED


def _varies(tensor: Tensor) -> bool:
    """Return whether a tensor has different values, all of them finite. Others, such as masks of
    zero and minus infinity, cannot be drawn anew."""
    values = tensor.detach().float()
    return bool(values.numel() and values.isfinite().all() and values.min() < values.max())


def _drawn(weights: Sequence[Tensor], seed: int, number: int) -> list[Pair]:
    """Return each of a module's weights with its random contents."""
    # Not the plain seed: a model with random weights may have been drawn from the same one.
    (state,) = np.random.SeedSequence([RANDOMISATION, seed, number]).generate_state(1, np.uint64)
    generator = torch.Generator().manual_seed(int(state >> np.uint64(1)))
    pairs: list[Pair] = []
    for tensor in weights:
        values = tensor.detach().float()
        std = values.std(correction=0).item()
        drawn = torch.empty(values.shape).normal_(values.mean().item(), std, generator=generator)
        pairs.append((tensor, drawn.to(tensor)))
    return pairs

"""Check the arguments of `explain` and bring them into one form."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from operator import index
from pathlib import Path
from typing import Any, Final, SupportsIndex, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor, nn

from cam.counts import counted
from cam.errors import (
    InvalidImages,
    InvalidOption,
    InvalidPrompt,
    InvalidTarget,
    ModelError,
    NonFinite,
    NotAModule,
    ScriptedModel,
    UnknownLayer,
    UnknownMethod,
    did_you_mean,
)
from cam.hooks.calls import name_of
from cam.methods import METHODS, Method, method_named
from cam.prompts import PromptClassifier
from cam.targets import ClassTarget, SimilarityTarget, Target, TextTarget, UnitTarget

OneTarget = SupportsIndex | str | Target | None
Targets = OneTarget | Sequence[OneTarget] | Tensor | NDArray[np.integer[Any] | np.object_]

Photo = Image.Image | NDArray[np.uint8] | str | Path
Images = Tensor | Photo | Sequence[Photo]
Preprocess = Callable[[Image.Image], Tensor]
Layers = str | nn.Module | Sequence[str | nn.Module]

HOOKLESS: Final = (
    *("rise", "occlusion", "gradient", "smoothgrad", "integratedgradients", "expectedgradients"),
)
"""Names of the methods that need no hooks in the model."""
ZERO_SHOT_TEMPLATE: Final = "This is a photo of {}."
"""The template of Hugging Face's pipeline for zero-shot image classification."""
IN_PLACE: Final = "has been modified by an inplace operation"
"""What autograd says if a tensor that it needs was changed."""
_COMPILED: Final = "_orig_mod."
"""Part that `torch.compile` adds to the names of compiled modules."""


def model_of(model: nn.Module, method: str) -> nn.Module:
    """Return the module to explain. If `torch.compile` returned `model`, this is the original.

    Raises:
        NotAModule: if `model` is not a torch.nn.Module, or wraps one for predictions.
        ScriptedModel: if the method needs hooks and the model is TorchScript, which runs none.
    """
    if not isinstance(model, nn.Module):
        raise NotAModule(f"the model is a {type(model).__name__}, not a torch.nn.Module")
    if reason := wrapping(model):
        raise NotAModule(reason)
    original = getattr(model, "_orig_mod", model)
    if isinstance(original, torch.jit.ScriptModule) and method not in HOOKLESS:
        raise ScriptedModel(
            f"{method} needs hooks on the model's layers, and TorchScript runs none: explain the "
            f"model that was scripted or traced, or use {', '.join(HOOKLESS)}"
        )
    inner: nn.Module = original
    return inner


def wrapping(model: nn.Module) -> str | None:
    """Return why a module cannot be explained, as a clause, if it is a model of Ultralytics, such
    as `YOLO("yolo11n.pt")`, which opens files, predicts and trains; None if it is not."""
    kinds = {f"{kind.__module__}.{kind.__name__}" for kind in type(model).__mro__}
    if "ultralytics.engine.model.Model" not in kinds:
        return None
    name = type(model).__name__
    return f"a {name} of Ultralytics wraps the network for predictions: take its .model"


def unwrapped(
    model: Any, preprocess: Preprocess | None, text: Sequence[str] | None
) -> tuple[Any, Preprocess | None]:
    """Return the module and the preprocessing of a Hugging Face pipeline for image classification
    or zero-shot image classification, such as `transformers.pipeline("image-classification")`; of
    anything else, the arguments.

    Explanations keep the preprocessing, so it holds the pipeline's image processor alone.

    Raises:
        InvalidPrompt: if there are prompts but no pipeline that takes them, or if such a pipeline
            has none.
    """
    kinds = {kind.__name__ for kind in type(model).__mro__}
    processor = getattr(model, "image_processor", None)
    zero_shot = "ZeroShotImageClassificationPipeline" in kinds
    if text is not None and not zero_shot:
        raise InvalidPrompt(
            f"text is for a pipeline of zero-shot image classification, not a "
            f"{type(model).__name__}; make a cam.PromptClassifier of an image–text model"
        )
    if processor is None or not (zero_shot or "ImageClassificationPipeline" in kinds):
        return model, preprocess
    if zero_shot and text is None:
        raise InvalidPrompt("pass text, the prompts that are the classes of the pipeline")

    def prepared(picture: Image.Image) -> Tensor:
        pixels: Tensor = processor(images=picture, return_tensors="pt")["pixel_values"][0]
        return pixels

    module = model.model
    if text is not None:
        module = PromptClassifier(module, model.tokenizer, text, (ZERO_SHOT_TEMPLATE,))
    return module, preprocess or prepared


def labels_of(model: nn.Module, labels: Sequence[str] | None) -> dict[int, str]:
    """Return the name of each class: those that are given, or those of a `PromptClassifier`, or of
    a model of transformers, whose `config.id2label` has them; an empty dictionary if there are
    none.

    Raises:
        InvalidOption: if `labels` is not a sequence of texts.
    """
    if labels is not None:
        if isinstance(labels, str) or not all(isinstance(label, str) for label in labels):
            raise InvalidOption("labels is a list with the name of each class, as texts")
        return dict(enumerate(labels))
    if isinstance(model, PromptClassifier):
        return dict(enumerate(model.labels))
    names = getattr(getattr(model, "config", None), "id2label", None)
    if not isinstance(names, Mapping) or not all(str(number).isdigit() for number in names):
        return {}
    return {int(number): str(label) for number, label in names.items()}


def named_targets(names: Mapping[int, str], target: Any) -> Any:
    """Return the target with each label replaced by its class.

    Args:
        names: what `labels_of` returns.

    Raises:
        InvalidTarget: if there is no such label.
    """
    if isinstance(target, list | tuple):
        return [named_targets(names, one) for one in target]
    if not isinstance(target, str):
        return target
    known = {label: number for number, label in names.items()}
    if target not in known:
        near = did_you_mean(target, known) if known else "; a class is a whole number"
        raise InvalidTarget(f"the model has no label {target[:80]!r}{near}")
    return known[target]


def label_of(names: Mapping[int, str], target: Target) -> str | None:
    """Return the name of an explained class, with that of the class that is subtracted; None if one
    of them has none."""
    if not isinstance(target, ClassTarget) or target.index is None:
        return None
    indices = [target.index] if target.minus is None else [target.index, target.minus]
    if any(index not in names for index in indices):
        return None
    return " and not ".join(names[index] for index in indices)


def check_labels(labels: Sequence[str], asked: Sequence[Sequence[Target]]) -> None:
    """Check that the classes that are asked for have labels.

    Raises:
        InvalidOption: if one has none.
    """
    for target in chain(*asked):
        index = target.index if isinstance(target, ClassTarget) else None
        if index is not None and index >= len(labels):
            raise InvalidOption(
                f"labels has {counted(len(labels), 'label')}, and class {index} has none"
            )


def methods_of(method: str | Sequence[str]) -> list[Method]:
    """Return the methods with these names.

    Raises:
        UnknownMethod: if a name is unknown, if there are no names, or if a name appears twice.
    """
    names = [method] if isinstance(method, str) or not isinstance(method, Sequence) else method
    if not names:
        raise UnknownMethod(f"the list of methods is empty; the methods are {', '.join(METHODS)}")
    methods = [method_named(name) for name in names]
    twice = [method.name for method in methods if methods.count(method) > 1]
    if twice:
        raise UnknownMethod(f"method {twice[0]!r} is named twice")
    return methods


def images_of(images: Tensor) -> Tensor:
    """Check the images and return them without a graph.

    Raises:
        InvalidImages: if they are not a dense batch of floating-point images.
        NonFinite: if an image has NaN or infinity. The message names the first such image.
    """
    if not isinstance(images, Tensor):
        raise InvalidImages(f"the images are a {type(images).__name__}, not a torch.Tensor")
    shape = tuple(images.shape)
    if images.ndim != 4:
        raise InvalidImages(f"the images are {shape}, not (batch, channels, height, width)")
    if not images.numel():
        raise InvalidImages(f"the images are {shape}: there is nothing to see")
    if shape[3] <= 4 < min(shape[1:3]):
        raise InvalidImages(
            f"the images are {shape}, which looks like (batch, height, width, channels): pass "
            "images.permute(0, 3, 1, 2), and to a model that takes channels last, a module that "
            "permutes them back before it calls the model"
        )
    if not images.is_floating_point():
        raise InvalidImages(
            f"the images are {images.dtype}, not floating point: preprocess them as the model needs"
        )
    if images.is_meta or images.layout != torch.strided:
        kind = "on the meta device" if images.is_meta else f"of layout {images.layout}"
        raise InvalidImages(f"the images are {kind}, not a dense tensor of numbers")
    if images.is_inference():
        with torch.inference_mode(False):  # autograd can save the copy for a backward pass
            images = images.clone()
    finite = images.detach().isfinite().flatten(1).all(1)
    if not finite.all():
        raise NonFinite(f"image {int(finite.int().argmin())} has pixels that are NaN or infinite")
    return images.detach()


def photos_of(model: nn.Module, images: Any, preprocess: Preprocess | None) -> Any:
    """Return photos as a batch (B, C, H, W) on the model's device and in its dtype; a tensor as it
    is, if there is no `preprocess`.

    Raises:
        InvalidImages: if there is no way to preprocess them, or if what it returns is not a batch.
    """
    if isinstance(images, Tensor):
        if preprocess is not None:
            raise InvalidImages(
                "the images are a tensor, preprocessed already; leave preprocess out"
            )
        return images
    several = isinstance(images, list | tuple) or (
        isinstance(images, np.ndarray) and images.ndim == 4
    )
    photos = list(images) if several else [images]
    if not photos or not all(
        isinstance(each, Image.Image | np.ndarray | str | Path) for each in photos
    ):
        of = f" of {type(photos[0]).__name__}" if several and photos else ""
        raise InvalidImages(
            f"the images are a {type(images).__name__}{of}, not a torch.Tensor, a PIL image, a "
            "uint8 array (H, W, 3), the path of a file, or a list of such photos"
        )
    pictures = [_photo(photo) for photo in photos]
    prepare = preprocess or _timm_transform(model)
    made = [prepare(picture) for picture in pictures]
    shapes = [
        tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
        for tensor in made
    ]
    if len(set(shapes)) > 1 or not all(
        isinstance(tensor, Tensor) and tensor.ndim == 3 for tensor in made
    ):
        raise InvalidImages(
            f"preprocess returned {', '.join(map(str, dict.fromkeys(shapes)))} for "
            f"{counted(len(made), 'photo')}; it returns one tensor (C, H, W) for a photo, of the "
            "same shape for all"
        )
    like = next(
        (parameter for parameter in model.parameters() if parameter.is_floating_point()),
        torch.zeros(0),
    )
    return torch.stack(made).to(like.device, like.dtype)


def reader_of(
    model: nn.Module, images: Any, preprocess: Preprocess | None, number: int
) -> Callable[[], NDArray[np.float32] | None]:
    """Return a function that reads one of the images as the model takes it, float (C, H, W), or
    None after the caller has dropped or changed it. The function keeps neither images nor model
    alive."""
    if isinstance(images, Tensor):
        image = images[number]
        # A slice such as images[:1] ends with the call; the tensor that it shows may live on.
        base = weakref.ref(images if images._base is None else images._base)
        where = (image.shape, image.stride(), image.storage_offset())
        version = None if images.is_inference() else images._version

        def read() -> NDArray[np.float32] | None:
            whole = base()
            if whole is None or (version is not None and whole._version != version):
                return None
            return whole.detach().as_strided(*where).float().cpu().numpy()

        return read
    several = isinstance(images, list | tuple)
    one_of = images[number] if several else images
    # A file is read again.
    is_file = isinstance(one_of, str | Path)
    photo: Callable[[], Any] = partial(Path, one_of) if is_file else weakref.ref(one_of)
    of = weakref.ref(model)
    every = several or not isinstance(images, np.ndarray)

    def prepared() -> NDArray[np.float32] | None:
        given, module = photo(), of()
        if given is None or module is None:
            return None
        one = given if every or given.ndim == 3 else given[number]
        image: Tensor = photos_of(module, one, preprocess)[0]
        return image.float().cpu().numpy()

    return prepared


def _photo(given: Any) -> Image.Image:
    if isinstance(given, str | Path):
        try:
            with Image.open(given) as file:
                return _photo(ImageOps.exif_transpose(file))
        except (OSError, ValueError, Image.DecompressionBombError) as error:
            raise InvalidImages(f"{given} cannot be read as a photo: {error}") from None
    if isinstance(given, Image.Image):
        if given.mode.startswith("I;16"):  # Pillow's own conversion cuts off at 255
            return Image.fromarray((np.asarray(given) // 257).astype(np.uint8)).convert("RGB")
        if given.mode in ("I", "F"):
            raise InvalidImages(
                f"a photo has the mode {given.mode}, whose range of numbers is not known; convert "
                "it to L, RGB or I;16"
            )
        return given.convert("RGB")
    if given.dtype != np.uint8 or given.ndim != 3 or given.shape[2] != 3:
        raise InvalidImages(
            f"a photo is an array {given.shape} of {given.dtype}, not a uint8 array (H, W, 3)"
        )
    return Image.fromarray(given)


def _timm_transform(model: nn.Module) -> Preprocess:
    """Return timm's transform for evaluation of a model of timm.

    Raises:
        InvalidImages: if the model states no preprocessing as timm's models do.
    """
    if not (getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None)):
        raise InvalidImages(
            f"how photos are prepared for a {type(model).__name__} is not known; pass preprocess, "
            "a function from a PIL image to a tensor (C, H, W), such as weights.transforms() of "
            "torchvision, or pass a preprocessed tensor"
        )
    from timm.data import create_transform, resolve_model_data_config

    transform: Preprocess = create_transform(**resolve_model_data_config(model), is_training=False)
    return transform


def targets_of(target: Targets, count: int) -> list[tuple[Target, ...]]:
    """Return the targets of each of `count` images.

    An array (count,) holds one class, or one target, for each image. Every image gets all targets
    of a list.

    Raises:
        InvalidTarget: if the array has another shape, the list is empty, or a class or channel is
            not a whole number.
    """
    if isinstance(target, Tensor | np.ndarray) and target.ndim:
        if tuple(target.shape) != (count,):
            raise InvalidTarget(
                f"the targets are an array of shape {tuple(target.shape)}; one with a class for "
                f"each image has shape ({count},)"
            )
        return [(_target(number),) for number in target]
    if isinstance(target, list | tuple):
        if not target:
            raise InvalidTarget("the list of targets is empty; None explains the predicted class")
        return [tuple(map(_target, target))] * count
    return [(_target(target),)] * count


def _target(given: Any) -> Target:
    if given is None:
        return ClassTarget()
    if isinstance(given, ClassTarget):
        first, second = (
            None if number is None else _named(number) for number in (given.index, given.minus)
        )
        return replace(given, index=first, minus=second)
    if isinstance(given, UnitTarget):
        return replace(given, channel=_named(given.channel, "a channel"))
    if isinstance(given, SimilarityTarget | TextTarget):
        return given
    return ClassTarget(_named(given))


def _named(given: Any, what: str = "a class, None or a target") -> int:
    whole = _whole(given)
    if whole is None:
        raise InvalidTarget(
            f"{str(given)[:80]!r} is a {type(given).__name__}, not {what}: a class or channel is a "
            "whole number"
        )
    return whole


def _whole(given: Any) -> int | None:
    """Return `given`, a number of Python, NumPy or torch, as an int; None if it is not a whole
    number or is a boolean."""
    kind = given.dtype if isinstance(given, Tensor | np.ndarray) else type(given)
    if kind in (bool, np.bool_, torch.bool):
        return None
    try:
        return index(given)
    except (TypeError, ValueError):
        return None


def layers_of(model: nn.Module, layer: Layers) -> list[str]:
    """Return the names of the layers as in the model. For compiled modules, the part that
    `torch.compile` adds to a name may be left out of `layer`.

    Raises:
        UnknownLayer: if there is no layer, if one appears twice, if a module is not part of the
            model, or if `layer` holds something that is neither a name nor a module.
    """
    # A Sequential is a module and a sequence of modules: it is one layer.
    several = isinstance(layer, Sequence) and not isinstance(layer, str | nn.Module)
    asked: list[Any] = list(cast(Sequence[Any], layer)) if several else [layer]
    if not all(isinstance(entry, str | nn.Module) for entry in asked):
        raise UnknownLayer(f"{str(layer)[:80]!r} is not a layer's name, a module or a list of them")
    if not asked:
        raise UnknownLayer('the list of layers is empty; "auto" chooses one')
    names = [name for name, _ in model.named_modules()]
    plain = {name.replace(_COMPILED, ""): name for name in names}
    resolved = [
        name_of(entry, model)
        if isinstance(entry, nn.Module)
        else entry
        if entry in names
        else plain.get(entry.replace(_COMPILED, ""), entry)
        for entry in asked
    ]
    twice = [name for name in resolved if resolved.count(name) > 1]
    if twice:
        raise UnknownLayer(f"layer {twice[0]!r} is named twice")
    return resolved


def is_pattern(layer: str) -> bool:
    """Return whether a layer's name is a pattern for several layers, as "blocks.*.norm1" is."""
    return any(sign in layer for sign in "*?[")


def budget_of(budget: SupportsIndex | None) -> int | None:
    """Return the budget as an int, or None if there is no budget.

    Raises:
        InvalidOption: if it is not a whole number above 0.
    """
    if budget is None:
        return None
    passes = _whole(budget)
    if passes is None or passes < 1:
        raise InvalidOption(
            f"the budget is {str(budget)[:80]}; it is a whole number of forward passes, 1 or more"
        )
    return passes


@contextmanager
def diagnosed(model: nn.Module, images: Tensor) -> Iterator[None]:
    """Replace the model's error by a clearer one if the images and the model do not match.

    Raises:
        InvalidImages: instead of the model's RuntimeError, if the images and the model differ in
            device or dtype, or if the model is on the meta device.
        ModelError: if the model changes a tensor in place that a gradient needs.
    """
    try:
        yield
    except RuntimeError as error:
        held = [*chain(model.parameters(), model.buffers())]
        devices = {tensor.device for tensor in held}
        dtypes = {tensor.dtype for tensor in held if tensor.is_floating_point()}
        if "meta" in {device.type for device in devices}:
            reason = "the model's parameters are on the meta device and hold no numbers"
        elif devices and images.device not in devices:
            reason = f"the images are on {images.device}, the model is on {_joined(devices)}"
        elif dtypes and images.dtype not in dtypes:
            reason = f"the images are {images.dtype}, the model is {_joined(dtypes)}"
        elif IN_PLACE in str(error):
            raise ModelError(
                "the model changes a tensor in place that its gradient needs, as the Detect of "
                "YOLOv5 and YOLOv7 does: switch that off (inplace = False of that module), or use "
                "a method without a gradient, such as occlusion, or drise for boxes"
            ) from error
        else:
            raise
        raise InvalidImages(reason) from error


def _joined(values: set[Any]) -> str:
    return " and ".join(sorted(map(str, values)))

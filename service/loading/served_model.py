"""Loading a model: an entry of the catalog becomes a `ServedModel`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial, wraps
from time import perf_counter
from typing import Concatenate, Final, ParamSpec, TypeVar

import torch
from PIL import Image
from torch import nn

from cam import (
    ANSWER_METHODS,
    METHODS,
    CamError,
    Layer,
    Reading,
    VisionLanguageModel,
    default_layer,
    resolve_reading,
)
from cam.answers.vision_language import TRIAL
from cam.counts import counted
from cam.errors import NoTargetLayer, UnsuitedActivation, did_you_mean
from cam.hooks.grids import grid_in_words
from cam.layers import AUTO_LAYER, declare_layers, declared_layers, method_layers
from cam.methods.head import PooledHead, pooled_head
from cam.outputs.kind import kinds
from cam.outputs.output import Output
from cam.outputs.outputs import outputs_of, size_of
from cam.outputs.reading import logits_of
from cam.positions.locate import declare
from service.core.choices import RuntimeName
from service.core.disk_cache import OFF, DiskCache, KeyedCache
from service.core.errors import ConfigError, typed_line
from service.core.files import why_unreadable
from service.loading.devices import accelerators
from service.loading.examination import Examination, apply, examine, keep, recalled
from service.loading.fingerprint import fingerprint_of, keys_of
from service.loading.memory import NONE, Activations, activations, fitted
from service.loading.sources import Answering, Built, answering_of, build, check_source
from service.loading.transforms import Normalisation
from service.models.audited import Audited, read_audited
from service.models.catalog import ModelEntry
from service.models.info import LayerInfo, ModelInfo, usable_layer
from service.models.labels import Labels, read_labels
from service.models.preprocessing import Preprocessing
from service.models.sources import source_of

OWN_PROCESSOR: Final = Preprocessing(
    *TRIAL, min(TRIAL), (0.0,) * 3, (1.0,) * 3, Image.Resampling.BICUBIC, "squash"
)
"""Stands in for the preprocessing of a model that has a processor of its own."""
CHANNELS: Final = (1, 4, 2, 6)
"""Numbers of channels that are tried where a model fails on RGB."""
SIDES: Final = (224, 256, 384, 299, 512, 128, 96, 64, 48, 40, 32, 28)
"""Sides of images in pixels that are tried where a model fails on another size."""
log = logging.getLogger(__name__)
Made = TypeVar("Made")
Rest = ParamSpec("Rest")
LONGEST: Final = 600.0
"""Seconds that loading a model waits for another model, which may have to be downloaded."""
_one_at_a_time = threading.Lock()


@dataclass(frozen=True, eq=False, kw_only=True)
class ServedModel(ModelInfo):
    """A model on its device, frozen and in eval mode, with everything that the service knows about
    it."""

    module: nn.Module
    device: torch.device
    dtype: torch.dtype
    normalise: Normalisation
    """Last step of the preprocessing, which runs on the device."""
    reading: Reading
    """How the model's output is read, with its activation resolved."""
    channels_last: bool
    """Whether images should have the channels-last memory layout."""
    head: PooledHead | None
    """The linear head, if it reads the mean of the default layer."""
    answering: VisionLanguageModel | None = None
    """The model with its processor, if it answers questions."""
    exact: bool
    """Whether only a path may be used whose maps are the exact ones up to rounding."""
    kept: KeyedCache
    """Keeps what is found out about the model for the next start."""
    packages: KeyedCache
    """Keeps what is compiled ahead of time, whichever of equal devices the model is on."""

    @property
    def runtime(self) -> RuntimeName:
        """What runs the module."""
        return source_of(self.source)[0].runtime


ANYWHERE: Final = {"device": "auto", "layout": "auto", "runtime": None, "max_batch": 1}
"""Keys of an entry, with any value, on which what is compiled ahead of time does not depend: copies
of a model on further devices have others than the first one."""


def seeded(
    load: Callable[Concatenate[ModelEntry, Rest], Made],
) -> Callable[Concatenate[ModelEntry, Rest], Made]:
    """Wrap `load` so that only one wrapped function runs at a time, and so that the random
    generator has the same state afterwards as before.

    Raises:
        ConfigError: (the wrapped function) if another one is still running after `LONGEST` seconds.
    """

    @wraps(load)
    def alone(entry: ModelEntry, /, *given: Rest.args, **named: Rest.kwargs) -> Made:
        if not _one_at_a_time.acquire(timeout=LONGEST):
            raise entry.mistake("source", "another model has been loading for too long")
        try:
            with torch.random.fork_rng(devices=[]):
                return load(entry, *given, **named)
        finally:
            _one_at_a_time.release()

    return alone


@seeded
def load(entry: ModelEntry, cache: DiskCache = OFF) -> ServedModel:
    """Build the module, load its weights, move it to its device and examine its layers.

    Args:
        entry: an entry with a single device.
        cache: keeps what is found out about the model. The code of a factory may change while its
            weights do not, so such a model is examined at each start.

    Raises:
        ConfigError: if the model cannot be served; the message names the file, the entry, the key
            and the allowed values.
    """
    if answering := answering_of(entry):
        return _answering(entry, answering)
    started = perf_counter()
    given = _labels(entry)
    built = build(entry, len(given) if given else None)
    device, dtype = _device(entry), getattr(torch, entry.dtype)
    preprocessing = built.preprocessing
    names = given.names if given else built.labels
    count = len(names) or None
    module = _prepared(entry, built, device, dtype, names)
    log.info("model %s: built in %.1f s", entry.name, perf_counter() - started)
    shape = (1, 3, preprocessing.height, preprocessing.width)
    image = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    forms = entry, entry.model_copy(update=ANYWHERE)
    kept, packages = map(cache.of, keys_of(forms, module, preprocessing, device))
    known = None if source_of(entry.source)[0].is_code else recalled(kept)
    need = known.activations if known else NONE
    if not (known or entry.is_graph):
        need = activations(module, shape, dtype)
    entry = fitted(entry, need, size_of(image), device, examined=known is not None)
    with _mistakes_of(entry, module, image):
        seen = _examined(entry, built, module, image, need, known, kept, count)
    if seen.found.batching:
        entry = entry.model_copy(update={"max_batch": 1})
    reading, examination = seen.reading, seen.found
    layers, default, cannot = examination.layers, examination.default_layer, examination.unsuited
    classes = _class_count(seen.said)
    labels = _checked(entry, given, built, seen.said, binary=seen.binary)
    kind = seen.said.kind
    assert kind != "features"  # `_reading` refuses it
    assert reading.activation != "auto"  # `_reading` has resolved it
    fingerprint = fingerprint_of(entry, module, preprocessing, default or "", labels, reading)
    named = (default,) if default else ()
    audited = _audited(entry, fingerprint, layers)
    return ServedModel(
        name=entry.name,
        source=entry.source,
        module=module,
        device=device,
        dtype=dtype,
        precision=entry.dtype,
        preprocessing=preprocessing,
        normalise=Normalisation(preprocessing, device),
        kind=kind,
        reading=reading,
        activation=reading.activation,
        activation_reason=seen.reason,
        labels=labels,
        classes=classes if classes is not None else len(labels),
        layers=tuple(map(_info, layers)),
        default_layer=default,
        no_default=examination.no_default_layer,
        levels=tuple(layer.name for layer in layers if layer.level) or named,
        method_layers=_method_layers(module, list(layers), default),
        unsuited=cannot,
        max_batch=entry.max_batch,
        batching=examination.batching,
        stochastic=examination.stochastic,
        unnamed=_unnamed(entry, built, seen.said, reading, labels),
        channels_last=examination.channels_last,
        head=seen.head,
        exact=entry.mode == "auto" and device.type == "cpu",
        kept=kept,
        packages=packages,
        fingerprint=f"{fingerprint}-{audited.digest[:8]}" if audited else fingerprint,
        takes_text=hasattr(module, "text_target"),
        audited=audited,
    )


def _answering(entry: ModelEntry, answering: Answering) -> ServedModel:
    """Return a vision–language model, which has no classes and no layers of its own to explain."""
    device, dtype = _device(entry), getattr(torch, entry.dtype)
    model = answering(device, dtype)
    size, reading = OWN_PROCESSOR, Reading(None, "none")
    why = "the model answers questions, and its maps are those of words"
    plain = entry.model_copy(update={"runtime": None})  # PyTorch, whatever is asked for
    fingerprint = fingerprint_of(plain, model.model, size, "", Labels.of(()), reading)
    audited = _audited(entry, fingerprint, (), ANSWER_METHODS)
    return ServedModel(
        name=entry.name,
        source=entry.source,
        module=model.model,
        device=device,
        dtype=dtype,
        precision=entry.dtype,
        preprocessing=size,
        normalise=Normalisation(size, device),
        kind="answers",
        reading=reading,
        activation="none",
        activation_reason=why,
        labels=Labels.of(()),
        classes=0,
        layers=(),
        default_layer=None,
        no_default=why,
        levels=(),
        method_layers={},
        unsuited=dict.fromkeys(METHODS, why),
        max_batch=1,
        batching="an answer is one word after the other",
        stochastic=None,
        unnamed=None,
        channels_last=False,
        head=None,
        exact=True,
        kept=OFF.of(""),
        packages=OFF.of(""),
        fingerprint=f"{fingerprint}-{audited.digest[:8]}" if audited else fingerprint,
        audited=audited,
        answering=model,
    )


def _prepared(
    entry: ModelEntry,
    built: Built,
    device: torch.device,
    dtype: torch.dtype,
    names: Sequence[str],
) -> nn.Module:
    """Return the built module on its device, with the detections and reshapes of its entry.

    Args:
        names: the labels, if there are any.
    """
    module = built.module
    if entry.is_graph:  # a detector's form is found by the number of its classes
        module.names = tuple(names)  # type: ignore[assignment]
    with suppress(NotImplementedError):  # a program of torch.export has no modes
        module.eval()
    for parameter in module.parameters():  # a ScriptModule has no requires_grad_ of its own
        parameter.requires_grad_(False)
    module.to(device, dtype)
    if entry.detections != "auto" or entry.min_score is not None:
        if (detections := kinds().get("detections")) is None:
            said = f"it is {entry.detections!r}, but this service reads no detections; leave it out"
            raise entry.mistake("detections", f"{said}, and min_score")
        least = {} if entry.min_score is None else {"least": entry.min_score}
        detections.declare(module, entry.detections, classes=len(names) or None, **least)
    reshape = {"*": entry.reshape} if isinstance(entry.reshape, str) else entry.reshape
    try:
        declare(module, reshape)
    except CamError as error:
        raise entry.mistake("reshape", str(error)) from None
    return module


@contextmanager
def _mistakes_of(entry: ModelEntry, module: nn.Module, image: torch.Tensor) -> Iterator[None]:
    """Turn what a module raises for an image (1, 3, H, W) into mistakes of its entry."""
    try:
        yield
    except ConfigError:
        raise
    except UnsuitedActivation as error:
        raise entry.mistake("activation", str(error)) from None
    except CamError as error:
        raise entry.mistake("source", f"the model cannot be explained: {error}") from None
    except Exception as error:  # the module may be the operator's own and raise anything
        key, what = _cause(module, image)
        reason = typed_line(error)
        raise entry.mistake(key, f"{what}: {reason}") from error


def _cause(module: nn.Module, image: torch.Tensor) -> tuple[str, str]:
    """Return the key of an entry that is to blame for what a module raised for an image, and what
    fails, as a clause: found out by images of other sizes and channels."""
    shape = tuple(image.shape)
    if _runs(module, image):
        return "source", (
            f"the model runs on an input of shape {shape}, but fails with hooks and gradients, as "
            "a change of a tensor in place may"
        )
    height, width = shape[2:]
    for channels in CHANNELS:
        if _runs(module, image.new_zeros(1, channels, height, width)):
            return "source", (
                f"the model takes images of {channels} channel{'s' * (channels > 1)}, and photos "
                "have 3 (RGB): let the factory return a module that makes its input of RGB"
            )
    for side in SIDES:
        if side not in (height, width) and _runs(module, image.new_zeros(1, 3, side, side)):
            return "input_size", (
                f"the model fails on an input of shape {shape}, and runs with input_size = {side}"
            )
    return "source", f"the model fails on an input of shape {shape}"


def _runs(module: nn.Module, image: torch.Tensor) -> bool:
    try:
        with torch.no_grad():
            module(image.clone())
    except Exception:  # the module may be the operator's own and raise anything
        return False
    return True


@dataclass(frozen=True, eq=False)
class _Seen:
    """What passes of one image show of a model."""

    reading: Reading
    reason: str
    """Why the outputs are read so."""
    said: Output
    binary: bool
    """Whether the model has one logit for two classes."""
    found: Examination
    head: PooledHead | None


def _examined(
    entry: ModelEntry,
    built: Built,
    module: nn.Module,
    image: torch.Tensor,
    need: Activations,
    known: Examination | None,
    kept: KeyedCache,
    classes: int | None,
) -> _Seen:
    """Examine a model, unless it is `known` from an earlier start.

    Args:
        classes: number of the labels, if there are any.
    """
    if known:
        reading, reason = known.reading, known.activation_reason
    else:
        reading, reason = _reading(entry, built, module, image, classes)
    with torch.no_grad():
        raw = module(image)
    (said,) = outputs_of(raw, size=size_of(image), reading=reading, batch=1, model=module)
    if not all(
        bool(values.isfinite().all())
        for values in (said.logits, said.segments)
        if values is not None
    ):
        raise entry.mistake(
            "source" if entry.weights in ("default", "none") else "weights",
            "the model's outputs for noise are not finite; its weights or its precision are at "
            "fault",
        )
    if known:
        log.info("model %s: what is known of its layers was found in the cache", entry.name)
        apply(known, module, image)
    else:
        choose = partial(_default_layer, entry, built)
        known = examine(entry, module, image, need, (reading, reason), choose)
        keep(known, kept)
    default = known.default_layer
    declare_layers(module, _declared(entry, built, known.layers, default))
    grid = next((layer.grid for layer in known.layers if layer.name == default), None)
    head = None
    if default and grid and "cam" not in known.unsuited:
        head = pooled_head(module, image, default, grid, reading)
    if known.stochastic:
        log.warning("model %s: %s", entry.name, known.stochastic)
    if known.batching:
        log.warning("model %s is given images one by one: %s", entry.name, known.batching)
    binary = said.kind in ("classes", "segments") and (
        logits_of(raw, reading, batch=1).shape[1] == 1
    )
    return _Seen(reading, reason, said, binary, known, head)


def check(entry: ModelEntry) -> None:
    """Check what can be known of an entry without building its model: the source, the files that it
    names, the labels, the devices, the methods and the words of `reshape`.

    Raises:
        ConfigError: as `load` would raise it.
    """
    check_source(entry)
    _labels(entry)
    for copy in entry.copies:
        _device(copy)
    _check_methods(entry)
    for words in [entry.reshape] if isinstance(entry.reshape, str) else entry.reshape.values():
        try:
            grid_in_words(words)
        except CamError as error:
            raise entry.mistake("reshape", str(error)) from None
    for key, name in (("audit", entry.audit), ("reference", entry.reference)):
        if name is not None and (reason := why_unreadable(entry.path(name))):
            raise entry.mistake(key, f"{entry.path(name)} cannot be read: {reason}")


def _reading(
    entry: ModelEntry,
    built: Built,
    module: nn.Module,
    image: torch.Tensor,
    classes: int | None,
) -> tuple[Reading, str]:
    """Return how the model's output is read, and the reason for its activation.

    Args:
        classes: number of the labels, if there are any.

    Raises:
        ConfigError: if the model has no head.
    """
    if entry.kind == "value" and entry.activation not in ("auto", "none"):
        raise entry.mistake("kind", f"a value has no activation, and it is {entry.activation}")
    given = built.reading or Reading(entry.output, entry.activation)
    if entry.kind == "value":
        given = replace(given, activation="none", meaning="value")
    named = classes is not None or entry.kind == "classes"
    given = replace(given, classes=classes, named=named)
    reading, reason = resolve_reading(module, image, given)
    if reading.meaning == "features":
        raise entry.mistake(
            "source",
            f"the model has no head that gives scores of classes: {reason}; take a source with a "
            "head, or explain what makes images alike in Python, by cam.SimilarityTarget",
        )
    if entry.activation != "auto" or entry.kind == "value":
        return reading, "it is set in the model's entry"
    return reading, built.reason or reason


def _unnamed(
    entry: ModelEntry, built: Built, said: Output, reading: Reading, labels: Labels
) -> str | None:
    """Return a warning if nothing says what a model's outputs are, and they are read as logits of
    classes: neither the entry nor the source, and their values do not show it either; or if the
    source has doubts."""
    if built.doubts:
        return "; ".join(built.doubts)
    known = (
        len(labels)
        or entry.kind != "auto"
        or entry.activation != "auto"
        or built.reason
        or not source_of(entry.source)[0].anything
        or built.scores
    )
    if known or said.kind not in ("classes", "segments") or reading.activation == "none":
        return None
    (number, *_) = said.numbers[0].shape
    at = " at each pixel" if said.kind == "segments" else ""
    reason = (
        "nothing says what the model's outputs are: they are read as logits of "
        f"{counted(number, 'class', 'classes')}{at} ({reading.activation}); labels, kind or "
        "activation of its entry says it"
    )
    log.warning("model %s: %s", entry.name, reason)
    return reason


def _info(layer: Layer) -> LayerInfo:
    grid = None if layer.grid is None else (layer.grid.height, layer.grid.width)
    return LayerInfo(layer.name, layer.type, layer.shape, layer.problem, grid)


def _labels(entry: ModelEntry) -> Labels | None:
    """Return the labels that the entry names; None if it names none."""
    if entry.labels is None:
        return None
    if entry.labels == "imagenet":
        return imagenet()
    file = entry.path(entry.labels)
    try:
        if not (reason := why_unreadable(file)):
            return read_labels(file)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
    raise entry.mistake(
        "labels", f"{file} cannot be read: {reason}; it is 'imagenet' or a file, one label a line"
    )


def _checked(
    entry: ModelEntry, labels: Labels | None, built: Built, said: Output, *, binary: bool
) -> Labels:
    """Return the labels of the model's classes, or of a regression's values. For a classifier with
    one output, the entry may name only the positive class."""
    classes = _class_count(said)
    if labels is None:
        if said.kind == "value" and not built.labels:
            return Labels.of(("value",) if classes == 1 else ())
        labels = Labels.of(built.labels, [name.split(", ") for name in built.labels])
        if binary and len(labels) == 1:
            return _two(labels)
        if len(labels) and classes in (None, len(labels)):
            return labels
        return imagenet() if classes == 1000 else Labels.of(())
    if binary and len(labels) == 1:
        return _two(labels)
    if classes is not None and len(labels) != classes:
        what = ("value", "values") if said.kind == "value" else ("class", "classes")
        named, own = counted(len(labels), "label"), counted(classes, *what)
        many = f"{entry.labels} has {named}, but the model has {own}"
        one = ", a negative and a positive one, for its one output; name both, or the positive one"
        raise entry.mistake("labels", many + one * binary)
    return labels


def _two(labels: Labels) -> Labels:
    """Return the labels of a model with one output whose positive class alone is named."""
    (positive,) = labels.names
    return Labels.of((f"not {positive}", positive))


def _device(entry: ModelEntry) -> torch.device:
    assert isinstance(entry.device, str)  # one of an entry's copies has a single device
    if entry.is_graph:
        return torch.device("cpu")
    if entry.device == "auto":
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    device, here = torch.device(entry.device), accelerators()
    if device.type != "cpu" and f"{device.type}:{device.index or 0}" not in here:
        have = ", ".join(["cpu", *here])
        raise entry.mistake("device", f"{entry.device!r} is not on this machine; it has {have}")
    return device


def _default_layer(
    entry: ModelEntry, built: Built, layers: tuple[Layer, ...]
) -> tuple[str | None, str | None]:
    """Return the default layer, or None and the reason why there is none."""
    if entry.layer == "auto":
        trunk = [layer for layer in layers if layer.name.startswith(f"{built.trunk}.")]
        try:
            return default_layer(trunk if built.trunk else list(layers)), None
        except NoTargetLayer as error:
            log.warning("model %s has no default layer: %s", entry.name, error)
            return None, str(error)
    return usable_layer(entry, "layer", entry.layer, layers), None


def _declared(
    entry: ModelEntry, built: Built, layers: tuple[Layer, ...], default: str | None
) -> dict[str, str]:
    """Return the default layers that are declared, so that the library takes the same ones."""
    own = dict(built.method_layers) if entry.layer == "auto" else {}
    _check_methods(entry)
    for method, layer in entry.method_layers.items():
        own[method] = usable_layer(entry, "method_layers", layer, layers)
    return {AUTO_LAYER: default, **own} if default else own


def _method_layers(
    module: nn.Module, layers: list[Layer], default: str | None
) -> dict[str, tuple[str, ...]]:
    declared = declared_layers(module)
    chosen = {
        name: method_layers(method, layers, declared)
        for name, method in METHODS.items()
        if default or name in declared
    }
    return {name: names for name, names in chosen.items() if names != (default,)}


def _check_methods(entry: ModelEntry) -> None:
    for method in entry.method_layers:
        if method not in METHODS:
            names = ", ".join(METHODS) + did_you_mean(method, METHODS)
            raise entry.mistake(
                "method_layers", f"there is no method {method!r}; the methods are {names}"
            )


def _audited(
    entry: ModelEntry,
    fingerprint: str,
    layers: tuple[Layer, ...],
    methods: Collection[str] = METHODS,
) -> Audited | None:
    if entry.audit is None:
        return None
    try:
        audited = read_audited(entry.path(entry.audit), fingerprint, methods)
    except ValueError as error:
        raise entry.mistake("audit", str(error)) from None
    if methods is METHODS and METHODS[audited.method].at == "layer":
        for name in audited.layer.split(" + "):
            usable_layer(entry, "audit", name, layers)
    return audited


def _class_count(said: Output) -> int | None:
    """Return the number of classes; None for a detector, which only names the classes it finds."""
    values = said.logits if said.segments is None else said.segments
    return None if values is None else len(values)


def imagenet() -> Labels:
    """Return the labels of the 1000 classes of ImageNet-1k: torchvision's category names, with
    WordNet's synonyms.

    The synonyms also prevent mistakes: `crane` is a bird and a machine, so it is reported as
    ambiguous.
    """
    from timm.data import ImageNetInfo
    from torchvision.models import ResNet18_Weights

    names = ResNet18_Weights.DEFAULT.meta["categories"]
    wordnet = ImageNetInfo()
    lemmas = [wordnet.index_to_description(index).split(", ") for index in range(len(names))]
    return Labels.of(names, lemmas)

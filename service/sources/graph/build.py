"""Networks in files of ONNX and OpenVINO, as models."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any, get_args

from cam import Reading
from cam.errors import to_install
from cam.outputs.reading import Activation
from cam.runtimes.openvino import is_installed
from service.core.errors import typed_line
from service.core.files import why_unreadable
from service.loading.sources import Built
from service.loading.transforms import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    preprocessing_of,
    with_stated,
)
from service.models.catalog import ModelEntry
from service.models.preprocessing import Fit
from service.sources.graph.network import FORMS, GraphError, Wish, read_graph

log = logging.getLogger(__name__)


def build(entry: ModelEntry, what: str, classes: int | None) -> Built:
    file = check(entry, what)
    wanted = {entry.layer, *entry.method_layers.values()} - {"auto"}
    wish = Wish(entry.output, entry.activation, entry.input_sides, tuple(sorted(wanted)))
    try:
        graph = read_graph(file, wish)
    except GraphError as error:
        raise entry.mistake("source", str(error)) from None
    except Exception as error:  # OpenVINO may raise anything about a network
        log.debug("the network %s failed", file, exc_info=error)
        raise entry.mistake("source", f"{file} cannot be run: {typed_line(error)}") from None
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


def check(entry: ModelEntry, what: str) -> Path:
    """Return the file of a network. Only an entry of models.toml may name a file.

    Raises:
        ConfigError: if there is no such file, or if the entry asks for what OpenVINO does not do.
    """
    file, form = entry.path(what), FORMS[entry.source.partition(":")[0]]
    if entry.file is None:
        raise entry.mistake("source", "a network in a file is named in models.toml, not over HTTP")
    if not is_installed():
        raise entry.mistake(
            "source", f"OpenVINO runs it, which is not installed; {to_install('openvino')}"
        )
    if file.suffix != form:
        raise entry.mistake("source", f"{file} does not end in {form}")
    if reason := why_unreadable(file):
        raise entry.mistake("source", f"{file} cannot be read: {reason}")
    if entry.weights != "default":
        raise entry.mistake("weights", f"the file {file} has weights of its own; leave weights out")
    if entry.dtype != "float32":
        raise entry.mistake("dtype", f"a network in a file is run in float32, not {entry.dtype}")
    if any(copy.device not in ("auto", "cpu") for copy in entry.copies):
        raise entry.mistake("device", f"OpenVINO runs networks on the cpu, not on {entry.device}")
    return file

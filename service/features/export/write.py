"""Writing a model and its map as one file of ONNX or OpenVINO, for a device without this service.

The file's first output are the logits. Behind a pooled linear head the second one has the class
activation map of every class, one 1 × 1 convolution; for another model it is Recipro-CAM's map of
the class with the greatest logit, for which the part of the model behind the layer runs again
inside the file, for each position of the layer.
"""

from __future__ import annotations

import json
import logging
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from cam import CamError, Reading
from cam.errors import did_you_mean, to_install
from cam.hooks.grids import Grid
from cam.hooks.inference import evaluating
from cam.methods.head import PooledHead, pooled_head
from cam.outputs.outputs import watching
from cam.outputs.reading import logits_of
from cam.positions.locate import locate
from cam.runtimes.openvino import LARGEST_BATCH, compiled, converted, is_installed
from cam.runtimes.tail import Tail
from service import __version__
from service.core.errors import ConfigError, one_line
from service.core.logs import quiet
from service.loading.served_model import ServedModel, load
from service.models.catalog import ModelEntry
from service.sources.graph.network import FORMS, METADATA, Chain

Form = Literal["onnx", "openvino"]
INPUT: Final = "images"
OUTPUTS: Final = ("logits", "maps")
MEANINGS: Final = {
    "cam": "(batch, classes, rows, columns): the class activation map of each class before the "
    "relu: weight of the class and channel times activation, summed over the channels",
    "reciprocam": "(batch, rows, columns): of the class with the greatest logit, the logit if the "
    "layer has its activations at this position alone, less the logit without any",
}
TOLERANCE: Final = 1e-4
"""Largest difference between the file's outputs and the model's, as a share of the largest."""
ROUNDING: Final = 1e-6
"""Further difference, as a share of the largest logit."""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Exported:
    """What was written."""

    method: Literal["cam", "reciprocam"]
    layer: str
    any_batch: bool
    """Whether the file takes any number of images, and not only one."""


class WithCam(nn.Module):
    """A model that returns its logits (B, C) and the maps (B, C, h, w) of a pooled linear head.

    The logits are the means of the maps and the bias, so the head's own product is not computed:
    reading its weights twice would cost a small model a tenth of its time.

    Args:
        image: (1, 3, H, W).
    """

    method: Literal["cam"] = "cam"

    def __init__(self, model: nn.Module, head: PooledHead, image: Tensor, reading: Reading) -> None:
        super().__init__()
        self.model, self._head = model, head
        self.register_buffer("weights", head.weights[:, :, None, None].clone(), persistent=False)
        with evaluating(model):
            logits = logits_of(model(image.clone()), reading)
            bias = logits[0] - self._maps(image.clone())[0].mean((1, 2))
        self.register_buffer("bias", bias, persistent=False)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        maps = self._maps(images)
        return maps.mean((2, 3)) + self.get_buffer("bias"), maps

    def _maps(self, images: Tensor) -> Tensor:
        with watching(self.model, [self._head.layer]) as seen:
            self.model(images)
        activations = self._head.grid.apply(seen[self._head.layer])
        if self._head.rectified:
            activations = activations.relu()
        return functional.conv2d(activations, self.get_buffer("weights"))


class WithReciprocam(nn.Module):
    """A model that returns its logits (B, C) and Recipro-CAM's map (B, h, w) of the class with the
    greatest logit; of a single output, that of the class that it speaks for.

    Args:
        image: (1, 3, H, W).
        grid: of the layer's output.

    Raises:
        CamError: see `Tail`.
    """

    method: Literal["reciprocam"] = "reciprocam"

    def __init__(
        self, model: nn.Module, layer: str, grid: Grid, image: Tensor, reading: Reading
    ) -> None:
        super().__init__()
        self.model, self._layer, self._grid, self._reading = model, layer, grid, reading
        # One row for each position alone, and one for none.
        cells = grid.height * grid.width
        kept = torch.cat([torch.eye(cells), torch.zeros(1, cells)])
        kept = kept.reshape(1, cells + 1, 1, grid.height, grid.width)
        self.register_buffer("kept", kept, persistent=False)
        self._tail = Tail(model, layer, image, lambda raw: logits_of(raw, reading, batch=None))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        with watching(self.model, [self._layer, *self._tail.inputs]) as seen:
            logits = logits_of(self.model(images), self._reading)
        output, rows, columns = seen[self._layer], self._grid.height, self._grid.width
        cells = rows * columns
        values = self._grid.apply(output)
        alone = (values[:, None] * self.get_buffer("kept")).flatten(0, 1)
        outputs = self._grid.put(_repeated(output, cells + 1), alone)
        computed = {name: _repeated(seen[name], cells + 1) for name in self._tail.inputs}
        scores = logits_of(self._tail.traced(outputs, computed), self._reading)
        if logits.shape[1] == 1:
            best = torch.where(logits < 0, -1.0, 1.0)
            chosen = scores.reshape(-1, cells + 1) * best
        else:
            best = _repeated(logits.argmax(1, keepdim=True), cells + 1)
            chosen = scores.gather(1, best).reshape(-1, cells + 1)
        maps = chosen[:, :-1] - chosen[:, -1:]
        return logits, maps.reshape(-1, rows, columns)


def _repeated(values: Tensor, count: int) -> Tensor:
    """Return each row `count` times: (B, …) → (B · count, …)."""
    wide = values[:, None].expand(values.shape[0], count, *values.shape[1:])
    return wide.reshape(-1, *values.shape[1:])


def export_entry(entry: ModelEntry, file: Path, form: str, layer: str | None) -> Exported:
    """Load a model of the catalog on the CPU, and `export` it.

    Raises:
        ConfigError: see `load` and `export`; also if the format is unknown.
    """
    if form not in get_args(Form):
        raise ConfigError(f"--format {form}: it is one of {', '.join(get_args(Form))}")
    _check_file(file, cast(Form, form))
    plain = entry.model_copy(update={"device": "cpu", "mode": "exact", "runtime": None})
    return export(load(plain), file, cast(Form, form), layer)


def export(model: ServedModel, file: Path, form: Form, layer: str | None = None) -> Exported:
    """Write a model whose outputs are its logits and its maps, and compare the file's outputs with
    the model's.

    Args:
        file: a `.onnx`, or a `.xml`, beside which a `.bin` is written. It replaces an older file.
        layer: where the map is made; None for the model's default layer.

    Raises:
        ConfigError: if what writes the format is not installed, if the model cannot be exported,
            or if the file's outputs differ from the model's by more than 1e-4 of the largest.
    """
    _check_file(file, form)
    _check_model(model)
    shape = model.preprocessing
    rng = torch.Generator().manual_seed(0)
    images = torch.randn(2, 3, shape.height, shape.width, generator=rng)
    with torch.inference_mode(False), torch.no_grad():
        wrapped, at = _wrapped(model, images[:1], layer)
        with evaluating(wrapped), evaluating(model.module):
            expected = wrapped(images[:1].clone())
            with tempfile.TemporaryDirectory(dir=file.parent, prefix=".export-") as folder:
                part = Path(folder) / file.name
                any_batch = _write(model, wrapped, images, part, form, at)
                _compare(model, part, images[:1], expected)
                for each in sorted(Path(folder).iterdir()):
                    each.replace(file.with_name(each.name))
    return Exported(wrapped.method, at, any_batch)


def _check_file(file: Path, form: Form) -> None:
    if file.suffix != FORMS[form]:
        raise ConfigError(f"--output {file}: the format {form} has files that end in {FORMS[form]}")
    if not file.parent.is_dir():
        raise ConfigError(f"--output {file}: there is no folder {file.parent}")
    needed = ("onnx", "onnxscript") if form == "onnx" else ("openvino",)
    if missing := [name for name in needed if find_spec(name) is None]:
        extra = "export" if form == "onnx" else "openvino"
        raise ConfigError(f"--format {form} needs {' and '.join(missing)}; {to_install(extra)}")


def _check_model(model: ServedModel) -> None:
    if isinstance(model.module, Chain):
        raise ConfigError(
            f"model {model.name!r} is a network in a file already; export the model from which "
            "that file was made"
        )
    if model.kind not in ("classes", "value"):
        raise ConfigError(
            f"model {model.name!r} has the kind {model.kind}; classifiers and regressions can be "
            "exported"
        )
    if model.dtype != torch.float32 or model.device.type != "cpu":
        raise ConfigError(
            f"model {model.name!r} is {model.precision} on {model.device}; a model is exported in "
            "float32 from the cpu"
        )


def _wrapped(
    model: ServedModel, image: Tensor, layer: str | None
) -> tuple[WithCam | WithReciprocam, str]:
    """Return the model with its map as second output, and the layer of the map."""
    if layer is None and model.head is not None:
        return WithCam(model.module, model.head, image, model.reading), model.head.layer
    if layer is None and model.default_layer is None:
        raise ConfigError(f"model {model.name!r} has no default layer: {model.no_default}")
    at = cast(str, layer or model.default_layer)
    known = {each.name: each for each in model.layers}
    if at not in known:
        raise ConfigError(
            f"--layer {at}: model {model.name!r} has no such layer{did_you_mean(at, known)}"
        )
    if problem := known[at].problem:
        raise ConfigError(f"--layer {at}: no map can be made there: {problem}")
    located = locate(model.module, image, [at]).found[at]
    assert located.grid  # a layer without a problem has one
    try:
        head = pooled_head(model.module, image, at, located.grid, model.reading)
        return WithCam(model.module, head, image, model.reading), at
    except CamError:
        pass  # no linear head reads this layer's mean
    try:
        return WithReciprocam(model.module, at, located.grid, image, model.reading), at
    except CamError as error:
        raise _failed(model, str(error)) from None


def _failed(model: ServedModel, reason: str) -> ConfigError:
    return ConfigError(f"model {model.name!r} cannot be exported: {reason}")


def _write(
    model: ServedModel,
    wrapped: WithCam | WithReciprocam,
    images: Tensor,
    file: Path,
    form: Form,
    layer: str,
) -> bool:
    """Write the file; return whether it takes any number of images."""
    metadata = json.dumps(_metadata(model, wrapped.method, layer), ensure_ascii=False)
    if form == "openvino":
        try:
            _write_openvino(wrapped, images[:1], file, metadata)
        except Exception as error:  # the exporters may raise anything
            raise _failed(model, one_line(error)) from error
        return True
    try:
        _write_onnx(wrapped, images, file, metadata)
    except Exception as error:
        log.info("model %s: exported for one image at a time: %s", model.name, one_line(error))
        try:
            _write_onnx(wrapped, images[:1], file, metadata)
        except Exception as other:
            raise _failed(model, one_line(other)) from other
        return False
    return True


def _write_onnx(wrapped: nn.Module, images: Tensor, file: Path, metadata: str) -> None:
    """Write ONNX for any number of images if several are given, else for one."""
    import onnx
    from torch.export import Dim

    sizes = ({0: Dim("batch", min=1, max=LARGEST_BATCH)},) if len(images) > 1 else None
    with _quietly():
        program = torch.onnx.export(
            wrapped,
            (images,),
            dynamo=True,
            dynamic_shapes=sizes,
            input_names=[INPUT],
            output_names=OUTPUTS,
            verbose=False,
        )
    assert program is not None
    program.save(str(file), external_data=False)
    written = onnx.load(str(file))
    onnx.helper.set_model_props(written, {METADATA: metadata})
    onnx.save(written, str(file))


def _write_openvino(wrapped: nn.Module, image: Tensor, file: Path, metadata: str) -> None:
    import openvino

    network = converted(wrapped, image)
    network.inputs[0].get_tensor().set_names({INPUT})
    for output, name in zip(network.outputs, OUTPUTS, strict=True):
        output.get_tensor().set_names({name})
    network.set_rt_info(metadata, [METADATA])
    openvino.save_model(network, str(file), compress_to_fp16=False)


def _metadata(model: ServedModel, method: str, layer: str) -> dict[str, Any]:
    """Return what the file says of itself, as JSON."""
    seen = model.preprocessing
    return {
        "version": __version__,
        "model": model.name,
        "weights": model.weights,
        "layer": layer,
        "method": method,
        "outputs": {
            "logits": f"(batch, classes), before the activation {model.activation}",
            "maps": MEANINGS[method],
        },
        "activation": model.activation,
        "labels": list(model.labels.names),
        "fit": seen.crop_fit,
        "preprocessing": {
            "fit": seen.default_fit,
            "input_size": [seen.height, seen.width],
            "resize": seen.shorter_side,
            "interpolation": seen.resampling.name.lower(),
            "channel_order": "bgr" if seen.reversed else "rgb",
            "value_range": "0-255" if seen.byte_range else "0-1",
            "mean": list(seen.mean),
            "std": list(seen.std),
        },
    }


def _compare(
    model: ServedModel, file: Path, image: Tensor, expected: tuple[Tensor, Tensor]
) -> None:
    """Run the file and compare its outputs with the model's.

    Raises:
        ConfigError: if they differ.
    """
    if not is_installed():
        log.warning("model %s: without OpenVINO, the file is not compared with it", model.name)
        return
    import openvino

    network = openvino.Core().read_model(str(file))
    found = compiled(network, torch.float32).infer([image.numpy()])
    for name, one in zip(OUTPUTS, expected, strict=True):
        other = torch.from_numpy(found[name].copy())
        # Recipro-CAM's map is a difference of logits, which are rounded.
        most = TOLERANCE * float(one.abs().max()) + ROUNDING * float(expected[0].abs().max())
        if one.shape != other.shape or not float((one - other).abs().max()) <= most:
            raise _failed(model, f"the {name} of the file are not the model's")


@contextmanager
def _quietly() -> Iterator[None]:
    """Leave out what torch's exporter says of its own insides."""
    with quiet("torch.onnx"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield

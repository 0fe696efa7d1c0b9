"""What is known of a served model, as plain data that needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from cam.errors import did_you_mean
from service.core.choices import Activation, Dtype, ModelKind
from service.core.errors import UnknownLayer
from service.models.audited import Audited
from service.models.catalog import ModelEntry
from service.models.labels import Labels
from service.models.preprocessing import Preprocessing

if TYPE_CHECKING:
    from cam.layers import Layer


@dataclass(frozen=True)
class LayerInfo:
    """One module of a model, as a forward pass shows it."""

    name: str
    type: str
    """The module's class name."""
    shape: tuple[int, ...] | None
    """Shape of the output for one image, without the batch dimension; None if the output is not a
    tensor."""
    problem: str | None
    """Reason why no map can be made at this layer, as a clause; None if a map can be made."""
    grid: tuple[int, int] | None
    """Height and width of the positions in its output; None if it has none."""

    @property
    def explainable(self) -> bool:
        """Whether a map can be made at this layer."""
        return self.problem is None


@dataclass(frozen=True, eq=False, kw_only=True)
class ModelInfo:
    """Everything that the service knows about a loaded model, except the module itself."""

    name: str
    source: str
    precision: Dtype
    """Type of the model's numbers."""
    preprocessing: Preprocessing
    kind: ModelKind
    activation: Activation
    """Activation that turns the model's outputs into probabilities."""
    activation_reason: str
    """Reason for that activation, worded as a clause."""
    labels: Labels
    classes: int
    """Number of classes; 0 if it is unknown, for a detector without labels."""
    layers: tuple[LayerInfo, ...]
    default_layer: str | None
    """None if no layer can be the default: see `no_default`."""
    no_default: str | None
    """Sentence that says why no layer can be the default; None if one is."""
    levels: tuple[str, ...]
    """Layers from which a detector computes its boxes; for other models, the default layer."""
    method_layers: dict[str, tuple[str, ...]]
    """Method name → default layers, for methods that do not look at the model's default layer
    alone: see `cam.layers.method_layers`."""
    unsuited: dict[str, str]
    """Method name → reason why the method does not work with the model."""
    max_batch: int
    batching: str | None
    """Reason why the model gets one image at a time, whatever its entry sets; None if it takes
    batches."""
    stochastic: str | None
    """Warning about every map, if two passes of one image differ; None if they do not."""
    unnamed: str | None
    """Warning about every map, if nothing says what the model's outputs are, or if prompts name
    nothing that it knows; None if all is known."""
    fingerprint: str
    """Digest of the weights and of everything else that maps depend on, followed by the first
    characters of the audit's digest if there is an audit: `method=auto` depends on it."""
    takes_text: bool = False
    """Whether a target may be a text."""
    audited: Audited | None = None
    """What an audit of the model found; None if its entry names no audit."""

    @property
    def info(self) -> ModelInfo:
        """What is known of the model, without the module and the device that a `ServedModel`
        has."""
        return ModelInfo(**{known.name: getattr(self, known.name) for known in fields(ModelInfo)})

    @property
    def answers(self) -> bool:
        """Whether the model answers questions, and neither predicts nor explains classes."""
        return self.kind == "answers"

    @property
    def weights(self) -> str:
        """The fingerprint without the audit's digest, which an audit states."""
        return self.fingerprint.partition("-")[0]

    @property
    def background(self) -> int | None:
        """Index of a segmenter's background class; None if it has none."""
        first = self.labels.name(0) or ""
        return 0 if self.kind == "segments" and first.strip("_") == "background" else None

    @property
    def default(self) -> str:
        """The default layer.

        Raises:
            UnknownLayer: if the model has none.
        """
        if self.default_layer is None:
            raise UnknownLayer(f"model {self.name!r} has no default layer: {self.no_default}")
        return self.default_layer

    @property
    def stages(self) -> tuple[str, ...]:
        """The ends of the network's stages, in execution order: of each resolution the last layer
        with the fewest dots in its name, and the default layer for its own resolution.

        The layers are explainable, and they are blocks if the network has blocks: modules whose
        modules have modules. A normalisation or a convolution at the top of the network, and the
        layers before the end of a block that halves the resolution, do not count. (RefineCAM's
        layers are others, because its formula is for rectified ones: see
        `cam.layers.stage_layers`.)"""
        usable = [layer for layer in self.layers if layer.explainable and layer.grid]
        parts = [layer.name.split(".") for layer in usable]
        above = {".".join(names[:end]) for names in parts for end in range(1, len(names) - 1)}
        blocks = [layer for layer in usable if layer.name in above]
        ends: dict[tuple[int, int] | None, str] = {}
        for layer in blocks or usable:
            before = ends.get(layer.grid)
            if before is None or layer.name.count(".") <= before.count("."):
                ends[layer.grid] = layer.name
        ends |= {layer.grid: layer.name for layer in usable if layer.name == self.default_layer}
        found = set(ends.values())
        return tuple(layer.name for layer in usable if layer.name in found)

    def has_layer(self, method: str) -> bool:
        """Return whether a method has a default layer."""
        return self.default_layer is not None or method in self.method_layers

    def layers_of(self, method: str) -> tuple[str, ...]:
        """Return the default layer or layers of a method."""
        return self.method_layers.get(method) or (self.default,)


def usable_layer(
    entry: ModelEntry, key: str, name: str, layers: Sequence[Layer | LayerInfo]
) -> str:
    """Return the name of a layer that a key of an entry names, if maps can be made at it.

    Raises:
        ConfigError: if not.
    """
    for layer in layers:
        if layer.name == name:
            if layer.problem is None:
                return layer.name
            raise entry.mistake(key, f"no map can be made at {layer.name!r}: {layer.problem}")
    names = [layer.name for layer in layers if layer.explainable][-5:]
    raise entry.mistake(
        key,
        f"the model has no layer {name!r}; among its last are {', '.join(names)}"
        f"{did_you_mean(name, (layer.name for layer in layers))}",
    )

"""The errors that `cam` raises while it explains a model.

- CamError
  - UnknownMethod         there is no such method of class activation mapping
  - MethodUnsuited        the method does not support the request, or not with this model
  - UnknownColormap       there is no such colour map
  - InvalidOption         an option has a value that it cannot have
  - InvalidImages         the images are not a batch that the model can process
  - InvalidReference      the statistics of maps of good photos cannot be used
  - ModelError            the model cannot be explained
    - NotAModule          the model is not a torch.nn.Module
    - ScriptedModel       the model's code is TorchScript, which runs no hooks
    - NotLogits           the model's output holds neither logits nor detections
    - NoHead              the model returns features and no scores of classes
    - UnsuitedActivation  the activation does not fit the model's output or does not exist
    - NoTargetLayer       no layer of the model has a spatial output
    - NotRandomisable     weights of the model cannot be replaced by random ones
  - LayerError            a layer that was named cannot be used
    - UnknownLayer        the model has no such module
    - LayerDidNotRun      the layer did not run in this forward pass
    - LayerReused         the layer ran more than once in this forward pass
    - LayerNotSpatial     the layer's output does not lie on the image
    - NoGradientPath      no gradient of the target reaches the layer
    - GridTooLarge        the layer has too many positions for the method
  - TargetError           a target cannot be used
    - InvalidTarget       the target is not a class, a target or a list of these
    - ClassOutOfRange     the model has no such class
    - SelfContrast        a class would be contrasted with itself
    - TargetMismatch      the model's output is not of the kind that the target needs
    - NothingDetected     a detector finds no such object in this image
    - MaskEmpty           there is no pixel to sum over
    - BoxOutside          the box covers no pixel of the image
    - ChannelOutOfRange   the layer has no such channel
  - NonFinite             a pixel, a logit, an activation or a gradient is NaN or infinite
  - Unfaithful            the answers of a fast path differ from those of the exact path

Exceptions of a model's own `forward` are raised unchanged, unless the cause is that the model
cannot process images of this device or dtype.

Every message is one sentence that names the bad value and, if there is a list, the allowed values.
"""

from collections.abc import Iterable
from difflib import get_close_matches


def to_install(extra: str) -> str:
    """Return the sentence that says how the packages of an extra are installed, also into the image
    of the service, whose user can install nothing."""
    return (
        f"install the extra {extra!r}: pip install 'gradcam-service[{extra}]', or build the image "
        f"with --build-arg EXTRAS={extra}"
    )


class CamError(Exception):
    """Base class of the errors that `cam` raises on purpose."""


class UnknownMethod(CamError):
    """There is no such method of class activation mapping."""


class MethodUnsuited(CamError):
    """The method does not support the request, or not with this model."""


class UnknownColormap(CamError):
    """There is no such colour map."""


class InvalidOption(CamError):
    """An option has a value that it cannot have."""


class InvalidImages(CamError):
    """The images are not a batch that the model can process."""


class InvalidReference(CamError):
    """The statistics of maps of good photos, or their file, cannot be used."""


class ModelError(CamError):
    """The model cannot be explained."""


class NotAModule(ModelError):
    """The model is not a `torch.nn.Module`."""


class ScriptedModel(ModelError):
    """The model's code is TorchScript, which runs no hooks on the layers inside it."""


class NotLogits(ModelError):
    """The model's output holds neither logits nor detections."""


class NoHead(ModelError):
    """The model has no head: it returns features and no scores of classes."""


class UnsuitedActivation(ModelError):
    """The activation does not fit the model's output, or there is no activation of that name."""


class NoTargetLayer(ModelError):
    """No layer of the model has a spatial output that its logits depend on."""


class NotRandomisable(ModelError):
    """The model has no weights that can be replaced by random ones, or others beside them."""


class LayerError(CamError):
    """A layer that was named cannot be used."""


class UnknownLayer(LayerError):
    """The model has no module of that name."""


def unknown_layer(name: str, names: Iterable[str]) -> UnknownLayer:
    """Return the error of a layer that a model does not have.

    Args:
        names: the names of the model's layers. The message suggests the nearest one.
    """
    return UnknownLayer(f"the model has no layer {name!r}{did_you_mean(name, names)}")


def did_you_mean(name: object, names: Iterable[str]) -> str:
    """Return "; did you mean 'layer4'?" for the nearest name, whatever its case, hyphens and
    underscores; "" if none is near."""
    known = {_plain(each): each for each in names if each}
    near = get_close_matches(_plain(str(name)[:200]), known, 1)
    return f"; did you mean {known[near[0]]!r}?" if near else ""


def _plain(name: str) -> str:
    return name.casefold().translate({ord(sign): None for sign in "-_ "})


class LayerDidNotRun(LayerError):
    """The layer did not run in this forward pass."""


class LayerReused(LayerError):
    """The layer ran more than once in this forward pass, so "its" activation is ambiguous."""


class LayerNotSpatial(LayerError):
    """The layer's output is not a floating-point (batch, channels, height, width) tensor."""


class NoGradientPath(LayerError):
    """No gradient of the target reaches the layer's output."""


class GridTooLarge(LayerError):
    """The layer has more positions than the method can compare."""


class TargetError(CamError):
    """A target cannot be used."""


class InvalidTarget(TargetError):
    """The target is not a class index, a target or a list of these."""


class InvalidPrompt(TargetError):
    """A prompt is empty, has control characters, is too long for the text encoder, or is there
    twice."""


class ClassOutOfRange(TargetError):
    """The model has no class of that index."""


class SelfContrast(TargetError):
    """A class would be contrasted with itself."""


class TargetMismatch(TargetError):
    """The model's output is not of the kind that the target needs."""


class NothingDetected(TargetError):
    """A detector finds no object of that class, or none at that place, in this image."""


class MaskEmpty(TargetError):
    """There is no pixel to sum over."""


class BoxOutside(TargetError):
    """The box covers no pixel of the image."""


class ChannelOutOfRange(TargetError):
    """The layer has no channel of that index."""


class NonFinite(CamError):
    """A pixel, a logit, an activation or a gradient is NaN or infinite."""


class Unfaithful(CamError):
    """The answers of a fast path differ from those of the exact path."""

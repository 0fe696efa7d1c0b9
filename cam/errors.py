"""What can go wrong while explaining a model.

- CamError
  - UnknownMethod         no such method of class activation mapping
  - MethodUnsuited        this method cannot do that, or not with this model
  - UnknownColormap       no such colour map
  - InvalidOption         an option has a value that it cannot have
  - InvalidImages         the images are no batch that the model could see
  - ModelError            the model cannot be explained as it stands
    - NotAModule          it is no module of PyTorch
    - ScriptedModel       its code is TorchScript, which runs no hooks
    - NotLogits           its output holds no logits and no detections
    - UnsuitedActivation  that activation does not fit its output, or there is no such activation
    - NoTargetLayer       no layer of it has a spatial output
  - LayerError            a layer that was named cannot be used
    - UnknownLayer        the model has no such module
    - LayerDidNotRun      it took no part in this forward pass
    - LayerReused         it ran more than once in this forward pass
    - LayerNotSpatial     its output does not lie on the image
    - NoGradientPath      no gradient of the target reaches it
    - GridTooLarge        it has too many positions for the method
  - TargetError           a target that was asked for cannot be used
    - InvalidTarget       it is no class, no target and no list of these
    - ClassOutOfRange     the model has no such class
    - SelfContrast        a class is to be contrasted with itself
    - TargetMismatch      the model says nothing of that kind
    - NothingDetected     a detector finds no such thing in this image
    - MaskEmpty           there is no pixel to sum over
    - BoxOutside          the box has no pixel of the image
    - ChannelOutOfRange   the layer has no such channel
  - NonFinite             a pixel, a logit, an activation or a gradient is NaN or infinite
  - Unfaithful            a fast path does not say what the exact one says

What a model's own `forward` raises is not turned into one of these, unless the model cannot read
the images' device or dtype: it is raised as it is.

Every message is one sentence that names the bad value and, where there is a list, what is allowed.
"""


class CamError(Exception):
    """Base of every error that `cam` raises on purpose."""


class UnknownMethod(CamError):
    """No such method of class activation mapping."""


class MethodUnsuited(CamError):
    """The method cannot do what is asked, or not with this model."""


class UnknownColormap(CamError):
    """No such colour map."""


class InvalidOption(CamError):
    """An option has a value that it cannot have."""


class InvalidImages(CamError):
    """The images are no batch that the model could see."""


class ModelError(CamError):
    """The model cannot be explained as it stands."""


class NotAModule(ModelError):
    """What should be explained is no `torch.nn.Module`."""


class ScriptedModel(ModelError):
    """The model's code is TorchScript, which runs no hooks on the layers inside it."""


class NotLogits(ModelError):
    """The model's output holds neither logits nor detections."""


class UnsuitedActivation(ModelError):
    """The activation does not fit the model's output, or there is none of that name."""


class NoTargetLayer(ModelError):
    """No layer of the model has a spatial output that its logits depend on."""


class LayerError(CamError):
    """A layer that was named cannot be used."""


class UnknownLayer(LayerError):
    """The model has no module of that name."""


class LayerDidNotRun(LayerError):
    """The layer took no part in this forward pass."""


class LayerReused(LayerError):
    """The layer ran more than once in this forward pass, so "its" activation is ambiguous."""


class LayerNotSpatial(LayerError):
    """The layer's output is not a floating-point (batch, channels, height, width) tensor."""


class NoGradientPath(LayerError):
    """No gradient of the target reaches the layer's output."""


class GridTooLarge(LayerError):
    """It has more positions than the method can compare."""


class TargetError(CamError):
    """A target that was asked for cannot be used."""


class InvalidTarget(TargetError):
    """It is no class index, no target and no list of these."""


class ClassOutOfRange(TargetError):
    """The model has no class of that index."""


class SelfContrast(TargetError):
    """A class is to be contrasted with itself."""


class TargetMismatch(TargetError):
    """The model says nothing of the kind that the target is made of."""


class NothingDetected(TargetError):
    """A detector finds nothing of that class, or nothing there, in this image."""


class MaskEmpty(TargetError):
    """There is no pixel to sum over."""


class BoxOutside(TargetError):
    """The box has no pixel of the image."""


class ChannelOutOfRange(TargetError):
    """The layer has no channel of that index."""


class NonFinite(CamError):
    """A pixel, a logit, an activation or a gradient is NaN or infinite."""


class Unfaithful(CamError):
    """A fast path does not say what the exact one says."""

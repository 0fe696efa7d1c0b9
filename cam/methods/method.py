"""The `Method` class: the description of one explanation method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pkgutil import resolve_name
from typing import Any, Final, Literal

Cost = Literal["one forward", "one backward", "two backwards", "N forwards", "N backwards"]
Formula = Literal["weights", "map", "steps"]
Levels = Literal["boxes", "stages"]
Family = Literal["gradients", "components", "perturbation", "pixels", "attention", "boxes", "other"]
Dependence = Literal["full", "weak", "none"]
INPUT: Final = "input"
"""Name that stands in place of a layer's name, for methods that explain at the image itself."""
Function = str | Callable[..., Any]
"""A function, or the place of one: "package.module:name". The module of a place is imported when
the function is first used, because functions need torch, and descriptions do not."""


@dataclass(frozen=True)
class Method:
    """One way to compute a map for a model and an image."""

    name: str
    summary: str
    """One-line description for users who choose a method."""
    cost: Cost
    """Cost in addition to the forward pass up to the target layer, which all methods share."""
    formula: Formula
    """What the function returns. A method of one pass works on the target layer's output for n
    images: activations A and gradients G = ∂y/∂A, float (n, K, h, w), where y is the target's score
    and K the number of channels. Its function returns

    - `weights` W, float (n, K, h, w) or (n, K, 1, 1): then map = Σ_k W_k ⊙ A_k; see
      `cam.methods.gradient_weights`; or
    - the `map`, float (n, h, w), where it is not such a sum; see `cam.methods.components`.

    A function that returns `steps` runs the model itself: see `cam.methods.perturbation`."""
    function: Function
    """The function that computes the map."""
    at: Literal["layer", "input"] = "layer"
    """Whether the method takes a target layer; a method at the `input` takes none."""
    budget: int = 0
    """Maximum number of forward passes of one image, unless the caller sets another."""
    class_dependence: Dependence = "full"
    """How the map depends on the target. `none`: by its formula the map of every target is the
    same. `weak`: the formula has the target's score, but the maps are almost the same if the
    weights that compute the logits are random (`bench/randomisation.py`): such a map shows what
    the model responds to, whatever the class."""
    signed: bool = False
    """Whether the map can have values below 0, which are evidence against the target."""
    replays: bool = False
    """Whether the method runs the layers after the target layer again, from a record of the first
    forward pass."""
    to_image: bool = False
    """Whether a method at a layer differentiates the whole model, from the score to the image."""
    levels: Levels | None = None
    """The layers that the method joins into one map, if none are named: the levels from which a
    detector computes its `boxes`, or the `stages` of a network, see `cam.layers.stage_layers`.
    None: the method makes one map at each layer."""
    fusion: Function | None = None
    """The function that makes one map, float32 (h, w), of the maps of several layers, by layer
    name. A method with `levels` needs one."""
    unsuited: Function | None = None
    """The function that says why a model does not suit the method: it takes a
    `cam.methods.trial.Trial` and the method's name, and returns the reason as half a sentence, or
    None. What it raises is the reason, too. That a gradient is missing, is found without it."""
    audited: bool = False
    """Whether an audit measures the method where none is named."""
    score: Function | None = None
    """The function that returns the score, a scalar tensor, that the method differentiates for a
    target and a `cam.outputs.output.Output`; None for the target's own score."""
    family: Family = "other"
    """What the method works with: `gradients` at a layer, `components` of its activations or no
    gradient, `perturbation` of the photo or of the layer, `pixels`, a transformer's `attention`,
    or one of the `boxes` of a detector."""
    paper: str = ""
    """The paper that the formula is from, with the place in it, or what else it is from; "" if
    that is not told."""

    @property
    def class_specific(self) -> bool:
        """Whether the map shows the evidence for the target, and not for any other as well."""
        return self.class_dependence == "full"

    @property
    def warning(self) -> str | None:
        """What a reader of the method's maps must know, whatever the model; None if nothing."""
        if self.class_dependence == "none":
            return f"the map does not depend on the class: {self.name} makes the same map for each"
        if self.class_dependence == "weak":
            return (
                f"the map hardly depends on the class: {self.name} makes almost the same map of a "
                "model whose last layer is random"
            )
        return None

    @property
    def gradient(self) -> Literal["layer", "image"] | None:
        """How far the method differentiates the score: to its layer or to the image; None if it
        needs no gradient."""
        if "backward" not in self.cost:
            return None
        return "image" if self.to_image or self.at == "input" else "layer"

    @property
    def differentiates(self) -> bool:
        """Whether the method needs the layer's gradient, in one pass."""
        return self.formula != "steps" and self.class_dependence != "none"


@cache
def load(function: Function) -> Callable[..., Any]:
    """Return the function that is meant, from the module in which it is.

    Raises:
        ImportError, AttributeError: if there is no such function.
    """
    if not isinstance(function, str):
        return function
    loaded: Callable[..., Any] = resolve_name(function)
    return loaded

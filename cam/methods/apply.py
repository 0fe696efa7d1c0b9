"""Apply the function of a method of `cam.methods.METHODS`, by what the function returns.

A method of one pass works on the target layer's output for n images: activations A and gradients
G = ∂y/∂A, float (n, K, h, w). y is the target's score, K is the number of channels. Its function
returns

- weights W, float (n, K, h, w) or (n, K, 1, 1): then map = Σ_k W_k ⊙ A_k; see
  `cam.methods.gradient_weights`; or
- the map, float (n, h, w), where it is no such sum; see `cam.methods.components`.

A function that returns steps runs the model itself: see `cam.methods.perturbation`. Maps are
float32 (n, h, w) and not normalised. They are computed in float32 or better, whatever the model's
precision. A relu is applied last, so maps are ≥ 0, unless the caller asks a `signed` method for
the negative values, too.
"""

from __future__ import annotations

from torch import Tensor

from cam.errors import MethodUnsuited
from cam.methods import METHODS
from cam.methods.components import Component, projected
from cam.methods.gradient_weights import weighted_sum
from cam.methods.method import load


def apply(
    method: str, activations: Tensor, gradients: Tensor, *, eigen: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Return the maps of a method of one pass, float32 (n, h, w), and their `Component.ratio`.

    The relu of the weighted sum is left to the caller. With `eigen`, the maps of a method that
    returns weights are projections on the first principal component of the weighted activations,
    instead of their sum. The ratio, (n,), is None where the maps are not projections on a leading
    component.

    Raises:
        MethodUnsuited: if the method's function returns another shape.
    """
    computed = load(METHODS[method].function)(activations, gradients)
    count, channels, *cells = activations.shape
    if METHODS[method].formula == "map":
        maps, ratio = computed if isinstance(computed, Component) else (computed, None)
        _require(method, maps, [(count, *cells)])
        return maps, ratio
    _require(method, computed, [tuple(activations.shape), (count, channels, 1, 1)])
    if eigen:
        return projected(computed * activations.float())
    return weighted_sum(computed, activations), None


def _require(method: str, computed: Tensor, shapes: list[tuple[int, ...]]) -> None:
    if tuple(computed.shape) not in shapes:
        raise MethodUnsuited(
            f"the function of {method!r} returned {tuple(computed.shape)}; it must return "
            f"{' or '.join(map(str, shapes))}"
        )

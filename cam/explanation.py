"""Questions about an image, and the answers: explanations with their maps."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from cam.counts import counted
from cam.drawing.notebook import (
    SIDE,
    InputPicture,
    bar_of,
    below_each_other,
    drawn,
    heated,
    mime_bundle,
    png,
)
from cam.drawing.overlay import Picture
from cam.drawing.placement import Placement
from cam.drawing.sheet import CaptionedPicture, sheet_of
from cam.errors import CamError, InvalidOption, MethodUnsuited, NonFinite, UnknownLayer
from cam.methods import METHODS, method_named
from cam.progress import Completeness, Passes, Progress
from cam.targets import ClassTarget, Target, TextTarget, UnitTarget

if TYPE_CHECKING:
    from cam.outputs.output import Output

Map = NDArray[np.float32]
Smoothing = Literal["none", "eigen", "augment", "both"]
Fusion = Literal["none", "mean", "max"]


@dataclass(frozen=True)
class Question:
    """A question about one image: a map for each target at each layer.

    Without targets there is no backward pass.
    """

    targets: tuple[Target, ...]
    method: str
    layers: tuple[str, ...]
    budget: int | None = None
    """Largest number of forward passes, for a method that needs many; None for the method's own
    default."""
    signed: bool = False
    """Whether the map keeps evidence against the target as values below 0."""
    smooth: Smoothing = "none"
    """`eigen`: the first principal component of the weighted activations instead of their sum.
    `augment`: the mean map of the image and its mirror image at three brightnesses (test-time
    augmentation). `both`: the two together. All as in pytorch-grad-cam."""
    fuse: Fusion = "none"
    """`mean` or `max`: one map instead of one for each layer, see `cam.drawing.heatmap.fuse`. Each
    layer's map is first scaled to 0 … 1, or to −1 … 1 if signed."""
    used: bool = False
    """Whether an explanation also records what each channel contributes to the score:
    `Explanation.used`. A method without a gradient at the layer, one of many passes, a map at the
    input and a map of several layers have no such record."""

    @property
    def looks_at(self) -> tuple[str, ...]:
        """Names of the layers whose outputs the targets are made of."""
        return tuple(dict.fromkeys(name for target in self.targets for name in target.layers))

    @property
    def in_steps(self) -> bool:
        """Whether the question takes more than one pass: see `cam.passes.stepwise`."""
        many = METHODS[self.method].formula == "steps" or self.smooth in ("augment", "both")
        return bool(self.targets) and many

    def check(self) -> None:
        """Check that the method exists and can answer the question.

        Raises:
            UnknownMethod: if there is no such method.
            InvalidOption: if `smooth`, `fuse` or `signed` has a value that it cannot have.
            UnknownLayer: if the method makes maps at layers, and no layer is named.
            MethodUnsuited: if the method does not support an option of the question.
        """
        method = method_named(self.method)
        for name, value, allowed in (
            ("smooth", self.smooth, get_args(Smoothing)),
            ("fuse", self.fuse, get_args(Fusion)),
        ):
            if not isinstance(value, str) or value not in allowed:
                raise InvalidOption(f"{name} is {value!r:.80}; it can be {', '.join(allowed)}")
        if not isinstance(self.signed, bool):
            raise InvalidOption(f"signed is {self.signed!r:.80}; it can be True or False")
        if self.targets and method.at == "layer" and not self.layers:
            raise UnknownLayer(f"{method.name} makes maps at layers, and none is named")
        if self.signed and not method.signed:
            able = ", ".join(candidate.name for candidate in METHODS.values() if candidate.signed)
            raise MethodUnsuited(
                f"{method.name} has nothing below 0 to show; signed works with {able}"
            )
        if self.smooth in ("eigen", "both") and method.formula != "weights":
            able = ", ".join(
                candidate.name for candidate in METHODS.values() if candidate.formula == "weights"
            )
            raise MethodUnsuited(
                f"{method.name} has no weighted activations; smooth={self.smooth} works with {able}"
            )
        if self.smooth in ("eigen", "both") and self.signed:
            raise MethodUnsuited("a principal component has no sign; leave out signed or eigen")
        if self.smooth in ("augment", "both") and method.formula == "steps":
            able = ", ".join(
                candidate.name for candidate in METHODS.values() if candidate.formula != "steps"
            )
            raise MethodUnsuited(
                f"{method.name} takes many passes itself; smooth={self.smooth} works with {able}"
            )
        if self.fuse != "none" and method.at == "input":
            raise MethodUnsuited(f"{method.name} has one map, at the input; there is none to fuse")
        if self.fuse != "none" and method.levels:
            raise MethodUnsuited(f"{method.name} makes one map of all layers itself")

    def resolve(self, output: Output) -> list[Target] | CamError:
        """Return the targets with their classes filled in from the model's output for the image.

        For a detector, targets of a rank above 0 that no detection has are left out. An error of a
        target, or of an output that is not finite, is returned and not raised.
        """
        if not output.finite:
            return NonFinite("the model's output for this image is not finite")
        targets: list[Target] = []
        try:
            for target in self.targets:
                ranked = output.detections and isinstance(target, ClassTarget) and target.rank
                if output.detections and ranked and ranked >= len(output.detections.scores):
                    continue
                targets.append(target.resolve(output))
        except CamError as error:
            # Its traceback would keep the output of the whole batch as long as the error is kept.
            return error.with_traceback(None)
        return targets


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """One class activation map."""

    target: Target
    """The explained target, with its class filled in."""
    score: float
    """The explained number: the class's logit, unless the target defines another."""
    probability: float | None
    """Probability of the class, 0 … 1; None if the target has no probability."""
    method: str
    layer: str
    """Name of the layer; for a fused map the layers' names, joined by " + "."""
    map: Map
    """float32 (h, w), ≥ 0 unless signed, not normalised: see `cam.drawing.heatmap`. It covers the
    model's input. It has the layer's resolution, or the input's with a `placement`."""
    signed: bool = False
    completeness: Completeness | None = None
    """The sum of the attributions and the sum that they should have; only for methods whose
    attributions should add up to the score."""
    warnings: tuple[str, ...] = ()
    """Sentences that say why the map is not reliable."""
    reached: bool = True
    """Whether the score has a gradient at the layer that is not all zero. If it has none, the map
    of a method that differentiates is empty, and a warning says so."""
    turn: int = 0
    """Position of the target among the image's targets, from 0. For a detector only the boxes that
    were found count."""
    passes: Passes | None = None
    """Number of passes made; only for methods that can make a map of fewer passes than their
    formula takes."""
    placement: Placement | None = None
    """Where the layer's positions lie on the model's input, for a model that resizes, crops, pads,
    mirrors or transposes its input itself. The map has been put there, and is 0 where the model
    does not look. None if the positions cover the input evenly and upright."""
    used: NDArray[np.float32] | None = None
    """What the model used, wherever it lies: the contribution of each channel of the layer's output
    to the score, Σ_p A_k(p) ∂y/∂A_k(p) over the positions p, float32 (K,). If the model's head
    averages the positions before a linear layer, these are the terms of the logit without the bias.
    Photos in which the model uses the same thing at different places have similar numbers. None if
    the question does not ask for it, or the method's gradient at the layer is missing or all
    zero."""
    words: tuple[tuple[str, float], ...] = ()
    """The importance of each word of a text that is explained, if the target asks for it: the score
    minus that of the text without the word."""
    label: str | None = None
    """Name of the class that is explained, and of the one that is subtracted from it, if
    `cam.explain` knows the names."""
    input: InputPicture | None = None
    """The input that a notebook shows beside the map; None if `cam.explain` did not make the
    explanation."""

    @property
    def title(self) -> str:
        """The target in words, with its probability or score."""
        target = self.target
        if isinstance(target, ClassTarget):
            words = self.label or f"class {target.index}"
            if target.minus is not None and not self.label:
                words += f" and not {target.minus}"
        elif isinstance(target, UnitTarget):
            words = f"channel {target.channel} of {target.layer}"
        elif isinstance(target, TextTarget):
            words = target.text
            if target.minus is not None:
                words += f" and not {target.minus}"
        else:
            words = "similarity"
        if getattr(target, "against", False):
            words = f"against {words}"
        if self.probability is not None:
            return f"{words}, p = {self.probability:.3f}"
        return f"{words}, {self.score:.4g}"

    @property
    def flat(self) -> str | None:
        """A warning, if the map is the same everywhere although the score has a gradient at the
        layer; None if it is not."""
        if not self.reached or self.map.max() > self.map.min() or (self.signed and self.map.any()):
            return None
        what = "the same" if self.map.any() else "zero"
        named = "output" if self.probability is None else "class"
        target = self.target
        whom = f"{named} {target.index}" if isinstance(target, ClassTarget) else "the target"
        blind = METHODS[self.method].warning
        evidence = "" if blind else f" that speaks for {whom}"
        both = METHODS[self.method].signed and not self.signed
        advice = "; signed=true shows what speaks against it, if anything does" if both else ""
        return (
            f"the map is {what} everywhere: {self.method} finds nothing at layer {self.layer!r}"
            f"{evidence}{advice}"
        )

    def draw(self) -> Picture:
        """Draw the map beside the model's input, with a colour bar, the target, the method, the
        layer and the warnings: RGB uint8 (H, W, 3). The map is drawn alone if whoever gave the
        input does not keep it any more."""
        return drawn(
            self.map,
            self.input.picture() if self.input else None,
            signed=self.signed,
            title=self.title,
            lines=(f"{self.method} at {self.layer}", *self.warnings),
        )

    def __repr__(self) -> str:
        rows, columns = self.map.shape
        where = f"{self.method} at {self.layer}, {rows} × {columns}"
        warned = f", {counted(len(self.warnings), 'warning')}" if self.warnings else ""
        return f"<Explanation: {self.title}, {where}{warned}>"

    def _repr_png_(self) -> bytes:
        return png(self.draw())

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return mime_bundle(self._repr_png_(), repr(self))


class Explanations(list[Explanation]):
    """A list of explanations. A notebook shows the first `SHOWN` of them: as a grid if they are of
    one image, else below each other."""

    SHOWN = 16

    def _repr_png_(self) -> bytes | None:
        if not self:
            return None
        shown = self[: self.SHOWN]
        if len(shown) > 1 and photo_of(shown) is not None:
            return png(grid(shown))
        return png(below_each_other([explanation.draw() for explanation in shown]))


def photo_of(explanations: Sequence[Explanation]) -> Picture | None:
    """Return the image that all explanations are of: RGB uint8 (H, W, 3), as the model sees it.
    None if they are of several, or whoever gave it does not keep it any more."""
    first, *others = [each.input.picture() if each.input else None for each in explanations]
    same = first is not None and all(
        other is not None and np.array_equal(first, other) for other in others
    )
    return first if same else None


def grid(explanations: Sequence[Explanation]) -> Picture:
    """Draw several explanations of one image as a grid: the image once, then each map over it, with
    its class, method, layer and number of warnings; the warnings themselves above. A colour bar
    stands at the right, unless only some of the maps are signed. Each map has its own scale.

    Args:
        explanations: at least one.

    Returns:
        RGB uint8 (H, W, 3) on white.

    Raises:
        CamError: if they are of several images, or of one that is not kept any more.
    """
    photo = photo_of(explanations) if explanations else None
    if photo is None:
        raise CamError(
            "a grid shows explanations of one image, which its caller still has in a variable; "
            "draw each of these by explanation.draw()"
        )
    tiles = []
    for each in explanations:
        warned = f", {counted(len(each.warnings), 'warning')}" if each.warnings else ""
        picture = heated(each.map, photo, signed=each.signed)
        tiles.append(
            CaptionedPicture(each.title, picture, f"{each.method} at {each.layer}{warned}")
        )
    return sheet_of(
        photo,
        tiles,
        f"{counted(len(tiles), 'map')} of one image",
        tuple(dict.fromkeys(warning for each in explanations for warning in each.warnings)),
        side=SIDE,
        bar=bar_of(signed=explanations[0].signed)
        if len({each.signed for each in explanations}) == 1
        else None,
    )


@dataclass(frozen=True, eq=False)
class ExplainedImage:
    """The answer for one image: the model's output, on the CPU, and one explanation for each target
    and layer, ordered by target, then by layer."""

    output: Output
    explanations: tuple[Explanation, ...]

    @property
    def logits(self) -> NDArray[np.float32]:
        """Logits of a classifier: float32 (C,)."""
        assert self.output.logits is not None
        values: NDArray[np.float32] = self.output.logits.numpy()
        return values


ImageSteps = Generator[Progress, None, ExplainedImage | CamError]


def join(answers: Sequence[ExplainedImage | CamError]) -> ExplainedImage | CamError:
    """Join several answers about the same image, at least one, into one answer.

    The result is the first error among the answers, if there is one; otherwise the first answer's
    output with the explanations of all answers.
    """
    for answer in answers:
        if isinstance(answer, CamError):
            return answer
    good = [answer for answer in answers if isinstance(answer, ExplainedImage)]
    if len(good) == 1:
        return good[0]
    return replace(good[0], explanations=tuple(chain(*(answer.explanations for answer in good))))

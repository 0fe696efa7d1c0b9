"""What other packages can add to the parameters of `:explain` and to the pictures of maps.

Nothing here imports the tables that read the additions, so that a module can add to each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from cam import Question
    from cam.drawing.overlay import Picture
    from cam.methods.method import Function

FORMATS: Final = "gradcam.formats"
"""The group of entry points of `PictureFormat`s."""
OUTPUTS: Final = "gradcam.outputs"
"""The group of entry points of `OutputForm`s."""
PARAMETERS: Final = "gradcam.parameters"
"""The group of entry points of `Parameter`s."""


@dataclass(frozen=True)
class OutputForm:
    """What a picture of a map shows: a value of the parameter `output`."""

    name: str
    told: str
    """What it is, in the words of the documents."""
    draw: Function | None
    """Takes a `service.pipeline.rendering.Drawing` and returns the picture, RGB uint8 (H, W, 3) or
    grayscale (H, W). None: the map is sent as numbers, and what needs a picture gets an overlay."""
    beside: bool = True
    """Whether a JSON answer has the picture beside the map."""
    tiled: bool = True
    """Whether a sheet of several maps has such pictures, and not overlays."""


@dataclass(frozen=True)
class PictureFormat:
    """A format of pictures."""

    name: str
    """The extension of its files, without the dot."""
    media_type: str
    encode: Callable[[Picture], bytes]
    """Returns a picture, RGB uint8 (H, W, 3) or grayscale (H, W), as a file.

    Raises:
        NotAcceptable: if the format cannot hold a picture of that size.
    """


@dataclass(frozen=True)
class Parameter:
    """A parameter that another package adds to those of `:explain`."""

    name: str
    kind: Any
    """Its type."""
    field: Any
    """What `pydantic.Field` returns, with the default, the description and the limits."""
    question: Callable[[Question, Any], Question] | None = None
    """Returns the question that is asked of the model in place of one, with the given value."""
    picture: Callable[[Picture, Any], Picture] | None = None
    """Returns the picture that is sent in place of one, RGB uint8 (H, W, 3) or grayscale (H, W),
    with the given value."""

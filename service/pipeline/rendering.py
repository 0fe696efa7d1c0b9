"""Drawing of a layer's small map as pictures and numbers on the photo's pixels."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Final

import cv2
import numpy as np
from isal import isal_zlib
from numpy.typing import NDArray
from PIL import Image

from cam import ClassTarget, Explanation
from cam.drawing.heatmap import capped, minmax, symmetric
from cam.drawing.notebook import bar_of
from cam.drawing.overlay import Float, Picture, colorize, contour, framed, grayscale, overlay
from cam.drawing.panel import panel
from cam.drawing.placement import Box, Region, place_inside, spread
from cam.extensions import added
from cam.methods.method import load
from service.core.choices import Normalize
from service.core.errors import NotAcceptable
from service.models.preprocessing import ModelInput
from service.pipeline import extensions
from service.pipeline.coordinates import box_on_photo
from service.pipeline.extensions import PictureFormat

if TYPE_CHECKING:
    from service.pipeline.parameters import Parameters

UNSEEN_GRAY = 128
LINE: Final = (255, 220, 0)
"""RGB colour of contours: yellow stands out from most photos."""
FRAME: Final = (255, 255, 255)
"""RGB colour of the frame around the explained box."""
SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
COLOUR_TYPES: Final = {1: 0, 3: 2}
"""Channels → the colour type of the header: grayscale, RGB."""
UP: Final = 2
"""Number of the row filter that subtracts the row above. It suits photos and smooth maps, and NumPy
computes it in one step."""
LEVEL: Final = 1
"""Compression level of ISA-L. Higher levels take longer, and their files are hardly smaller."""


@dataclass(frozen=True)
class Caption:
    """The words of a panel."""

    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Drawing:
    """One map on the pixels that the parameters ask for."""

    explanation: Explanation
    number: int
    """Position of the map among its image's maps, from 0."""
    parameters: Parameters
    caption: Callable[[], Caption]
    """Returns the words of a panel."""
    inside: Float
    """The method's own numbers on the pixels of `region`, float32."""
    scaled_inside: Float
    """The same numbers, min-max scaled to 0 … 1; those of a signed map are scaled to −1 … 1, and 0
    stays 0."""
    region: Region
    background: Picture
    """The photo or the model's input under the map, RGB uint8 (H, W, 3)."""
    frame: Box | None
    """Box of the explained detection, or None."""

    @property
    def signed(self) -> bool:
        """Whether some of the map speaks against the target."""
        return self.explanation.signed

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the picture."""
        height, width = self.background.shape[:2]
        return height, width

    @property
    def values(self) -> Float:
        """The method's own numbers, float32 (H, W), 0 outside `region`."""
        return spread(self.inside, self.region, *self.shape)

    @property
    def scaled(self) -> Float:
        """`scaled_inside` as float32 (H, W), 0 outside `region`."""
        return spread(self.scaled_inside, self.region, *self.shape)

    @property
    def numbers(self) -> Float:
        """The numbers that an answer holds, float32 (H, W): `scaled`, or `values` if the parameters
        ask for the method's own."""
        return self.values if self.parameters.normalize == "none" else self.scaled

    @property
    def gray(self) -> Picture:
        """Grayscale picture of the map, uint8 (H, W). Of a signed map, 128 is 0."""
        gray = np.full(self.shape, 128 if self.signed else 0, np.uint8)
        gray[self.region.slices] = grayscale(self.shade)
        return gray

    @property
    def colormap(self) -> str:
        """Name of the colour map."""
        return self.parameters.colormap or bar_of(signed=self.signed)[0]

    @property
    def shade(self) -> Float:
        """`scaled_inside` shifted to 0 … 1 if the map is signed; the colours show these numbers."""
        if not self.signed:
            return self.scaled_inside
        shade: Float = (self.scaled_inside + np.float32(1)) / np.float32(2)
        return shade

    def encoded(self, media_type: str) -> bytes:
        """Return the picture as an encoded file.

        Raises:
            NotAcceptable: if the format cannot hold a picture of that size.
        """
        return encode(self.picture(), media_type)

    def picture(self) -> Picture:
        """Return the picture that the parameters ask for, by default an overlay: RGB uint8
        (H, W, 3), or grayscale (H, W)."""
        draw = self.parameters.form.draw
        drawn = (load(draw) if draw else as_overlay)(self)
        return np.ascontiguousarray(self.parameters.changed_picture(drawn))

    def framed(self, picture: Picture) -> Picture:
        """Return a picture with a frame around the explained box, if there is one."""
        if self.frame is None:
            return picture
        left, top, right, bottom = (
            self.frame.left,
            self.frame.top,
            self.frame.right,
            self.frame.bottom,
        )
        return framed(picture, (left, top, right, bottom), colour=FRAME)


def as_overlay(drawing: Drawing) -> Picture:
    """Return the map over the photo, RGB uint8 (H, W, 3). What was not seen keeps its colours."""
    inside = drawing.region.slices
    blended = overlay(
        np.ascontiguousarray(drawing.background[inside]),
        drawing.shade,
        colormap=drawing.colormap,
        opacity=drawing.parameters.opacity,
        signed=drawing.signed,
    )
    if blended.shape != drawing.background.shape:  # the model saw a part of the photo
        part, blended = blended, drawing.background.copy()
        blended[inside] = part
    return drawing.framed(blended)


def as_mask(drawing: Drawing) -> Picture:
    """Return the map as a grayscale picture, uint8 (H, W)."""
    return drawing.gray


def as_heatmap(drawing: Drawing) -> Picture:
    """Return the map's colours, RGB uint8 (H, W, 3); pixels that the model did not see are gray."""
    drawn = np.full_like(drawing.background, UNSEEN_GRAY)
    drawn[drawing.region.slices] = colorize(drawing.shade, drawing.colormap)
    return drawn


def as_contour(drawing: Drawing) -> Picture:
    """Return the photo with lines around what is above the threshold, RGB uint8 (H, W, 3)."""
    threshold = drawing.parameters.threshold
    return drawing.framed(
        contour(drawing.background, drawing.scaled, threshold=threshold, colour=LINE)
    )


def as_panel(drawing: Drawing) -> Picture:
    """Return photo, overlay, colour bar and words, RGB uint8 (H, W, 3)."""
    caption = drawing.caption()
    return panel(
        drawing.background,
        as_overlay(drawing),
        title=caption.title,
        lines=caption.lines,
        colormap=drawing.colormap,
        ends=("for", "against") if drawing.signed else ("1", "0"),
    )


def draw(
    photo: Image.Image,
    seen: ModelInput,
    explanation: Explanation,
    number: int,
    parameters: Parameters,
    *,
    caption: Callable[[], Caption],
) -> Drawing:
    """Put a map onto the pixels that the parameters ask for: the photo's, the model input's or its
    own.

    Args:
        number: the map's position among its image's maps.
        caption: returns the words of a panel.
    """
    size = parameters.size
    if size == "image":
        background, box = np.asarray(photo), seen.box
    else:
        height, width = explanation.map.shape if size == "layer" else seen.pixels.shape[:2]
        background = seen.pixels
        if size == "layer":
            background = _shrunk(seen.pixels, height, width)
        box = Box(0, 0, width, height)
    height, width = background.shape[:2]
    inside, region = place_inside(explanation.map, box, height, width)
    frame = None
    target = explanation.target
    if isinstance(target, ClassTarget) and target.box is not None and target.mask is None:
        frame = box_on_photo(target.box, replace(seen, box=box))
    return Drawing(
        explanation,
        number,
        parameters,
        caption,
        inside,
        scaled(inside, parameters.normalize, explanation.signed),
        region,
        background,
        frame,
    )


def scaled(values: Float, normalize: Normalize, signed: bool) -> Float:
    """Return a map as a picture shows it: 0 … 1, or −1 … 1 if signed."""
    if normalize == "percentile":
        return capped(values, signed)
    return (symmetric if signed else minmax)(values)


def encode(picture: Picture, media_type: str) -> bytes:
    """Encode an RGB or grayscale picture in a format of `PICTURES`.

    Raises:
        NotAcceptable: if the format cannot hold a picture of that size.
    """
    return PICTURES[media_type].encode(picture)


def _by_opencv(media_type: str, extension: str, options: Sequence[int], picture: Picture) -> bytes:
    blue_first = cv2.cvtColor(picture, cv2.COLOR_RGB2BGR) if picture.ndim == 3 else picture
    try:
        done, encoded = cv2.imencode(extension, blue_first, options)
    except cv2.error:
        done = False
    if not done:
        height, width = picture.shape[:2]
        raise NotAcceptable(
            f"a picture of {width} × {height} pixels does not fit {media_type}; ask for image/png"
        )
    return encoded.tobytes()


def encode_values(values: Float) -> bytes:
    """Encode a map, float32 (H, W), as a NumPy .npy file."""
    file = BytesIO()
    np.save(file, values)
    return file.getvalue()


def _shrunk(view: Picture, height: int, width: int) -> Picture:
    small = cv2.resize(view, (width, height), interpolation=cv2.INTER_AREA)
    return small.astype(np.uint8, copy=False)


def encode_png(picture: NDArray[np.uint8]) -> bytes:
    """Encode an RGB (H, W, 3) or grayscale (H, W) picture, without loss (RFC 2083)."""
    height, width = picture.shape[:2]
    rows = np.ascontiguousarray(picture).reshape(height, -1)
    filtered = np.empty((height, rows.shape[1] + 1), np.uint8)
    filtered[:, 0] = UP
    filtered[0, 1:] = rows[0]
    np.subtract(rows[1:], rows[:-1], out=filtered[1:, 1:])  # modulo 256, as the format wants
    colour_type = COLOUR_TYPES[rows.shape[1] // width]
    header = struct.pack(">IIBBBBB", width, height, 8, colour_type, 0, 0, 0)
    data = isal_zlib.compress(filtered, LEVEL)
    chunks = ((b"IHDR", header), (b"IDAT", data), (b"IEND", b""))
    return SIGNATURE + b"".join(_chunk(kind, content) for kind, content in chunks)


def _chunk(kind: bytes, content: bytes) -> bytes:
    check = zlib.crc32(content, zlib.crc32(kind))
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)


_JPEG: Final = "image/jpeg", ".jpg", (cv2.IMWRITE_JPEG_QUALITY, 90)
_WEBP: Final = "image/webp", ".webp", (cv2.IMWRITE_WEBP_QUALITY, 90)
_FORMATS: Final = (
    PictureFormat("png", "image/png", encode_png),
    PictureFormat("jpg", "image/jpeg", partial(_by_opencv, *_JPEG)),
    PictureFormat("webp", "image/webp", partial(_by_opencv, *_WEBP)),
)
PICTURES: Final[dict[str, PictureFormat]] = {
    form.media_type: form
    for form in (
        *_FORMATS,
        *added(
            group=extensions.FORMATS,
            kind=PictureFormat,
            where=extensions.__name__,
            taken={form.name for form in _FORMATS},
            problem=lambda form: (
                None
                if re.fullmatch(r"image/[a-z0-9.+-]+", form.media_type)
                and form.media_type not in {each.media_type for each in _FORMATS}
                else f"its media type {form.media_type!r} is taken, or is not of a picture"
            ),
        ),
    )
}
"""Media type of a picture → its format, those of other packages last."""
NAMED_PICTURES: Final = ", ".join(f"`{media_type}`" for media_type in PICTURES)

"""Self-contained HTML pages: their template, common style, and pictures as data URIs."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from PIL import Image

from cam.counts import counted
from cam.drawing.overlay import colorize
from cam.drawing.placement import Float, resize
from service.core.files import written_whole

if TYPE_CHECKING:
    from jinja2 import Template

MAP: Final = 128
"""Length of the longer side of a map without its photo, in pixels."""
QUALITY: Final = 75


def page_template(folder: Path, name: str) -> Template:
    """Return the template `NAME.html` of a folder.

    The template has the variables `style`, the common style followed by `NAME_style.css`, and
    `script`, `NAME_script.js`, if there is one; and the filters `counted`, `decimal` and `digest`.
    """
    # The doors of the service import this module, and few requests ask for a page.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(counted=partial(counted, form=","), decimal=_decimal, digest=_digest)
    # These files are part of the package, so they are trusted and not escaped.
    here = Path(__file__).parent
    common = "".join((here / file).read_text(encoding="utf-8") for file in ("base.css", "page.css"))
    own = (folder / f"{name}_style.css").read_text(encoding="utf-8")
    environment.globals["style"] = Markup(common + own)  # noqa: S704
    script = folder / f"{name}_script.js"
    if script.exists():
        environment.globals["script"] = Markup(script.read_text(encoding="utf-8"))  # noqa: S704
    return environment.get_template(f"{name}.html")


def write_page(parts: Iterable[str], file: Path) -> None:
    """Write a page. The file appears only when it is complete.

    Raises:
        OSError: if it cannot be written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with (
        written_whole(file) as temporary,
        # The title may contain a file name with characters that cannot be encoded.
        temporary.open("w", encoding="utf-8", errors="replace", newline="\n") as written,
    ):
        written.writelines(parts)


def draw_map(values: Float) -> str:
    """Draw a map (h, w), 0 … 1, in colours and return a data URI. The values are not rescaled, so
    that mean maps can be compared."""
    height, width = values.shape
    scale = MAP / max(height, width)
    large = resize(values, max(round(height * scale), 1), max(round(width * scale), 1))
    return data_uri(Image.fromarray(colorize(large)))


def draw_bar() -> str:
    """Draw the colours from 0 (left) to 1 (right) and return a data URI."""
    colours = colorize(np.linspace(0, 1, 256, dtype=np.float32)[None].repeat(8, 0))
    return data_uri(Image.fromarray(colours))


def data_uri(picture: Image.Image) -> str:
    """Return a picture as a WebP in a data URI."""
    written = BytesIO()
    picture.save(written, "WEBP", quality=QUALITY, method=2)
    return "data:image/webp;base64," + base64.b64encode(written.getvalue()).decode()


def _decimal(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _digest(text: str) -> str:
    """Return the digest of an inline script or style for a Content-Security-Policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

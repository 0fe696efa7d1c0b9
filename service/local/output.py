"""What commands print and write: cells of tables, and pictures in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path

from rich.console import Console
from rich.text import Text

from service.core.errors import ConfigError


def cell(text: str, console: Console, style: str = "") -> Text:
    """Return a cell of the table, in which characters that the terminal cannot encode are escaped.
    The name of a file may contain any."""
    encoding = console.encoding
    return Text(text.encode(encoding, "backslashreplace").decode(encoding), style)


class Names:
    """Chooses distinct names for the pictures of a run's photos."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def of(self, photo: Path) -> str:
        """Return the photo's own name, with a number if another photo has that name already."""
        choices = chain([photo.stem], (f"{photo.stem}-{turn}" for turn in count(2)))
        # Some file systems do not distinguish upper and lower case.
        name = next(choice for choice in choices if choice.casefold() not in self._taken)
        self._taken.add(name.casefold())
        return name


def make_folder(folder: Path) -> None:
    """Make the folder, unless it exists.

    Raises:
        ConfigError: if it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be used: {error.strerror}") from None


@contextmanager
def writing(place: object) -> Iterator[None]:
    """Raise an OSError of the block as a ConfigError: the place cannot be written."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{place} cannot be written: {error.strerror}") from None


def write_file(file: Path, picture: bytes) -> None:
    """Write a picture to a file.

    Raises:
        ConfigError: if the file cannot be written.
    """
    with writing(file):
        file.write_bytes(picture)

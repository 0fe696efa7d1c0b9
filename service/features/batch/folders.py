"""Search for images below a folder or by a pattern."""

from __future__ import annotations

import fnmatch
import os
import re
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from cam.counts import counted
from service.core.errors import ConfigError

JPEG: Final = (".jpg", ".jpeg", ".jpe", ".jfif")
SUFFIXES: Final = (*JPEG, ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif")
WILDCARDS: Final = "*?["
ALL: Final = ("**", "*")
NAMED: Final = 3
"""Number of files that a sentence about several names."""


def is_image(name: str) -> bool:
    """Return whether a path names an image, by its suffix. Hidden files, and files in hidden
    folders, do not count."""
    return is_shown(name) and Path(name).suffix.lower() in SUFFIXES


def is_shown(name: str) -> bool:
    """Return whether neither the file nor a folder of a path is hidden."""
    return not any(_is_hidden(part) for part in name.replace("\\", "/").split("/"))


def of_other_kinds(names: Collection[str]) -> str:
    """Return a sentence about files that are left out because of their suffix; empty if there are
    none."""
    if not names:
        return ""
    named = ", ".join(sorted(names)[:NAMED])
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    were = counted(len(names), "file is", "files are")
    return f"{were} left out without the suffix of a readable image: {named}{more}"


def _is_hidden(part: str) -> bool:
    return part == "__MACOSX" or (part[:1] == "." and part not in (".", ".."))


class Search:
    """Searches for images, and records which folders could not be read and which files are not
    images.

    Args:
        besides: a folder to leave out with everything below it, even if it is reached by a link.
    """

    def __init__(self, besides: Path | None = None) -> None:
        self._besides = besides and Path(os.path.realpath(besides))
        self._apart: dict[Path, bool] = {}
        self._closed: set[Path] = set()
        self._others: set[str] = set()

    @property
    def left_out(self) -> bool:
        """Whether the search met a folder that it leaves out."""
        return any(self._apart.values())

    @property
    def warning(self) -> str:
        """What is passed over: folders that could not be read, and files that are not images; empty
        if there are none."""
        closed, count = "", len(self._closed)
        if count == 1:
            closed = f"1 folder cannot be looked into and is passed over: {min(self._closed)}"
        elif count:
            closed = (
                f"{count} folders cannot be looked into and are passed over, the first is "
                f"{min(self._closed)}"
            )
        return "; ".join(filter(None, (closed, of_other_kinds(self._others))))

    def fitting(self, pattern: str) -> dict[str, Path]:
        """Return the images that match a pattern, by their paths relative to the part of the
        pattern without wildcards.

        Raises:
            ConfigError: if the pattern is invalid, or two images would have the same name.
        """
        fixed = Path(pattern)
        while any(sign in str(fixed) for sign in WILDCARDS):
            fixed = fixed.parent
        parts = Path(pattern).relative_to(fixed).parts
        if any("**" in part and part != "**" for part in parts):
            raise ConfigError(f"{pattern} is not a pattern: ** stands alone between two slashes")
        return self.images(fixed, parts)

    def images(self, folder: Path, pattern: tuple[str, ...] = ALL) -> dict[str, Path]:
        """Return the images below a folder that match the parts of a pattern, by their paths
        relative to the folder.

        Raises:
            ConfigError: if two images would have the same name.
        """
        files: dict[str, Path] = {}
        for file in self._fitting(folder, pattern):
            name = file.relative_to(folder).as_posix()
            if not is_shown(name) or not self._is_file(file):
                continue
            # Tables cannot store a name that is not valid UTF-8.
            name = os.fsencode(name).decode(errors="backslashreplace")
            if not is_image(name):
                self._others.add(name)
                continue
            if files.setdefault(name, file) != file:
                raise ConfigError(f"two files of {folder} are called {name}; rename one of them")
        return files

    def _fitting(self, folder: Path, pattern: tuple[str, ...]) -> Iterator[Path]:
        if self._is_apart(folder):
            return
        part, rest = pattern[0], pattern[1:]
        if part == "**":
            for below in self._with_all_below(folder):
                yield from self._fitting(below, rest or ("*",))
        elif any(sign in part for sign in WILDCARDS):
            fits = re.compile(fnmatch.translate(os.path.normcase(part))).match
            for entry in self._entries(folder):
                if not fits(os.path.normcase(entry.name)):
                    continue
                if not rest:
                    yield folder / entry.name
                elif os.path.isdir(entry):  # noqa: PTH112 - Path.is_dir raises if access is denied
                    yield from self._fitting(folder / entry.name, rest)
        elif rest:
            yield from self._fitting(folder / part, rest)
        else:
            yield folder / part

    def _with_all_below(self, folder: Path) -> Iterator[Path]:
        left = [folder]
        while left:
            folder = left.pop()
            if self._is_apart(folder):
                continue
            yield folder
            # Links to folders are not followed, so there are no cycles.
            left += [
                folder / entry.name for entry in self._entries(folder) if _is_own_folder(entry)
            ]

    def _is_apart(self, folder: Path) -> bool:
        if self._besides is None:
            return False
        if folder not in self._apart:
            self._apart[folder] = Path(os.path.realpath(folder)).is_relative_to(self._besides)
        return self._apart[folder]

    def _entries(self, folder: Path) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as entries:
                return [entry for entry in entries if not _is_hidden(entry.name)]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError:
            self._closed.add(folder)
            return []

    def _is_file(self, file: Path) -> bool:
        try:
            return stat.S_ISREG(file.stat().st_mode)
        except PermissionError:  # the folder may only be listed
            link = os.path.islink(file)  # noqa: PTH114 - Path.is_symlink raises here
            self._closed.add(Path(os.path.realpath(file)).parent if link else file.parent)
        except OSError:
            pass
        return False


def _is_own_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False

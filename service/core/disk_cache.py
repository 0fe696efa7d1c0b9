"""A folder for what is expensive to find out, so that the next start finds it there.

    cache = DiskCache(Path("~/.cache/gradcam").expanduser())
    kept = cache.of("the model and everything that its answers depend on")
    kept.write("network", content)
    kept.read("network")                  # the content; None if there is none

What is read is what was written, or nothing: each file begins with the digest of its content, and
is written completely or not at all. A folder that others can write to is not used; one of the
folder for temporary files takes its place. A failure of the disk is logged, and never raised:
whatever is kept can be made again.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from service.core.files import written_whole

MOST_BYTES: Final = 2_000_000_000
"""Largest size of the cache's files together; those that were not used for longest are removed."""
DIGEST_BYTES: Final = 32
SUFFIX: Final = ".gradcam-cache"
"""End of the names of the files, so that no other file is removed for room."""
log = logging.getLogger(__name__)


class DiskCache:
    """Files in a folder, by keys.

    Args:
        folder: the folder, which is made if it is not there; None keeps nothing.
        most_bytes: largest size of all files together. A content of more than half of it is not
            kept.
    """

    def __init__(self, folder: Path | None, *, most_bytes: int = MOST_BYTES) -> None:
        self._folder = _usable(folder) if folder else None
        self._most_bytes = most_bytes

    def of(self, key: str) -> KeyedCache:
        """Return the part of the cache that belongs to a key."""
        return KeyedCache(self, key)

    def read(self, key: str) -> bytes | None:
        """Return what was written under the key; None if that is not there or is damaged."""
        if self._folder is None:
            return None
        file = self._folder / _name(key)
        try:
            read = file.read_bytes()
            digest, content = read[:DIGEST_BYTES], read[DIGEST_BYTES:]
            if _digest(content) != digest:
                log.warning("%s is damaged and is removed; it is made again", file)
                file.unlink(missing_ok=True)
                return None
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("%s cannot be read: %s", file, error.strerror)
            return None
        with suppress(OSError):  # the folder may be read-only
            os.utime(file)
        return content

    def write(self, key: str, content: bytes) -> None:
        """Keep a content, in place of what was written under the key before."""
        if self._folder is None or len(content) > self._most_bytes // 2:
            return
        try:
            with written_whole(self._folder / _name(key)) as file:
                file.write_bytes(_digest(content) + content)
            self._trim(self._folder)
        except OSError as error:
            log.info("nothing is kept in %s: %s", self._folder, error.strerror)

    def _trim(self, folder: Path) -> None:
        entries = []
        for file in folder.glob(f"*{SUFFIX}"):  # the folder may hold files of other programs
            seen = file.stat()
            entries.append((seen.st_mtime, seen.st_size, file))
        size = sum(bytes_ for _, bytes_, _ in entries)
        for _, bytes_, file in sorted(entries):
            if size <= self._most_bytes:
                return
            file.unlink(missing_ok=True)
            size -= bytes_


@dataclass(frozen=True)
class KeyedCache:
    """The part of a cache that belongs to a key."""

    cache: DiskCache
    key: str

    def read(self, what: str) -> bytes | None:
        """See `DiskCache.read`."""
        return self.cache.read(f"{self.key}|{what}")

    def write(self, what: str, content: bytes) -> None:
        """See `DiskCache.write`."""
        self.cache.write(f"{self.key}|{what}", content)


OFF: Final = DiskCache(None)
"""A cache that keeps nothing."""


def _usable(folder: Path) -> Path | None:
    """Return the folder or, if it cannot be used, one of this user's in the folder for temporary
    files; None if that cannot be used either."""
    reason = _why_not(folder)
    if reason is None:
        return folder
    spare = Path(tempfile.gettempdir()) / f"gradcam-cache-{_user()}"
    instead = spare if _why_not(spare) is None else None
    log.warning(
        "the cache %s cannot be used: %s; %s. Let user %s own it with mode 0700, name another "
        "folder in GRADCAM_CACHE, or set GRADCAM_CACHE=off",
        folder,
        reason,
        f"{instead} is used, which a new container does not have"
        if instead
        else "each start examines and converts its models anew",
        _user(),
    )
    return instead


def _why_not(folder: Path) -> str | None:
    """Return why the folder, which is made if it is not there, cannot be used; None if it can:
    only this user can put files into it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        seen = folder.stat()
    except OSError as error:
        return error.strerror or str(error)
    if not hasattr(os, "geteuid"):  # Windows has other rights, and a folder of each user's own
        return None
    if seen.st_uid != _user():
        return f"it belongs to user {seen.st_uid}"
    return "others can write to it" if seen.st_mode & 0o022 else None


def _user() -> int:
    return os.geteuid() if hasattr(os, "geteuid") else 0


def _name(key: str) -> str:
    return hashlib.blake2b(key.encode(), digest_size=20).hexdigest() + SUFFIX


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()

"""Strangers' zip and tar archives, read without trusting a word of them."""

from __future__ import annotations

import gzip
import stat
import struct
import tarfile
import zipfile
import zlib
from pathlib import PurePosixPath
from typing import BinaryIO, Final

from service.core.errors import BodyTooLarge, ImageTooLarge, Problem, UndecodableImage, one_line
from service.jobs.collector import Collector
from service.jobs.errors import InvalidArchive

NESTED: Final = frozenset(
    (".zip", ".tar", ".gz", ".tgz", ".bz2", ".tbz2", ".xz", ".txz", ".7z", ".rar", ".zst")
)
JUNK: Final = ("Thumbs.db", "desktop.ini")
LONGEST_LISTING: Final = 64_000_000
"""Bytes of a zip's list of contents, which is read whole, into six times the memory."""
PACKED: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""How a zip's entries may be packed. Of the other ways Python unpacks all at once, however much."""
GZIP: Final = b"\x1f\x8b"
LONGEST_HEADER: Final = 1_000_000
"""Bytes of a tar's headers for names and the like, which are read whole."""
HEADERS: Final = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)
BUFFER: Final = 128 * tarfile.BLOCKSIZE
LAST_READS: Final = 20
"""Of a file that has ended: who reads on never stops."""


def collect_zip(file: BinaryIO, collector: Collector, *, max_bytes: int) -> None:
    """Its images, named as in it.

    Args:
        max_bytes: of everything in it, unpacked.

    Raises:
        InvalidArchive: if it is none, or has a name or a kind of entry that no honest one has.
        BodyTooLarge: if it unpacks to more.
    """
    room = _Room(max_bytes)
    bounded = _Bounded(file)
    try:
        with zipfile.ZipFile(bounded) as archive:
            bounded.read_whole = False
            entries = archive.infolist()
            # What it says of itself ends an honest large one early; what it unpacks to is counted.
            room.check(sum(entry.file_size for entry in entries))
            for entry in entries:
                if entry.is_dir():
                    continue
                mode = entry.external_attr >> 16
                if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
                    raise InvalidArchive(f"{entry.filename[:200]!r} is a link or a device, no file")
                if not _wanted(entry.filename, collector):
                    continue
                if entry.compress_type not in PACKED:
                    collector.fail(entry.filename, _packed(entry.compress_type))
                    continue
                if entry.file_size > collector.max_image_bytes:
                    collector.fail(entry.filename, _too_large(entry.file_size, collector))
                    continue
                try:
                    with archive.open(entry) as opened:
                        data = opened.read(collector.max_image_bytes + 1)
                except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
                    collector.fail(entry.filename, _broken(error))
                    continue
                except RuntimeError as error:  # of a password that it wants
                    collector.fail(entry.filename, _broken(error))
                    continue
                room.take(len(data))
                collector.image(entry.filename, data)
    except (zipfile.BadZipFile, NotImplementedError, struct.error, ValueError, OSError) as error:
        raise InvalidArchive(f"the body is not a readable zip: {one_line(error)}") from None


def collect_tar(file: BinaryIO, collector: Collector, *, max_bytes: int) -> None:
    """The same of a tar, as it is or gzipped."""
    room = _Room(max_bytes)
    packed = file.read(len(GZIP)) == GZIP
    file.seek(0)
    unpacked = _Unpacked(gzip.GzipFile(fileobj=file) if packed else file, room)
    try:
        with tarfile.open(
            fileobj=unpacked,  # type: ignore[call-overload]
            mode="r|",
            bufsize=BUFFER,
            tarinfo=_Entry,
        ) as archive:
            while (entry := archive.next()) is not None:
                archive.members = []  # it would keep them all
                if entry.isdir():
                    continue
                if not entry.isreg() or entry.issparse():
                    raise InvalidArchive(
                        f"{entry.name[:200]!r} is a link or a device, no whole file"
                    )
                room.check(entry.size)
                if not _wanted(entry.name, collector):
                    continue
                if entry.size > collector.max_image_bytes:
                    collector.fail(entry.name, _too_large(entry.size, collector))
                    continue
                opened = archive.extractfile(entry)
                assert opened is not None
                collector.image(entry.name, opened.read())
            unpacked.end()
    except (tarfile.TarError, zlib.error, EOFError, ValueError, OSError, RecursionError) as error:
        raise InvalidArchive(f"the body is not a readable tar: {one_line(error)}") from None


class _Room:
    """What may still be unpacked."""

    def __init__(self, bytes_left: int) -> None:
        self._whole = self._left = bytes_left

    def check(self, size: int) -> None:
        if size > self._left:
            raise BodyTooLarge(
                f"the archive unpacks to more than the {self._whole} bytes that a job may have"
            )

    def take(self, size: int) -> None:
        self.check(size)
        self._left -= size


class _Bounded:
    """A zip's file, of which nobody reads more at a time than its list of contents may have.

    What a zip says of that list's length it says twice or thrice; what counts is what is read.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.read_whole = True
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        """
        Raises:
            BodyTooLarge: if it is the list of contents, and too long.
        """
        if self.read_whole and size > LONGEST_LISTING:
            raise BodyTooLarge(
                f"the zip's list of contents has more than {LONGEST_LISTING} bytes; send a tar"
            )
        return self._file.read(size)


class _Unpacked:
    """What a tar is read from: its bytes, gzipped no more, as many of them as there may be."""

    def __init__(self, file: BinaryIO | gzip.GzipFile, room: _Room) -> None:
        self._file = file
        self._room = room
        self._last_reads = 0

    def read(self, size: int) -> bytes:
        """
        Raises:
            BodyTooLarge: if there is more than may be unpacked.
            tarfile.ReadError: if it has ended again and again.
        """
        data = self._file.read(size)
        self._room.take(len(data))
        if not data:
            self._last_reads += 1
            if self._last_reads > LAST_READS:
                raise tarfile.ReadError("it ends too early")
        return data

    def end(self) -> None:
        """Read what may follow the last entry: gzip's sums come at the end."""
        for _ in range(LAST_READS):
            if not self.read(BUFFER):
                break


class _Entry(tarfile.TarInfo):
    """Of a tar."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Entry:
        entry = super().frombuf(buf, encoding, errors)
        if entry.type in HEADERS and not 0 <= entry.size <= LONGEST_HEADER:
            raise tarfile.ReadError(f"one of its headers has {entry.size} bytes")
        return entry


def _wanted(name: str, collector: Collector) -> bool:
    """Whether an entry is an item.

    Raises:
        InvalidArchive: if no honest archive has it.
    """
    path = PurePosixPath(name.replace("\\", "/"))
    shown = repr(name[:200])
    if "\x00" in name:
        raise InvalidArchive(f"the archive has the name {shown}, with a zero in it")
    if path.is_absolute() or (path.parts and path.parts[0].endswith(":")):
        raise InvalidArchive(f"the archive has the absolute path {shown}; names are relative")
    if ".." in path.parts:
        raise InvalidArchive(f"the archive has the path {shown}, which leads out of it")
    if path.suffix.lower() in NESTED:
        raise InvalidArchive(f"the archive holds an archive, {shown}; send it unpacked")
    hidden = any(part.startswith((".", "__MACOSX")) for part in path.parts)
    if hidden or path.name in JUNK:
        collector.skip("hidden files of the archive")
        return False
    return True


def _too_large(size: int, collector: Collector) -> Problem:
    return ImageTooLarge(
        f"the image has {size} bytes; at most {collector.max_image_bytes} are allowed"
    )


def _packed(way: int) -> Problem:
    return UndecodableImage(f"it is packed by method {way}; a zip's images are stored or deflated")


def _broken(error: Exception) -> Problem:
    return UndecodableImage(f"it cannot be unpacked: {one_line(error)}")

"""Safe reading of untrusted zip and tar archives."""

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
from service.features.jobs.collector import Collector
from service.features.jobs.errors import InvalidArchive

NESTED: Final = frozenset(
    (".zip", ".tar", ".gz", ".tgz", ".bz2", ".tbz2", ".xz", ".txz", ".7z", ".rar", ".zst")
)
JUNK: Final = ("Thumbs.db", "desktop.ini")
LONGEST_LISTING: Final = 64_000_000
"""Largest size of a zip's list of contents, in bytes. It is read as a whole and takes six times as
much memory."""
PACKED: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Allowed compression methods of a zip's entries. For the other methods Python decompresses data
without a limit on its size."""
GZIP: Final = b"\x1f\x8b"
LONGEST_HEADER: Final = 1_000_000
"""Largest size of a tar's extension header (for long names and the like), in bytes. Such a header
is read as a whole."""
HEADERS: Final = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)
BUFFER: Final = 128 * tarfile.BLOCKSIZE
LAST_READS: Final = 20
"""Number of reads allowed after the end of a file. It stops a reader that would read on for
ever."""


def collect_zip(file: BinaryIO, collector: Collector, *, max_bytes: int) -> None:
    """Pass the images of a zip archive to the collector, with their names in the archive.

    Args:
        max_bytes: largest total size of the unpacked entries.

    Raises:
        InvalidArchive: if the file is not a zip, or has an unsafe name or kind of entry.
        BodyTooLarge: if the archive unpacks to more than `max_bytes`.
    """
    room = _Room(max_bytes)
    bounded = _Bounded(file)
    try:
        with zipfile.ZipFile(bounded) as archive:
            bounded.read_whole = False
            entries = archive.infolist()
            # The declared sizes reject a large archive early. They may be false, so the unpacked
            # bytes are counted as well.
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
                # A RuntimeError: the entry needs a password, or an unknown method.
                except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
                    collector.fail(entry.filename, _broken(error))
                    continue
                room.take(len(data))
                collector.image(entry.filename, data)
    except (zipfile.BadZipFile, NotImplementedError, struct.error, ValueError, OSError) as error:
        raise InvalidArchive(f"the body is not a readable zip: {one_line(error)}") from None


def collect_tar(file: BinaryIO, collector: Collector, *, max_bytes: int) -> None:
    """Pass the images of a tar archive, plain or gzipped, to the collector.

    The arguments and errors are those of `collect_zip`.
    """
    room = _Room(max_bytes)
    packed = file.read(len(GZIP)) == GZIP
    file.seek(0)
    unpacked = _Unpacked(gzip.GzipFile(fileobj=file) if packed else file, room)
    try:
        with tarfile.open(
            fileobj=unpacked,  # type: ignore[call-overload]
            mode="r|",
            bufsize=BUFFER,
            tarinfo=_TarEntry,
        ) as archive:
            while (entry := archive.next()) is not None:
                archive.members = []  # otherwise the archive would keep all entries in memory
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
    """Counts how many bytes may still be unpacked."""

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
    """A zip's file with a limit on the size of its list of contents.

    A zip declares the length of that list in several places, so the limit is applied to what is
    actually read.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.read_whole = True
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        """Read up to `size` bytes.

        Raises:
            BodyTooLarge: if this reads the list of contents and the list is too long.
        """
        if self.read_whole and size > LONGEST_LISTING:
            raise BodyTooLarge(
                f"the zip's list of contents has more than {LONGEST_LISTING} bytes; send a tar"
            )
        return self._file.read(size)


class _Unpacked:
    """The unpacked bytes of a tar, with a limit on their number."""

    def __init__(self, file: BinaryIO | gzip.GzipFile, room: _Room) -> None:
        self._file = file
        self._room = room
        self._last_reads = 0

    def read(self, size: int) -> bytes:
        """Read up to `size` bytes.

        Raises:
            BodyTooLarge: if there are more bytes than may be unpacked.
            tarfile.ReadError: if the end of the file was read more than `LAST_READS` times.
        """
        data = self._file.read(size)
        self._room.take(len(data))
        if not data:
            self._last_reads += 1
            if self._last_reads > LAST_READS:
                raise tarfile.ReadError("it ends too early")
        return data

    def end(self) -> None:
        """Read the rest after the last entry, so that gzip checks its checksum at the end."""
        for _ in range(LAST_READS):
            if not self.read(BUFFER):
                break


class _TarEntry(tarfile.TarInfo):
    """An entry of a tar; the size of its extension headers is limited."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _TarEntry:
        entry = super().frombuf(buf, encoding, errors)
        if entry.type in HEADERS and not 0 <= entry.size <= LONGEST_HEADER:
            raise tarfile.ReadError(f"one of its headers has {entry.size} bytes")
        return entry


def _wanted(name: str, collector: Collector) -> bool:
    """Return whether an entry is an item of the job; hidden files are skipped.

    Raises:
        InvalidArchive: if the entry's name is unsafe, or the entry is itself an archive.
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

"""Archives that no honest caller sends: refused at once, whatever they say of themselves."""

from __future__ import annotations

import gzip
import io
import os
import stat
import struct
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from service.core.errors import Problem
from service.features.jobs import unpack
from service.features.jobs.unpack import collect_tar, collect_zip
from tests.service.conftest import encoded, noise
from tests.service.features.jobs.forms import (
    GZIP,
    TAR,
    ZIP,
    accepted,
    check,
    done,
    ended,
    form_of,
    inline,
    results,
    tarred,
    zipped,
)

DOT = encoded(noise(9, 9))
GOOD = {"image": inline(DOT)}
TINILY = {"model": "tiny"}
MOST_GROWTH = 100_000_000
"""Bytes that a bomb may cost."""
MOST_UNPACKED = 20_000_000 + unpack.BUFFER
"""Bytes that a job of the app here may have, and what is read at once."""
MOST_READS = 50

pytestmark = pytest.mark.usefixtures("nothing_is_left")


def entry_of(kind: bytes, name: str = "a.png", link: str = "/etc/passwd") -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        entry = tarfile.TarInfo(name)
        entry.type = kind
        entry.linkname = link
        archive.addfile(entry)
    return file.getvalue()


def symlink() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        entry = zipfile.ZipInfo("a.png")
        entry.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(entry, "/etc/passwd")
    return file.getvalue()


def encrypted(data: bytes) -> bytes:
    """A zip whose only entry says that it is."""
    raw = bytearray(data)
    raw[6] |= 1
    raw[raw.rindex(b"PK\x01\x02") + 8] |= 1
    return bytes(raw)


def listing_of(size: int) -> bytes:
    """The end of a zip that says that its list of contents has so many bytes."""
    record = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 1, 1, size, 0)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, 0, 1)
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, 0xFFFFFFFF, 0, 0)
    return record + locator + end


def header(kind: bytes, size: int, name: str = "a.png") -> bytes:
    """Of an entry of a tar, whatever follows it."""
    entry = tarfile.TarInfo(name)
    entry.type, entry.size = kind, size
    return entry.tobuf(tarfile.GNU_FORMAT)


def sparse() -> bytes:
    """A file that is mostly holes, after GNU's version 1.0, whose map never ends."""
    said = [("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0"), ("GNU.sparse.name", "a.png")]
    records = b"".join(
        b"%d %s=%s\n" % (len(key) + len(value) + 5, key.encode(), value.encode())
        for key, value in said
    )
    return (
        header(tarfile.XHDTYPE, len(records))
        + records.ljust(512, b"\x00")
        + header(tarfile.REGTYPE, 512)
        + b"999999999\n".ljust(512, b"7")
    )


NAMES = {
    "../up.png": "leads out of it",
    "a/../../up.png": "leads out of it",
    "a\\..\\..\\up.png": "leads out of it",
    "/etc/up.png": "absolute path",
    "C:\\up.png": "absolute path",
    "\\\\host\\share\\up.png": "absolute path",
    "more.zip": "holds an archive",
    "more.tar.gz": "holds an archive",
    "MORE.TGZ": "holds an archive",
}


@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz"])
@pytest.mark.parametrize("name", NAMES)
def test_an_archive_with_a_name_that_no_honest_one_has(
    jobs: TestClient, name: str, kind: str
) -> None:
    response = jobs.post("/v1/jobs", **form_of(kind, {"good.png": DOT, name: DOT}))
    check(response, 422, "invalid-archive", NAMES[name], repr(name))


LYING: dict[str, tuple[bytes, dict[str, str], str]] = {
    "link in a zip": (symlink(), ZIP, "'a.png' is a link"),
    "symbolic link": (entry_of(tarfile.SYMTYPE), TAR, "'a.png' is a link"),
    "hard link": (entry_of(tarfile.LNKTYPE), TAR, "'a.png' is a link"),
    "device": (entry_of(tarfile.CHRTYPE), TAR, "'a.png' is a link or a device"),
    "pipe": (entry_of(tarfile.FIFOTYPE), TAR, "'a.png' is a link or a device"),
    "truncated zip": (zipped({"a.png": bytes(9999)})[:-30], ZIP, "not a readable zip"),
    "half a zip": (zipped({"a.png": DOT})[:40], ZIP, "not a readable zip"),
    "a tar as a zip": (tarred({"a.png": DOT}), ZIP, "not a readable zip"),
    "a zip as a tar": (zipped({"a.png": DOT}), TAR, "not a readable tar"),
    "a picture as a tar": (encoded(noise(99, 99)), GZIP, "not a readable tar"),
    "a gzipped picture": (gzip.compress(DOT), GZIP, "not a readable tar"),
    "truncated tar": (tarred({"a.png": DOT * 9})[:1200], TAR, "not a readable tar"),
    "truncated gzip": (tarred({"a.png": os.urandom(9999)}, "w:gz")[:-999], GZIP, "readable tar"),
    "half a gzip": (tarred({"a.png": DOT}, "w:gz")[:15], GZIP, "not a readable tar"),
    "gzip with another sum": (tarred({"a.png": DOT}, "w:gz")[:-8] + bytes(8), GZIP, "CRC"),
    "a tar by bzip2": (tarred({"a.png": DOT}, "w:bz2"), TAR, "not a readable tar"),
    "listing of 4 GB": (listing_of(2**32), ZIP, "not a readable zip"),
    "listing of 4 EB": (listing_of(2**62), ZIP, "not a readable zip"),
    "headers in headers": (header(tarfile.XHDTYPE, 0) * 3000, TAR, "not a readable tar"),
    "names in names": (header(tarfile.GNUTYPE_LONGNAME, 0) * 3000, TAR, "not a readable tar"),
    "header of 8 GB": (header(tarfile.XHDTYPE, 2**33), TAR, "headers has 8589934592 bytes"),
    "size below zero": (header(tarfile.REGTYPE, -(2**20)), TAR, "not a readable tar"),
    "holes without end": (sparse(), TAR, "not a readable tar"),
    "zip of a version to come": (
        zipped({"a.png": DOT}).replace(b"PK\x01\x02\x14\x03\x14", b"PK\x01\x02\x14\x03\xff"),
        ZIP,
        "zip file version 25.5",
    ),
}


@pytest.mark.parametrize("case", LYING)
def test_an_archive_that_is_not_what_it_says(
    jobs: TestClient, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused after a few reads: one of them has no end."""
    content, headers, words = LYING[case]
    reads: list[int] = []
    for kind in (unpack._Bounded, unpack._Unpacked):

        def noted(file: Any, size: int = -1, *, read: Any = kind.read) -> bytes:
            reads.append(size)
            assert len(reads) <= MOST_READS
            return bytes(read(file, size))

        monkeypatch.setattr(kind, "read", noted)
    response = jobs.post("/v1/jobs", content=content, headers=headers)
    check(response, 422, "invalid-archive", words)
    assert reads


def test_one_entry_that_cannot_be_unpacked_fails_alone(jobs: TestClient) -> None:
    raw = bytearray(zipped({"good.png": DOT, "bad.png": DOT}, zipfile.ZIP_STORED))
    raw[raw.index(b"bad.png") + 7 + 50] ^= 255  # in its data
    found = done(jobs, params=TINILY, content=bytes(raw), headers=ZIP)
    assert "error" not in found["good.png"]
    assert "cannot be unpacked: Bad CRC-32" in found["bad.png"]["error"]
    assert found["bad.png"]["problem"]["type"] == "urn:gradcam-service:undecodable-image"


def test_an_encrypted_entry_fails_alone(jobs: TestClient) -> None:
    found = done(jobs, params=TINILY, content=encrypted(zipped({"a.png": DOT})), headers=ZIP)
    assert "password" in found["a.png"]["error"]


def test_a_zip_whose_list_of_contents_is_huge(
    jobs: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.features.jobs.unpack.LONGEST_LISTING", 1000)
    response = jobs.post("/v1/jobs", **form_of("zip", {f"{at:03}.png": DOT for at in range(30)}))
    check(response, 413, "body-too-large", "list of contents has more than 1000 bytes; send a tar")
    accepted(jobs.post("/v1/jobs", **form_of("zip", {f"{at}.png": DOT for at in range(9)})))


@pytest.mark.slow
def test_noise_in_an_archive_is_never_our_fault(jobs: TestClient) -> None:
    """Thousands of archives with some bytes changed: taken, or refused with a Problem."""
    random = np.random.default_rng(7)
    images = {"a.png": DOT, "b/käse.png": DOT, "c" * 120 + "/d.png": DOT}
    for kind in ("zip", "tar"):
        whole = np.frombuffer(form_of(kind, images)["content"], np.uint8)
        collect = collect_zip if kind == "zip" else collect_tar
        heads = np.flatnonzero(whole)  # noise in the padding of a tar tells nothing
        for _ in range(1500):
            data = whole.copy()
            at = random.choice(heads, random.integers(1, 4))
            data[at] = random.integers(0, 256, at.size)
            if kind == "tar":
                sign(data)
            sink = Sink()
            with suppress(Problem):
                collect(io.BytesIO(data.tobytes()), sink, max_bytes=10**6)  # type: ignore[arg-type]
            assert sink.unpacked <= 10**6


class Sink:
    """Stands for a collector, and counts."""

    max_image_bytes = 10**5

    def __init__(self) -> None:
        self.unpacked = 0

    def image(self, name: str, data: bytes) -> None:
        self.unpacked += len(data)

    def fail(self, name: str, problem: Problem) -> None:
        assert problem.detail

    def skip(self, what: str) -> None:
        assert what


def sign(tar: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
    """Make the sums of its headers right, so that the rest of them is believed."""
    for start in range(0, tar.size - 511, 512):
        block = tar[start : start + 512]
        if block[257:262].tobytes() == b"ustar":
            block[148:156] = 32
            block[148:156] = np.frombuffer(b"%06o\x00 " % int(block.sum(dtype=int)), np.uint8)


# Bombs


@contextmanager
def modest() -> Iterator[None]:
    """What happens here takes not much memory, and unpacks no more than a job may have."""
    clear, told = Path("/proc/self/clear_refs"), Path("/proc/self/status")
    if not clear.exists():
        pytest.skip("only Linux tells how much memory was needed at most")

    def kilobytes(name: str) -> int:
        return int(told.read_text().partition(f"{name}:")[2].split()[0])

    unpacked = 0
    clear.write_text("5")  # the peak is forgotten
    before = kilobytes("VmRSS")
    with pytest.MonkeyPatch.context() as patch:
        for kind in (gzip.GzipFile, zipfile.ZipExtFile):

            def noted(file: Any, size: int | None = -1, *, read: Any = kind.read) -> bytes:
                nonlocal unpacked
                data = bytes(read(file, size))
                unpacked += len(data)
                return data

            patch.setattr(kind, "read", noted)
        yield
    assert unpacked < MOST_UNPACKED
    assert (kilobytes("VmHWM") - before) * 1024 < MOST_GROWTH


def gzipped_zeros(head: bytes, megabytes: int) -> bytes:
    file = io.BytesIO()
    with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=1) as packed:
        packed.write(head)
        for _ in range(megabytes):
            packed.write(bytes(1_000_000))
    return file.getvalue()


def bomb(method: int, megabytes: int, said: int) -> bytes:
    """A zip of one entry that unpacks to more than it says."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive, archive.open("a.png", "w") as opened:
        for _ in range(megabytes):
            opened.write(bytes(1_000_000))
    raw = bytearray(file.getvalue())
    struct.pack_into("<L", raw, raw.rindex(b"PK\x01\x02") + 24, said)
    return bytes(raw)


BOMBS: dict[str, tuple[bytes, dict[str, str], int, str]] = {
    "zip that says 4 GB": (bomb(zipfile.ZIP_DEFLATED, 1, 2**32 - 2), ZIP, 413, "20000000 bytes"),
    "tar of 8 GB in gzip": (
        gzipped_zeros(header(tarfile.REGTYPE, 2**33), 300),
        GZIP,
        413,
        "20000000 bytes",
    ),
    "tar of many in gzip": (
        gzip.compress(
            b"".join(
                header(tarfile.REGTYPE, 399_872, f"{at}.png") + bytes(399_872) for at in range(60)
            ),
            1,
        ),
        GZIP,
        413,
        "unpacks to more than the 20000000 bytes",
    ),
    "tar of one large header in gzip": (
        gzipped_zeros(header(tarfile.XHDTYPE, 300_000_000), 300),
        GZIP,
        422,
        "headers has 300000000 bytes",
    ),
    "tar of large headers in gzip": (
        gzip.compress((header(tarfile.XHDTYPE, 999_936) + bytes(999_936)) * 60, 1),
        GZIP,
        413,
        "20000000 bytes",
    ),
    "tar of hidden files in gzip": (
        gzip.compress(header(tarfile.REGTYPE, 0, ".a") * 40_000, 1),
        GZIP,
        413,
        "20000000 bytes",
    ),
}


@pytest.mark.parametrize("case", BOMBS)
def test_a_bomb(jobs: TestClient, case: str) -> None:
    content, headers, status, words = BOMBS[case]
    assert len(content) < 2_000_000
    with modest():
        response = jobs.post("/v1/jobs", content=content, headers=headers)
    check(response, status, "body-too-large" if status == 413 else "invalid-archive", words)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "words"),
    [
        (zipfile.ZIP_DEFLATED, "cannot be unpacked"),
        (zipfile.ZIP_BZIP2, "packed by method 12"),
        (zipfile.ZIP_LZMA, "packed by method 14"),
    ],
)
def test_a_bomb_that_says_it_is_small_fails_alone(
    jobs: TestClient, method: int, words: str
) -> None:
    content = bomb(method, 150, 1000)
    with modest():
        response = jobs.post("/v1/jobs", params=TINILY, content=content, headers=ZIP)
        job = accepted(response)["id"]
    ended(jobs, job)
    assert words in results(jobs, job)["a.png"]["error"]

"""A folder of jobs that one user of a group has written, and another one goes on with."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from service.features.jobs.janitor import bury_dead, enlisted
from tests.service.features.jobs.desk import desk_at

FIRST, SECOND, GROUP = 12345, 10001, 0
DENIED = "the folder of jobs cannot be written: Permission denied"


def write(folder: Path) -> None:
    """A job of which one item is finished, and end without closing anything, as by SIGKILL."""
    with desk_at(folder) as desk, enlisted("first", desk.store, desk.folder):
        draft = desk.begun(3, "first")
        with desk.folder.blob(draft, 100) as blob:
            blob.write(b"a picture")
            blob.sync()
        job = desk.accepted(draft, 3)
        one, *_ = desk.lease("first")
        desk.folder.write_result(job.id, one.number, b"{}")
        desk.settle("first", one)
        os._exit(0)


def go_on(folder: Path) -> None:
    """Read what is there, finish it and remove it."""
    with desk_at(folder) as desk, enlisted("second", desk.store, desk.folder):
        (job,) = desk.listing.latest(None, before=None, state=None, most=9)
        assert desk.store.runners() == {"second"}
        assert desk.folder.read_blob(job.id, 0, 9) == b"a picture"
        assert desk.folder.read_result(job.id, 0) == b"{}"
        for item in desk.lease("second"):
            desk.folder.write_result(job.id, item.number, b"{}")
            assert desk.settle("second", item)
        assert desk.now(job).done == 3
        desk.listing.leave(job.id)
        desk.folder.remove(job.id)
        desk.listing.remove(job.id)
        assert not any(desk.rows(job.id).values())


def work_as(user: int, work: Callable[[Path], None], folder: Path) -> str:
    """What went wrong while another user did that; "" if nothing did."""
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    hearing, saying = context.Pipe(duplex=False)
    process = context.Process(target=_work_as, args=(user, work, folder, saying))
    process.start()
    saying.close()
    with hearing:
        try:
            return str(hearing.recv())
        except EOFError:
            return ""
        finally:
            process.join()


def _work_as(user: int, work: Callable[[Path], None], folder: Path, saying: Connection) -> None:
    with tempfile.TemporaryDirectory() as other, desk_at(Path(other)):
        pass  # whatever is imported late is there: the user may not read Python's own folder
    os.setgroups([])
    os.setgid(GROUP)
    os.setuid(user)
    os.umask(0o077)
    try:
        work(folder)
    except Exception as error:
        saying.send(str(error))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One that the group may write, as a volume of the container."""
    if sys.platform == "win32" or os.geteuid() != 0:
        pytest.skip("only root may work as two other users")
    # pytest-xdist adds a folder that its user alone enters.
    for above in (tmp_path, *tmp_path.parents):
        if not above.stat().st_mode & stat.S_IXOTH:
            above.chmod(above.stat().st_mode | 0o011)
    folder = tmp_path / "jobs"
    folder.mkdir()
    folder.chmod(0o770)
    os.chown(folder, FIRST, GROUP)
    return folder


@pytest.mark.slow
def test_another_user_of_the_group_goes_on_with_the_jobs(folder: Path) -> None:
    assert work_as(FIRST, write, folder) == ""
    assert work_as(SECOND, go_on, folder) == ""
    assert not list(folder.rglob("*.json"))


@pytest.mark.slow
def test_a_folder_of_its_user_alone_stays_so(folder: Path) -> None:
    folder.chmod(0o755)
    assert work_as(FIRST, write, folder) == ""
    modes = {each: each.stat().st_mode for each in folder.rglob("*")}
    assert modes
    assert not [each for each, mode in modes.items() if mode & (stat.S_IWGRP | stat.S_IWOTH)]
    assert work_as(SECOND, go_on, folder) == DENIED


@pytest.mark.slow
def test_files_of_an_older_version_are_refused_with_a_sentence(folder: Path) -> None:
    """It made them writable for its user alone."""
    assert work_as(FIRST, write, folder) == ""
    for each in folder.rglob("*"):
        if each.is_file():
            each.chmod(0o644)
    assert work_as(SECOND, go_on, folder) == DENIED


def test_a_lock_that_cannot_be_opened_tells_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with desk_at(tmp_path) as desk, desk.folder.alive("other"):
        lock = tmp_path / "runners" / "other.lock"

        def refuse(*arguments: object, **named: object) -> int:
            raise PermissionError(13, "Permission denied", str(lock))

        desk.store.enlist("other")
        with monkeypatch.context() as patched:
            patched.setattr("filelock._unix.os.open", refuse)
            assert not desk.folder.is_dead("other")
            bury_dead("me", desk.store, desk.folder, silent=False)
        assert desk.store.runners() == {"other"}

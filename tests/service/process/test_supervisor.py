"""The process that holds the port: it answers when nobody serves, and sees that somebody does."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from pathlib import Path

import httpx2
import psutil
import pytest
from PIL import Image

from service.process import child
from tests.service.conftest import encoded, noise
from tests.service.live import serving, starting, until_ready
from tests.waiting import hang, until

TINY = 'weights = "none"\ninput_size = 8\nname = "m"\nsource = "factory:tests.zoo.factories:{}"'
PNG = {"Content-Type": "image/png"}


def catalog(folder: Path, factory: str) -> str:
    file = folder / "models.toml"
    file.write_text("[[models]]\n" + TINY.format(factory))
    return str(file)


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The processes below the supervisor, the one that serves last."""
    below = psutil.Process(process.pid).children(recursive=True)
    return sorted(below, key=lambda each: len(each.parents()))


def explain(http: httpx2.Client, seed: int = 0) -> int:
    photo = encoded(noise(8, 8, seed))
    return http.post("/v1/models/m:explain", content=photo, headers=PNG).status_code


@pytest.mark.slow
@pytest.mark.parametrize(("doors", "detail"), [("0", "the service"), ("1", "the engine")])
def test_an_engine_that_dies_is_replaced_and_meanwhile_a_503_says_so(
    tmp_path: Path, doors: str, detail: str
) -> None:
    catalog_file = catalog(tmp_path, "tiny")
    with serving("--models", catalog_file, GRADCAM_DOORS=doors) as (process, http):
        assert explain(http) == 200
        first = family(process)[-1]
        os.kill(first.pid, signal.SIGKILL)
        first.wait(5)
        gone = http.get("/readyz")
        assert gone.status_code == 503
        assert gone.headers["content-type"] == "application/problem+json"
        assert gone.headers["retry-after"] == "1"
        assert gone.json()["detail"].startswith(f"{detail} is starting")
        assert http.head("/readyz").status_code == 503
        assert http.get("/healthz").json() == {"status": "ok"}
        large = http.post("/v1/models/m:explain", content=bytes(5_000_000), headers=PNG)
        assert large.status_code in (503, 422)  # it may be ready again
        until_ready(process, http)
        assert explain(http, 1) == 200
        assert family(process)[-1].pid != first.pid
        assert 'gradcam_worker_restarts_total{model="m"} 1.0' in http.get("/metrics").text
        process.terminate()
        assert process.wait(10) == 0


@pytest.mark.slow
def test_a_door_that_dies_is_replaced_and_costs_only_its_connections(tmp_path: Path) -> None:
    catalog_file = catalog(tmp_path, "tiny")
    with serving("--models", catalog_file, GRADCAM_DOORS="2") as (process, http):
        assert explain(http) == 200
        for _ in range(3):
            until_all_accept(http, process, 2)
            dead, alive = doors_of(process)
            dead.kill()
            dead.wait(5)
            for seed in range(10):  # each on a connection of its own, accepted by the other door
                with httpx2.Client(base_url=http.base_url, timeout=30) as another:
                    assert explain(another, seed) == 200
            assert alive.is_running()
        until_all_accept(http, process, 2)
        # Those of the dead do not count, and the doors notice soon that connections were closed.
        until(lambda: "gradcam_connections 1.0" in http.get("/metrics").text)
        metrics = http.get("/metrics").text
        assert 'route="/v1/models/{model}:explain",status="200"} 31.0' in metrics
        for each in doors_of(process):
            assert f'process_cpu_seconds_total{{pid="{each.pid}"}}' in metrics
        process.terminate()
        assert process.wait(10) == 0


def doors_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The processes that receive requests."""
    below = psutil.Process(process.pid).children()
    return [each for each in below if "spawn_main" in " ".join(each.cmdline())]


def until_all_accept(http: httpx2.Client, process: subprocess.Popen[str], doors: int) -> None:
    """Open connections until each door has accepted one, and close them."""
    with ExitStack() as scope:

        def all_have_accepted() -> bool:
            one = scope.enter_context(httpx2.Client(base_url=http.base_url, timeout=30))
            one.get("/healthz")
            with suppress(psutil.NoSuchProcess):
                found = doors_of(process)
                return len(found) == doors and all(map(has_accepted, found))
            return False

        until(all_have_accepted)


def has_accepted(door: psutil.Process) -> bool:
    return any(each.status == psutil.CONN_ESTABLISHED for each in door.net_connections("tcp"))


@pytest.mark.slow
def test_an_exit_that_no_signal_asked_for_is_not_meant(tmp_path: Path) -> None:
    with serving("--models", catalog(tmp_path, "lethal")) as (process, http):
        white = encoded(Image.new("RGB", (8, 8), "white"))
        gone = http.post("/v1/models/m:explain", content=white, headers=PNG)
        assert gone.status_code == 503
        assert gone.json()["detail"] == "the engine ended while it worked on this image; try again"
        until_ready(process, http)
        assert explain(http) == 200


@pytest.mark.slow
def test_a_process_that_dies_is_replaced_though_one_that_it_forked_lives(tmp_path: Path) -> None:
    with serving("--models", catalog(tmp_path, "forking")) as (process, http):
        *_, serving_process, forked = family(process)
        try:
            assert forked.parent() == serving_process
            serving_process.kill()
            serving_process.wait(5)
            assert forked.is_running()
            until_ready(process, http)
            assert explain(http) == 200
        finally:
            for each in (forked, *psutil.Process(process.pid).children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    each.kill()


def _hang(sending: Connection) -> None:
    hang()


@pytest.mark.anyio
async def test_a_process_that_hangs_before_its_first_word_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(child, "FIRST_WORD_SECONDS", 0.2)
    monkeypatch.setattr(child, "BEAT_SECONDS", 0.05)
    ended: list[int] = []

    async def note(one: child.Child, pid: int) -> None:
        ended.append(pid)

    async def nothing(one: child.Child) -> None:
        raise AssertionError("it said a word")

    context = multiprocessing.get_context("spawn")
    hanging = child.Child("it", context, _hang, (), listening=nothing, ended=note)
    async with asyncio.timeout(20):
        assert await hanging.live() == (-signal.SIGKILL, False)
    assert len(ended) == 1


@pytest.mark.slow
def test_nothing_stays_when_the_supervisor_itself_is_killed(tmp_path: Path) -> None:
    with serving("--models", catalog(tmp_path, "tiny")) as (process, http):
        below = family(process)
        process.kill()
        process.wait()
        _, alive = psutil.wait_procs(below, 15)
        assert not alive
        with pytest.raises(httpx2.ConnectError):
            http.get("/healthz")


@pytest.mark.slow
def test_sigterm_does_not_wait_for_a_model_that_loads(tmp_path: Path) -> None:
    with starting("--models", catalog(tmp_path, "sluggish")) as (process, http):
        wait_until_it_says(http, "still loading: m")
        process.terminate()
        assert process.wait(20) == 0


def wait_until_it_says(http: httpx2.Client, detail: str) -> None:
    def says_it() -> bool:
        with suppress(httpx2.ConnectError):
            return bool(http.get("/readyz").json()["detail"] == detail)
        return False

    until(says_it, 40)


@pytest.mark.slow
def test_one_that_never_gets_ready_is_given_up(tmp_path: Path) -> None:
    with starting("--models", catalog(tmp_path, "deadly")) as (process, _):
        assert process.wait(60) == 1
        assert process.stderr
        said = process.stderr.read()
        assert said.count("ended with exit code 9; another one starts") == 3
        assert "3 processes in a row ended before they were ready" in said


@pytest.mark.slow
def test_a_service_whose_shared_folder_is_gone_ends(tmp_path: Path) -> None:
    """Whoever watches it starts it again; a supervisor that stayed would serve nobody."""
    temporary = tmp_path / "t"
    temporary.mkdir()
    with serving("--models", catalog(tmp_path, "tiny"), TMPDIR=str(temporary)) as (process, _http):
        below = family(process)
        (folder,) = temporary.glob("gradcam-*")
        shutil.rmtree(folder)
        (door,) = doors_of(process)
        door.kill()
        assert process.wait(60) == 1
        psutil.wait_procs(below, 10)
        assert not any(each.is_running() for each in below)


@pytest.mark.slow
def test_who_says_nothing_to_the_stand_in_is_hung_up_on(tmp_path: Path) -> None:
    with starting("--models", catalog(tmp_path, "sluggish")) as (_, http):

        def connected() -> socket.socket | None:
            with suppress(OSError):
                return socket.create_connection(("127.0.0.1", http.base_url.port or 0), 12)
            return None

        one = until(connected)
        assert one
        with one:
            assert one.recv(100) == b""


@pytest.mark.slow
def test_without_a_supervisor_there_is_one_process(tmp_path: Path) -> None:
    arguments = ("--models", catalog(tmp_path, "tiny"))
    with serving(*arguments, GRADCAM_SUPERVISE="false") as (process, http):
        assert explain(http) == 200
        assert not family(process)
        process.terminate()
        assert process.wait(10) == 0

"""Services whose models come and go while they run, as whole processes."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import psutil
import pytest

from service.features.keys.keys import new_key
from tests.service.conftest import encoded, noise
from tests.service.live import free_port, serving, until_ready
from tests.waiting import until

PNG = {"Content-Type": "image/png"}
TINY = {"weights": "none", "input_size": 8}
SOURCE = "factory:tests.zoo.factories:"
MULTI = {"SAGEMAKER_MULTI_MODEL": "true"}
EMPTY = {"GRADCAM_STARTS_EMPTY": "1"}


@contextmanager
def administered(
    tmp_path: Path, catalog: str = "", **environment: str
) -> Iterator[tuple[subprocess.Popen[str], httpx2.Client]]:
    """A service whose caller may add and remove models."""
    secret, entry = new_key("boss", ["explain", "admin"], None)
    keys, models = tmp_path / "keys.toml", tmp_path / "models.toml"
    keys.write_text(entry)
    models.write_text(catalog)
    environment |= {"GRADCAM_ALLOWED_SOURCES": f"{SOURCE}*", "GRADCAM_KEYS": str(keys)}
    named = ["--models", str(models)] if catalog else []
    with serving(*named, **environment) as (process, http):
        http.headers["X-API-Key"] = secret
        yield process, http


def configured(*names: str) -> str:
    return "".join(
        f'[[models]]\nname = "{name}"\nsource = "{SOURCE}tiny"\nweights = "none"\ninput_size = 8\n'
        for name in names
    )


def add(http: httpx2.Client, name: str, factory: str = "tiny") -> None:
    added = http.post("/v1/models", json={"name": name, "source": SOURCE + factory, **TINY})
    assert added.status_code == 202, added.text


def until_it_explains(http: httpx2.Client, name: str) -> None:
    def explains() -> bool:
        try:
            return (
                http.post(
                    f"/v1/models/{name}:explain", content=encoded(noise(8, 8, 0)), headers=PNG
                ).status_code
                == 200
            )
        except httpx2.TransportError:  # its process has just ended
            return False

    until(explains, 60)


def below(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def doors_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return [each for each in below(process) if "spawn_main" in " ".join(each.cmdline())]


def engine_of(process: subprocess.Popen[str]) -> psutil.Process:
    return max(below(process), key=lambda each: len(each.parents()))


def killed(one: psutil.Process) -> None:
    one.send_signal(signal.SIGKILL)
    one.wait(10)


def assert_ready_without_a_model(http: httpx2.Client) -> None:
    assert http.get("/readyz").status_code == 200
    assert http.get("/v2/health/ready").json() == {"ready": True}
    told = http.get("/v1/models").json()
    assert told == {"models": [], "detail": "no model is loaded; add one with POST /v1/models"}
    asked = http.post("/v1/models/m:explain", content=encoded(noise(8, 8, 0)), headers=PNG)
    assert asked.status_code == 404
    assert asked.json()["detail"] == told["detail"]


@pytest.mark.slow
@pytest.mark.parametrize(("empty", "doors"), [(MULTI, "0"), (EMPTY, "2")])
def test_a_service_that_starts_without_a_model_is_ready(
    tmp_path: Path, empty: dict[str, str], doors: str
) -> None:
    probes = free_port()
    environment = {**empty, "GRADCAM_DOORS": doors, "GRADCAM_PROBE_PORT": str(probes)}
    with administered(tmp_path, **environment) as (process, http):
        assert_ready_without_a_model(http)
        probed = f"http://127.0.0.1:{probes}/readyz"
        until(lambda: httpx2.get(probed).status_code == 200)
        if empty is MULTI:
            assert http.get("/ping").status_code == 200
            assert http.post("/invocations", content=b"x").status_code == 404
        add(http, "m")
        until_it_explains(http, "m")
        assert http.get("/v1/models").json() == {"models": ["m"]}
        process.terminate()
        said = "".join(process.communicate())
        assert "No model is loaded; add one with POST /v1/models" in said
        assert "Traceback" not in said
        assert process.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("doors", ["0", "2"])
def test_after_the_last_model_was_removed_a_process_comes_back(tmp_path: Path, doors: str) -> None:
    with administered(tmp_path, configured("m"), GRADCAM_DOORS=doors) as (process, http):
        assert http.delete("/v1/models/m").status_code == 204
        assert_ready_without_a_model(http)
        killed(doors_of(process)[0] if doors != "0" else engine_of(process))
        until_ready(process, http)
        if doors != "0":
            until(lambda: len(doors_of(process)) == int(doors))
        assert_ready_without_a_model(http)
        add(http, "m")
        until_it_explains(http, "m")
        process.terminate()
        said = "".join(process.communicate())
        assert "Traceback" not in said
        assert process.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("doors", ["0", "2"])
def test_models_added_and_removed_are_as_they_were_after_the_engine_was_killed(
    tmp_path: Path, doors: str
) -> None:
    catalog = configured("kept", "removed")
    with administered(tmp_path, catalog, GRADCAM_DOORS=doors) as (process, http):
        add(http, "added")
        add(http, "gone")
        until_it_explains(http, "added")
        until_it_explains(http, "gone")
        for name in ("removed", "gone"):
            assert http.delete(f"/v1/models/{name}").status_code == 204
        for _ in range(2):
            killed(engine_of(process))
            until_ready(process, http)
            until_it_explains(http, "added")
            until_it_explains(http, "kept")
            assert http.get("/v1/models").json()["models"] == ["kept", "added"]
        add(http, "removed")  # its name is free
        until_it_explains(http, "removed")


@pytest.mark.slow
@pytest.mark.parametrize("doors", ["0", "1"])
def test_a_model_whose_load_kills_the_engine_is_left_out_of_the_next_one(
    tmp_path: Path, doors: str
) -> None:
    with administered(tmp_path, configured("kept"), GRADCAM_DOORS=doors) as (_, http):
        add(http, "good")
        until_it_explains(http, "good")
        add(http, "bad", "deadly")

        def failed() -> bool:
            try:
                answer = http.get("/v1/models/bad")
            except httpx2.TransportError:
                return False
            return answer.status_code == 424 and "ended while it loaded" in answer.json()["detail"]

        until(failed, 60)
        for name in ("kept", "good"):
            until_it_explains(http, name)
        assert http.delete("/v1/models/bad").status_code == 204
        add(http, "bad")
        until_it_explains(http, "bad")

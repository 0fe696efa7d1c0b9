"""The process: `gradcam serve` from its start to its exit code, over real sockets."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from service.limits.keys import new_key
from tests.service.conftest import encoded, noise
from tests.service.live import ROOT, serving, starting, until_ready
from tests.waiting import until

PNG = {"Content-Type": "image/png"}


@pytest.mark.slow
def test_from_loading_to_a_clean_stop_that_loses_no_request(slow_catalog: str) -> None:
    with starting("--models", slow_catalog) as (process, http):
        answers = until_ready(process, http)
        loading = answers[0]
        assert loading.status_code == 503
        assert loading.json()["detail"] == "the service is starting; try again"
        assert all(answer.headers["retry-after"] == "1" for answer in answers[:-1])
        assert answers[-2].json()["detail"] == "still loading: slow"

        with ThreadPoolExecutor(3) as threads:
            photos = [encoded(noise(8, 8, seed)) for seed in range(6)]
            futures = [
                threads.submit(http.post, "/v1/models/slow:explain", content=photo, headers=PNG)
                for photo in photos[:3]
            ]
            wait_for(http, 'gradcam_queue_depth{model="slow"} 2.0')
            process.send_signal(signal.SIGTERM)
            responses = [future.result() for future in futures]
        assert [response.status_code for response in responses] == [200, 200, 200]
        assert process.wait(10) == 0
        with pytest.raises(httpx2.ConnectError):
            http.get("/healthz")


def wait_for(http: httpx2.Client, line: str) -> None:
    until(lambda: line in http.get("/metrics").text)


@pytest.mark.slow
def test_a_second_signal_does_not_wait_for_the_queue(slow_catalog: str) -> None:
    with serving("--models", slow_catalog, GRADCAM_DELAY_TOLERANCE="0") as (process, http):
        with ThreadPoolExecutor(6) as threads:
            photos = [encoded(noise(8, 8, seed)) for seed in range(6)]
            futures = [
                threads.submit(http.post, "/v1/models/slow:explain", content=photo, headers=PNG)
                for photo in photos[:6]
            ]
            wait_for(http, 'gradcam_queue_depth{model="slow"} 5.0')
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGINT)
            responses = [future.result() for future in futures]
            assert process.wait(10) == 1
        assert {response.status_code for response in responses} == {503}
        assert "stopped before the answer was ready" in responses[0].json()["detail"]


@pytest.mark.slow
@pytest.mark.parametrize("keys", [False, True])
def test_ready_says_where_the_page_is_and_a_curl_line_that_works(
    tmp_path: Path, keys: bool
) -> None:
    secret, entry = new_key("me", ["explain"], None)
    (tmp_path / "keys.toml").write_text(entry)
    given = ("--keys", str(tmp_path / "keys.toml")) if keys else ()
    with serving(*given, GRADCAM_LOG_FORMAT="console") as (process, http):
        assert process.stdout
        hello = ""
        while "curl" not in hello or not hello.endswith("'\n"):
            line = process.stdout.readline()
            assert line, "the service ended"
            hello += line
        base = str(http.base_url).rstrip("/")
        assert f"Drop a photo on {base}/ or" in hello
        found = re.search(r"curl .*", hello.replace("\\\n", ""))
        assert found
        overlay = tmp_path / "overlay.png"
        line = found[0].replace("-o overlay.png", f"-sS -o {overlay}")
        subprocess.run(line, shell=True, cwd=ROOT, env={**os.environ, "KEY": secret}, check=True)
        assert overlay.read_bytes().startswith(b"\x89PNG")
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0


@pytest.mark.slow
def test_11_megabytes_are_refused_while_they_stream_in(address: str) -> None:
    """The caller gets the answer, not a reset connection, whatever it says of the length."""
    body = bytes(11_000_000)

    def chunks() -> Iterator[bytes]:
        for start in range(0, len(body), 65536):
            yield body[start : start + 65536]

    with httpx2.Client(base_url=address, timeout=30) as http:
        path = "/v1/models/efficientnet-lite0:explain"
        claimed = http.post(path, content=body, headers=PNG)
        chunked = http.post(path, content=chunks(), headers=PNG)
        lying = raw_post(http, path, b"Content-Length: 11000000\r\n\r\n" + body[:1000])
        for response in (claimed, chunked):
            assert response.status_code == 413
            assert response.json()["type"] == "urn:gradcam-service:body-too-large"
            assert "at most 10000000 bytes" in response.json()["detail"]
        assert "11000000 bytes" in claimed.json()["detail"]
        assert lying.startswith(b"HTTP/1.1 413")
        assert http.get("/readyz").status_code == 200


@pytest.mark.slow
def test_a_client_that_reads_no_answer_while_it_writes_gets_the_413(address: str) -> None:
    """Python's own client: it writes the whole body before it reads."""
    path = f"{address}/v1/models/efficientnet-lite0:explain"
    asked = urllib.request.Request(path, bytes(150_000_000), PNG)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(asked, timeout=30)
    assert refused.value.code == 413
    assert json.load(refused.value)["type"] == "urn:gradcam-service:body-too-large"
    refused.value.close()


def raw_post(http: httpx2.Client, path: str, rest: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", http.base_url.port or 0), timeout=10) as one:
        one.sendall(
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n".encode()
        )
        one.sendall(rest)
        return one.recv(65536)


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "service", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_taken_port_stops_the_start() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for ended in (
            run("serve", "--port", port),
            run("serve", "--port", "0", GRADCAM_GRPC_PORT=port),
        ):
            assert ended.returncode == 2
            assert f"cannot listen on 127.0.0.1:{port}:" in ended.stderr
            assert "address already in use" in ended.stderr
            assert "Traceback" not in ended.stderr


def test_a_long_path_to_temporary_files_stops_the_start(tmp_path: Path) -> None:
    """The path of a Unix socket has at most some hundred characters."""
    folder = tmp_path / ("long" * 25)
    folder.mkdir()
    ended = run("serve", "--port", "0", TMPDIR=str(folder))
    assert ended.returncode == 2
    assert "the processes need a socket in the folder for temporary" in ended.stderr
    assert "set TMPDIR to a folder with a short path" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert list(folder.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("toml", "environment", "words"),
    [
        (
            "",
            {"GRADCAM_PORTS": "1"},
            "there is no setting GRADCAM_PORTS; did you mean GRADCAM_PORT",
        ),
        ("", {"GRADCAM_MAX_QUEUE": "0"}, "GRADCAM_MAX_QUEUE=0: it should be at least 1"),
        ("[[models]]", {}, "models.toml: entry 1: key 'name' is missing"),
        (
            '[[models]]\nname = "m"\nsource = "torchvision:resnet51"\nweights = "none"',
            {},
            "models.toml: model 'm': key 'source': torchvision has no model for images",
        ),
    ],
)
def test_a_mistake_in_the_configuration_stops_the_start(
    tmp_path: Path, toml: str, environment: dict[str, str], words: str
) -> None:
    file = tmp_path / "models.toml"
    file.write_text(toml)
    models = ["--models", str(file)] if toml else []
    ended = run("serve", "--port", "0", *models, **environment)
    assert ended.returncode == 2
    told = [json.loads(line) for line in ended.stderr.splitlines()]
    assert told[-1]["level"] == "critical"
    assert words in told[-1]["event"]
    assert "exception" not in told[-1]
    assert not ended.stdout


def test_a_mistake_is_a_sentence_where_the_log_is_for_people() -> None:
    ended = run("serve", "--port", "0", GRADCAM_MAX_QUEUE="0", GRADCAM_LOG_FORMAT="console")
    assert ended.returncode == 2
    assert ended.stderr == "gradcam: GRADCAM_MAX_QUEUE=0: it should be at least 1\n"


@pytest.mark.slow
def test_slow_and_vanishing_callers(tmp_path: Path) -> None:
    """A body that does not come is a 504; a caller who leaves is not a failure of ours."""
    with serving(GRADCAM_DEADLINE_SECONDS="0.5") as (process, http):
        path = "/v1/models/efficientnet-lite0:explain"
        assert raw_post(http, path, b"Content-Length: 9\r\n\r\nx").startswith(b"HTTP/1.1 504")
        with socket.create_connection(("127.0.0.1", http.base_url.port or 0)) as one:
            one.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\n".encode())
            one.sendall(b"Content-Type: image/png\r\nContent-Length: 9\r\n\r\nx")
        wait_for(http, 'status="499"')
        assert 'status="500"' not in http.get("/metrics").text
        process.terminate()
        assert process.wait(10) == 0
        assert process.stderr
        assert "Traceback" not in process.stderr.read()

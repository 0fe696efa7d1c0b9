"""A batch that is stopped in the middle goes on where it stopped."""

from __future__ import annotations

import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from service.features.batch.parts import Parts
from tests.service.features.batch.batches import catalog, rows, small_photos, start
from tests.waiting import until

IMAGES = 30


def drawn(output: Path) -> dict[str, int]:
    """Each picture and when it was written."""
    files = (output / "pictures").glob("*.jpg")
    return {file.name.removesuffix(".jpg"): file.stat().st_mtime_ns for file in files}


def until_further(process: subprocess.Popen[str], output: Path, count: int) -> None:
    enough = len(drawn(output)) + count

    def came() -> bool:
        assert process.poll() is None, process.communicate()
        return len(drawn(output)) >= enough

    until(came, 60)


@pytest.mark.slow
def test_whatever_stops_it_every_image_is_there_once_and_nothing_is_done_again(
    tmp_path: Path,
) -> None:
    folder, output = small_photos(tmp_path / "photos", IMAGES), tmp_path / "out"
    models = catalog(tmp_path, "steady", max_batch=1)
    command = (str(folder), "--output", str(output), "--models", models)
    kept: dict[str, int] = {}
    for stop, code in ((signal.SIGTERM, 130), (signal.SIGINT, 130), (signal.SIGKILL, -9)):
        with start(*command) as process:
            until_further(process, output, 4)
            process.send_signal(stop)
            _, err = process.communicate(timeout=60)
        assert process.returncode == code, err
        finished, now = Parts(output).finished(), drawn(output)
        if stop is signal.SIGKILL:
            assert finished == {*kept}  # too young to have been kept
        else:
            assert err == "Stopped; the same command goes on from here.\n"
            under_way = {*now} - finished
            assert len(under_way) <= 2
            assert len(finished) + len(under_way) >= len(kept) + 4
        assert {*kept} <= finished
        assert kept == {name: now[name] for name in kept}
        kept = {name: now[name] for name in finished}
        assert not (output / "manifest.parquet").exists()
    assert len(kept) < IMAGES

    with start(*command) as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert err == f"{IMAGES} of {IMAGES} images explained, 0 failed: {output}/manifest.parquet\n"
    assert {*Counter(row["id"] for row in rows(output)).values()} == {1}
    assert {row["id"] for row in rows(output)} == {file.name for file in folder.iterdir()}
    assert all((output / row["picture"]).stat().st_size > 100 for row in rows(output))
    assert kept == {name: drawn(output)[name] for name in kept}
    assert not (output / "parts").exists()
    assert not list(output.rglob(".*"))

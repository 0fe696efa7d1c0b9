"""A rolling update behind nginx, with the configuration that is documented."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from bench.rolling import NGINX
from tests.service.live import ROOT


@pytest.mark.slow
@pytest.mark.skipif(NGINX is None, reason="needs nginx")
def test_no_request_fails_while_both_processes_are_replaced() -> None:
    """By the command of its documentation, whose clients are cut off in the middle of requests."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.rolling", "--rolls", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    told = re.search(r"1 rolls in \d+ s: (\d+) requests, (\d+) failures", done.stdout)
    assert told, done.stdout
    requests, failures = map(int, told.groups())
    assert requests > 25
    assert failures == 0, done.stdout

"""Memory is kept: told by page faults, in a process of its own."""

from __future__ import annotations

import gc
import platform
import subprocess
import sys

import pytest

from service.core.allocator import NEW_OBJECTS, settle

SCRIPT = """
import resource, sys, threading
import torch
from service.core.allocator import keep_memory

if sys.argv[1] == "keep":
    assert keep_memory()

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def work():
    found = []
    for _ in range(10):
        before = faults()
        torch.ones(25_000_000)
        found.append(faults() - before)
    print(min(found))

thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
def test_what_was_given_back_is_not_asked_for_again() -> None:
    def faults(how: str) -> int:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, check=True
        )
        return int(done.stdout)

    assert faults("keep") < 100
    assert faults("as it comes") > 1000


def test_what_is_there_is_left_out_of_garbage_collection() -> None:
    frozen, threshold = gc.get_freeze_count(), gc.get_threshold()
    try:
        settle()
        assert gc.get_freeze_count() > frozen
        assert gc.get_threshold() == threshold
        settle(seldom=True)
        assert gc.get_threshold()[0] == NEW_OBJECTS > threshold[0]
        assert gc.get_threshold()[1:] == threshold[1:]
    finally:
        gc.set_threshold(*threshold)

"""The service through Ray Serve: the HTTP contract's own tests, unchanged, against one that is
served, and what is Serve's own."""

from __future__ import annotations

import re
import sys

import pytest

from tests.ray.stage import Stage

pytest.importorskip("ray", reason="Ray is an extra: pip install 'gradcam-service[ray]'")
pytestmark = pytest.mark.slow

EXAMPLES = ("curl", "the_python_client", "javascript", "the_overlays", "the_figures")
CONTRACT = {
    "http/test_routes.py": ("", 36),
    "http/test_bad_input.py": ("", 86),
    "features/activations/test_activations.py": ("", 3),
    "pipeline/test_views.py": ("", 30),
    "pipeline/test_where_the_heat_is.py": ("", 5),
    # Not those that ask no service.
    "http/test_openapi.py": ("test_the_request_examples_work", 2),
    "http/test_generated_requests.py": ("", 10),
    "test_readme.py": (" or ".join(EXAMPLES), 5),
}
"""The tests that ask a service through `client` or `address`: their files, which of them, and how
many there are at least."""


def passed_in(stage: Stage, *words: str) -> tuple[int, str]:
    """How many tests passed, and what pytest said."""
    done = stage.run(sys.executable, "-m", "pytest", "--no-header", *words)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    (passed,) = re.findall(r"(\d+) passed", done.stdout)
    return int(passed), done.stdout


@pytest.mark.parametrize("file", CONTRACT)
def test_the_contract(stage: Stage, file: str) -> None:
    words, least = CONTRACT[file]
    passed, said = passed_in(stage, f"tests/service/{file}", "-k", words)
    assert passed >= least
    assert "skipped" not in said


def test_what_is_serves_own(stage: Stage) -> None:
    passed, _ = passed_in(stage, "tests/ray/behaviour.py")
    assert passed == 10


def test_a_lost_replica_is_a_problem_and_another_one_comes(stage: Stage) -> None:
    answers = stage.tell("kill")["kill"]
    lost, *_, again = answers
    assert (lost["status"], lost["type"]) == (503, "urn:gradcam-service:unavailable")
    assert lost["retry"] == "1"
    assert again["status"] == 200


def test_a_drained_replica_answers_what_it_has(stage: Stage) -> None:
    answers = stage.tell("drain")["drain"]
    assert [answer["status"] for answer in answers] == [200, 200]
    assert stage.tell("status")["status"]["gradcam"] == "RUNNING"

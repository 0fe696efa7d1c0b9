from __future__ import annotations

from pathlib import Path

import pytest

from service.core.errors import ConfigError
from service.settings import Settings


def test_defaults_without_environment() -> None:
    found = Settings.read({"PATH": "/bin"})
    assert found.cache
    assert found.cache.name == "gradcam"
    assert found == Settings(cache=found.cache)


def test_environment_then_options() -> None:
    environment = {"GRADCAM_PORT": "9000", "GRADCAM_HOST": "0.0.0.0", "GRADCAM_MODELS": "m.toml"}
    found = Settings.read(environment, port=9001, host=None)
    assert (found.host, found.port, found.models) == ("0.0.0.0", 9001, Path("m.toml"))


def test_three_full_batches_fit_unless_a_limit_was_set() -> None:
    assert Settings.read({}).fitting("max_queue", 400) == 1200
    found = Settings.read({"GRADCAM_MAX_QUEUE": "1024"})
    assert found.fitting("max_queue", 400) == 0
    assert found.fitting("pixel_budget", 400) == 1200


@pytest.mark.parametrize(
    ("environment", "given", "words"),
    [
        ({"GRADCAM_PORT": "http"}, {}, "GRADCAM_PORT=http: it should be a whole number"),
        ({"GRADCAM_PORT": "70000"}, {}, "GRADCAM_PORT=70000: .* at most 65535"),
        ({}, {"port": -1}, "--port=-1: .* at least 0"),
        ({"GRADCAM_LOG_LEVEL": "loud"}, {}, "GRADCAM_LOG_LEVEL=loud: .*'debug', 'info'"),
        ({"GRADCAM_MAX_QEUE": "1"}, {}, "no setting GRADCAM_MAX_QEUE; did you mean GRADCAM_MAX_QU"),
    ],
)
def test_a_mistake_names_the_setting_its_value_and_what_is_allowed(
    environment: dict[str, str], given: dict[str, int], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        Settings.read(environment, **given)

"""The setting of the file of keys, in a service that has the feature, and in one that has not."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.core.errors import ConfigError
from service.core.settings import CoreSettings
from service.features.keys.settings import KeySettings
from service.settings import Settings

pytestmark = pytest.mark.contract
WithoutKeys: type[CoreSettings] = type(
    "WithoutKeys", tuple(kind for kind in Settings.__bases__ if kind is not KeySettings), {}
)
"""The settings of a service whose folder of keys is deleted."""


def test_with_a_file_of_keys_callers_are_identified() -> None:
    assert Settings.read({"GRADCAM_KEYS": "keys.toml"}).identifies_callers()
    assert not Settings.read({}).identifies_callers()


def test_a_mistake_in_the_file_is_found_before_anything_starts(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text("[[keys]]")
    with pytest.raises(ConfigError, match=r"keys\.toml: entry 1: name is required"):
        Settings(keys=file).check_files()
    Settings().check_files()


@pytest.mark.parametrize("settings", [CoreSettings, WithoutKeys])
def test_without_the_feature_a_file_of_keys_is_refused(settings: type[CoreSettings]) -> None:
    """A service that cannot read keys must not serve without them."""
    with pytest.raises(ConfigError, match="there is no setting GRADCAM_KEYS"):
        settings.read({"GRADCAM_KEYS": "keys.toml"})
    with pytest.raises(ConfigError, match="there is no setting --keys"):
        settings.read({}, keys=Path("keys.toml"))
    assert not settings.read({}).identifies_callers()

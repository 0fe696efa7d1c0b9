"""docs/huggingface.md, run as it stands but for the model that would need the internet."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from service.models.catalog import read_catalog
from service.settings import Settings
from tests.service.conftest import encoded, noise, running_app

TEXT = (Path(__file__).parents[3] / "docs" / "huggingface.md").read_text()


@pytest.mark.slow
def test_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python, toml = (
        re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)[0]
        for language in ("python", "toml")
    )
    monkeypatch.chdir(tmp_path)
    exec(python, {})
    (tmp_path / "models.toml").write_text(toml)
    online, offline = read_catalog(tmp_path / "models.toml")
    assert (online.name, online.source) == ("vit", "hf:google/vit-base-patch16-224")
    with running_app(Settings(), [offline]) as client:
        about = client.get("/v1/models/untrained").json()
        assert about["kind"] == "classes"
        methods = {each["name"]: each["available"] for each in about["methods"]}
        assert methods["rollout"]
        assert methods["chefer"]
        assert methods["legrad"]
        assert not methods["cam"]
        for method in ("gradcam", "legrad"):
            response = client.post(
                "/v1/models/untrained:explain",
                params={"method": method, "target": 1, "fit": "squash", "size": "layer"},
                content=encoded(noise(90, 70)),
                headers={"Content-Type": "image/png"},
            )
            (found,) = response.json()["explanations"]
            assert found["heatmap"]["shape"] == [4, 4]
            assert found["target"]["label"] == "dog"

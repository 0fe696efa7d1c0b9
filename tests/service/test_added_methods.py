"""The worked example of docs/methods.md, in a running service."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.packages import install_example
from tests.service.conftest import encoded, noise
from tests.service.http.test_routes import heatmap
from tests.service.live import serving
from tests.service.process.test_supervisor import PNG, catalog


@pytest.mark.slow
def test_a_method_of_a_users_package_is_served(tmp_path: Path) -> None:
    install_example(tmp_path, "methods.md", "## A method of your own")
    photo = encoded(noise(8, 8, 0))
    asked = "signed=true&normalize=none&size=layer&target=1"
    with serving("--models", catalog(tmp_path, "tiny"), PYTHONPATH=str(tmp_path)) as (_, http):

        def heat(method: str) -> NDArray[np.float32]:
            answer = http.post(
                f"/v1/models/m:explain?method={method}&{asked}", content=photo, headers=PNG
            )
            assert answer.status_code == 200, answer.text
            values: NDArray[np.float32] = heatmap(answer.json()["explanations"][0])
            return values

        gradcam = heat("gradcam")
        assert gradcam.any()
        np.testing.assert_allclose(heat("counterfactual"), -gradcam, rtol=1e-5, atol=1e-7)
        methods = {each["name"]: each for each in http.get("/v1/models/m").json()["methods"]}
        assert methods["counterfactual"]["summary"].endswith("what speaks against the class")
        document = http.get("/openapi.json").text
        assert '"counterfactual"' in document
        wrong = http.post("/v1/models/m:explain?method=counter", content=photo, headers=PNG)
        assert wrong.status_code == 422
        assert "did you mean 'counterfactual'" in wrong.text

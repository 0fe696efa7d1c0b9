"""What is compiled ahead of time says what the model says."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch

from cam import ClassTarget, ExplainedImage, Question, explain_batch
from cam.hooks.grids import Grid
from cam.methods.head import pooled_head
from cam.outputs.reading import Reading
from cam.runtimes.compiled import FastPath
from cam.runtimes.packaged import PackagedPath
from tests.zoo.convolutional import small
from tests.zoo.parts import images


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang")), reason="needs a compiler")
def test_a_package_says_what_the_model_says() -> None:
    model = small()
    head = pooled_head(model, images(1), "relu2", Grid("channels first", 4, 4))
    assert head
    reading = Reading(None, "softmax")
    fast = FastPath(
        *(model, "relu2"), dtype=torch.float32, sizes=[2], compile=False, head=head, reading=reading
    )
    files = {2: fast.package(images(2).shape)}
    path = PackagedPath(files, "relu2", dtype=torch.float32, head=head, reading=reading)
    path.settle(images(1))
    asked = [Question((ClassTarget(1),), "gradcam++", ("relu2",))]
    assert path.takes(asked[0])
    for count in (1, 2):
        x = images(count, seed=count)
        for one, other in zip(
            path.explain(x, asked * count), explain_batch(model, x, asked * count), strict=True
        ):
            assert isinstance(one, ExplainedImage)
            assert isinstance(other, ExplainedImage)
            np.testing.assert_allclose(one.logits, other.logits, rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(
                one.explanations[0].map, other.explanations[0].map, rtol=1e-4, atol=1e-6
            )

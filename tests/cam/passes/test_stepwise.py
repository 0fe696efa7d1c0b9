"""Methods of many passes, pass by pass: how far they say they are, and how many images they run."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cam import METHODS, ClassTarget, ExplainedImage, Question, Reading, explain, explain_in_steps
from cam.passes.stepwise import finish
from cam.positions.locate import locate
from cam.progress import Progress
from tests.cam.methods.needs import ATTENDING
from tests.zoo.convolutional import small
from tests.zoo.parts import images, seen_by

# Where the layer lies and how the output is read is known, so the first pass is everyone's. Two
# targets; at most four images in a pass (so two where each target is differentiated) and eleven for
# the method; five channels at the layer, 8 × 8 pixels.
PASSES: dict[str, tuple[list[tuple[int, int]], list[int]]] = {
    "smoothgradcam++": ([(done, 11) for done in (2, 4, 6, 8, 10, 11)], [2, 2, 2, 2, 2, 1]),
    "shapleycam": ([(1, 2), (2, 2)], [1, 1]),
    "cam": ([(1, 1)], [1]),
    "scorecam": ([(4, 5), (5, 5)], [4, 1]),
    # One channel, which is all that eleven passes are enough for, ten times.
    "sscam": ([(done, 10) for done in range(1, 11)], [1] * 10),
    "iscam": ([(done, 10) for done in range(1, 11)], [1] * 10),
    "ablationcam": ([(4, 5), (5, 5)], [1, 4, 1]),  # the layer as it is, and changed
    "reciprocam": ([(1, 1)], [1]),  # the head is linear
    "opticam": ([(done, 22) for done in range(1, 23)], [1] * 22),
    "rise": ([(4, 11), (8, 11), (11, 11)], [4, 4, 3]),
    # Cells of 2 × 2 pixels: 3 × 3 windows; and the image as it is.
    "occlusion": ([(4, 9), (8, 9), (9, 9)], [1, 4, 4, 1]),
    "gradient": ([(1, 1)], [1]),
    "smoothgrad": ([(done, 11) for done in (2, 4, 6, 8, 10, 11)], [2, 2, 2, 2, 2, 1]),
    # At the end the two ends of the way.
    "integratedgradients": (
        [(done, 11) for done in (2, 4, 6, 8, 10, 11)],
        [2, 2, 2, 2, 2, 1, 2],
    ),
    # At the end the photo and eleven of the background.
    "expectedgradients": (
        [(done, 11) for done in (2, 4, 6, 8, 10, 11)],
        [2, 2, 2, 2, 2, 1, 4, 4, 4],
    ),
    "guidedbackprop": ([(1, 1)], [1]),
    "guidedgradcam": ([(1, 2), (2, 2)], [1, 1]),
    "fullgrad": ([(1, 1)], [1]),
}


def run(method: str, *, chunk: int, budget: int) -> tuple[list[Progress], list[int]]:
    model = small()
    seen = seen_by(model)
    question = Question((ClassTarget(0), ClassTarget(1)), method, ("relu2",), budget)
    locate(model, images(1), ["relu2"])
    seen.clear()
    reading = Reading(activation="softmax")
    progress = list(explain_in_steps(model, images(1)[0], question, chunk=chunk, reading=reading))
    first, *sizes = map(len, seen)
    assert first == 1
    return progress, sizes


def test_every_method_of_many_passes_is_counted() -> None:
    steps = {name for name, method in METHODS.items() if method.formula == "steps"}
    others = {*ATTENDING, "lrp", "drise"}  # need other models: see there
    assert steps == set(PASSES) | others


@pytest.mark.parametrize("method", PASSES)
def test_passes_are_counted_as_they_are_run(method: str) -> None:
    progress, sizes = PASSES[method]
    assert run(method, chunk=4, budget=11) == ([Progress(*each) for each in progress], sizes)


def test_with_more_targets_than_images_in_a_pass_it_is_one_image() -> None:
    for method in ("smoothgrad", "integratedgradients", "smoothgradcam++"):
        progress, _ = run(method, chunk=1, budget=3)
        assert progress == [Progress(1, 3), Progress(2, 3), Progress(3, 3)]


def test_samples_of_two_channels_come_chunk_by_chunk() -> None:
    """A budget of 25 is two channels, ten times each."""
    progress, sizes = run("iscam", chunk=1, budget=25)
    assert progress == [Progress(done, 20) for done in range(1, 21)]
    assert sizes == [1] * 20
    progress, sizes = run("sscam", chunk=2, budget=25)
    assert progress == [Progress(done, 20) for done in range(2, 21, 2)]
    assert sizes == [2] * 10


def test_a_budget_below_the_samples_is_as_many_samples() -> None:
    for method in ("sscam", "iscam"):
        progress, sizes = run(method, chunk=4, budget=3)
        assert progress == [Progress(1, 3), Progress(2, 3), Progress(3, 3)]
        assert sizes == [1, 1, 1]


@pytest.mark.parametrize("method", ["scorecam", "ablationcam", "iscam", "occlusion"])
def test_the_map_is_the_same_in_passes_of_any_size(method: str) -> None:
    model, x = small(seed=3), images(1)[0]
    question = Question((ClassTarget(0), ClassTarget(1)), method, ("relu1",), 30, signed=True)
    found = []
    for chunk in (1, 3, 64):
        answer = finish(explain_in_steps(model, x, question, chunk=chunk))
        assert isinstance(answer, ExplainedImage)
        found.append(answer)
    for answer in found[1:]:
        for one, other in zip(answer.explanations, found[0].explanations, strict=True):
            assert np.abs(other.map).max() > 0
            np.testing.assert_allclose(one.map, other.map, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", [name for name in PASSES if name != "cam"])
def test_a_model_in_half_precision_has_the_same_map_but_for_its_rounding(method: str) -> None:
    x = images(1)
    whole, half = (
        explain(
            small(seed=3).to(dtype),
            x.to(dtype),
            target=[ClassTarget(0), ClassTarget(1)],
            method=method,
            layer="relu2",
            budget=20,
        )
        for dtype in (torch.float32, torch.bfloat16)
    )
    for exact, rounded in zip(whole, half, strict=True):
        assert rounded.map.dtype == np.float32
        scale = float(exact.map.max())
        assert np.abs(rounded.map - exact.map).max() <= 0.1 * scale

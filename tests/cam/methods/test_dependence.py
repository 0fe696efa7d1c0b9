"""Whether a method's map depends on the class, and that answers say so where it does not."""

from __future__ import annotations

import pytest

from bench.evaluation_scenes import loaded, photos
from cam import METHODS, explain, spearman
from service.models.catalog import EMBEDDED
from tests.zoo.convolutional import small
from tests.zoo.parts import images

EGYPTIAN_CAT, TRACTOR = 285, 866


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        ("eigencam", "the map does not depend on the class: eigencam makes the same map for each"),
        ("kpcacam", "the map does not depend on the class: kpcacam makes the same map for each"),
        ("fem", "the map does not depend on the class: fem makes the same map for each"),
        (
            "guidedbackprop",
            "the map hardly depends on the class: guidedbackprop makes almost the same map of a",
        ),
        (
            "segeigencam",
            "the map hardly depends on the class: segeigencam makes almost the same map of a model",
        ),
        (
            "fullgrad",
            "the map hardly depends on the class: fullgrad makes almost the same map of a model",
        ),
    ],
)
def test_a_map_that_does_not_show_the_class_says_so(method: str, sentence: str) -> None:
    assert not METHODS[method].class_specific
    for target in (None, 1):
        (found,) = explain(small(), images(1), target=target, method=method)
        assert any(each.startswith(sentence) for each in found.warnings)


def test_a_map_of_a_class_has_no_warning() -> None:
    for method in ("gradcam", "hirescam", "gradient"):
        assert METHODS[method].class_specific
        assert explain(small(), images(1), method=method)[0].warnings == ()


@pytest.mark.slow
def test_the_dependence_is_what_the_maps_of_two_classes_show() -> None:
    """The map of a cat for the classes "Egyptian cat" and "tractor"."""
    served = loaded(EMBEDDED.name)
    photo = photos(served, 1)
    for method in ("eigencam", "guidedbackprop", "fullgrad", "gradcam", "gradient"):
        first, second = explain(served.module, photo, target=[EGYPTIAN_CAT, TRACTOR], method=method)
        alike = abs(spearman(first.map, second.map) or 0)
        assert (alike < 0.85) is METHODS[method].class_specific, (method, alike)
        assert (alike == pytest.approx(1)) is (METHODS[method].class_dependence == "none")

"""`evaluate`: what it refuses, how often it runs the model, and what it leaves behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cam import (
    METRICS,
    CamError,
    ClassTarget,
    Explanation,
    Question,
    SimilarityTarget,
    UnitTarget,
    evaluate,
    explain,
)
from cam.drawing.placement import resize
from cam.errors import ClassOutOfRange, InvalidOption, MethodUnsuited, NonFinite, TargetMismatch
from cam.evaluation.baselines import baseline, misplaced
from cam.evaluation.candidate import Candidate, candidates_of
from cam.evaluation.metrics import BASELINES, FEW_RANDOM_MAPS, MetricOptions, Scores
from cam.outputs.reading import Reading
from tests.cam.evaluation.asked import SIGMOID, alone, asked, explained, in_steps
from tests.zoo.by_hand import Chain, Weighed, drawn, picture, tensor, weighed
from tests.zoo.convolutional import around, small
from tests.zoo.parts import Net, hook_count, images

SIZE = (15, 8)
"""120 pixels: each of the 30 steps of a curve has four."""
REGION = np.zeros(SIZE, bool)
REGION[3:9, 2:5] = True
HEAT = drawn(*SIZE, seed=2).astype(np.float32)
ALL = tuple(name for name in METRICS if name != "completeness")
FREE = tuple(name for name in ALL if not METRICS[name].maps(MetricOptions()))
"""The metrics that make no map."""


def model_and_image() -> tuple[Weighed, Tensor]:
    return weighed(2, *SIZE), tensor(picture(2, *SIZE))


def judged() -> tuple[Weighed, Tensor, Explanation]:
    model, image = model_and_image()
    return model, image, explained(model, picture(2, *SIZE))


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"metrics": ["accuracy"]}, InvalidOption, "no metric 'accuracy'; the metrics are inserti"),
        ({"metrics": ["road", ""]}, InvalidOption, "no metric ''"),
        ({"metrics": []}, InvalidOption, "the list of metrics is empty"),
        ({"options": MetricOptions(steps=0)}, InvalidOption, "steps is 0"),
        ({"options": MetricOptions(radius=-1)}, InvalidOption, "radius is -1"),
        (
            {"options": MetricOptions(region=REGION.T)},
            InvalidOption,
            r"the region is bool \(8, 15\); it should be bool \(15, 8\)",
        ),
        (
            {"options": MetricOptions(region=REGION.astype(np.uint8))},
            InvalidOption,
            "the region is uint8",
        ),
        ({"options": MetricOptions(steps=True)}, InvalidOption, "steps is True"),
        ({"options": MetricOptions(steps=2.5)}, InvalidOption, "steps is 2.5"),  # type: ignore[arg-type]
        ({"options": MetricOptions(seed=-1)}, InvalidOption, "seed is -1"),
        ({"options": MetricOptions(random_maps=0)}, InvalidOption, "random_maps is 0"),
        ({"judged": np.ones(5)}, InvalidOption, "shape \\(5,\\)"),
        ({"judged": np.ones((0, 4))}, InvalidOption, "shape \\(0, 4\\)"),
        ({"target": UnitTarget("layer", 0)}, TargetMismatch, "a unit"),
        ({"metrics": ["energy"]}, InvalidOption, "energy needs a region"),
        ({"metrics": ["deletion", "pointing"]}, InvalidOption, "pointing needs a region"),
        ({"metrics": ["stability"]}, MethodUnsuited, "stability makes maps of changed images"),
        ({"metrics": ["deletion", "adcc"]}, MethodUnsuited, "adcc makes maps of changed images"),
        ({"target": 2}, ClassOutOfRange, "classes 0 to 1"),
        ({"target": ClassTarget(1, against=True)}, TargetMismatch, "not what speaks against it"),
        (
            {"target": SimilarityTarget("layer", np.ones(2, np.float32))},
            TargetMismatch,
            "a similarity",
        ),
        ({"judged": np.full(SIZE, np.nan, np.float32)}, NonFinite, "NaN or infinite"),
        ({"judged": np.where(REGION, np.inf, 1)}, NonFinite, "NaN or infinite"),
        ({"judged": np.where(REGION, -np.inf, 1)}, NonFinite, "NaN or infinite"),
        ({"image": torch.full((2, *SIZE), torch.nan)}, NonFinite, "output for this image"),
    ],
)
def test_what_cannot_be_is_named(
    arguments: dict[str, Any], error: type[CamError], said: str
) -> None:
    model, image = model_and_image()
    given = {
        "image": image,
        "judged": HEAT,
        "target": 1,
        "metrics": ["deletion"],
        "options": MetricOptions(),
        "reading": SIGMOID,
        **arguments,
    }
    with pytest.raises(error, match=said):
        evaluate(model, **given)
    assert model.passes <= 1  # the model is not run for nothing
    assert hook_count(model) == 0


@pytest.mark.parametrize("name", [name for name in ALL if name not in FREE])
def test_a_map_alone_cannot_be_made_anew(name: str) -> None:
    model, image = model_and_image()
    with pytest.raises(MethodUnsuited, match=f"^{name} makes maps"):
        evaluate(model, image, HEAT, target=1, metrics=[name], reading=SIGMOID)


def test_the_scores_come_in_the_order_of_the_metrics_and_once() -> None:
    model, image = model_and_image()
    names = ["road", "deletion", "complexity"]
    found = evaluate(model, image, HEAT, metrics=[*names, "road"], reading=SIGMOID)
    assert list(found) == names


def test_of_a_map_without_a_target_the_predicted_class_counts() -> None:
    model, image = model_and_image()
    likely = model.chance(picture(2, *SIZE))
    expected = int(likely > 0.5)
    found, same, other = (
        evaluate(
            model,
            image,
            HEAT,
            target=target,
            metrics=["confidence_drop"],
            options=alone(),
            reading=SIGMOID,
        )["confidence_drop"]
        for target in (None, expected, 1 - expected)
    )
    assert found == same
    assert found.details["whole"] == pytest.approx(max(likely, 1 - likely), abs=1e-6)
    assert other.details["whole"] == pytest.approx(min(likely, 1 - likely), abs=1e-6)


def test_an_explanation_knows_its_target_even_as_the_second_of_two() -> None:
    model, image = model_and_image()
    first, second = explain(model, image[None], target=[1, 0], method="hirescam", layer="layer")
    assert second.turn == 1
    for each, other in ((first, 0), (second, 1)):
        found = evaluate(
            model, image, each, target=other, metrics=ALL[:9], options=alone(), reading=SIGMOID
        )
        assert found["confidence_drop"].details["whole"] == pytest.approx(each.probability)
        (lone,) = explain(model, image[None], target=each.target, method="hirescam", layer="layer")
        same = evaluate(model, image, lone, metrics=ALL[:9], options=alone(), reading=SIGMOID)
        assert found == same


def test_an_explanation_and_its_map_score_the_same() -> None:
    model, image, explanation = judged()
    options = MetricOptions(region=REGION)
    first = evaluate(model, image, explanation, metrics=FREE, options=options, reading=SIGMOID)
    second = evaluate(
        model, image, explanation.map, target=1, metrics=FREE, options=options, reading=SIGMOID
    )
    assert first == second


def test_how_the_output_is_read_is_found_without_being_told() -> None:
    model, image, explanation = judged()
    told = evaluate(model, image, explanation, metrics=["road"], reading=SIGMOID)
    found = evaluate(model, image, explanation, metrics=["road"])
    assert found == told
    probability = nn.Sequential(model, nn.Sigmoid())
    same = evaluate(probability, image, explanation.map, target=1, metrics=["road"])
    assert same["road"].value == pytest.approx(told["road"].value, abs=1e-6)
    # Read as logits, the probabilities would be between 1/2 and 0.73.
    wrong = evaluate(
        probability,
        image,
        explanation.map,
        target=1,
        metrics=["road"],
        reading=Reading(activation="sigmoid"),
    )
    assert abs((wrong["road"].value or 0) - (told["road"].value or 0)) > 1e-4


def test_methods_of_many_passes_make_their_maps_again() -> None:
    """Of a linear model, integrated gradients are hirescam at the input."""
    model, image, explanation = judged()
    (other,) = explain(model, image[None], target=1, method="integratedgradients", budget=4)
    np.testing.assert_allclose(other.map, explanation.map, atol=1e-6)
    names = [name for name in ALL if name not in FREE]
    first = evaluate(
        model, image, explanation, metrics=names, options=alone(samples=3), reading=SIGMOID
    )
    second = evaluate(
        model,
        image,
        other,
        metrics=names,
        options=alone(samples=3),
        question=Question((ClassTarget(1),), "integratedgradients", (), budget=4),
        reading=SIGMOID,
    )
    for name in names:
        assert second[name].value == pytest.approx(first[name].value, abs=2e-3), name


def test_the_candidates_of_an_answer_count_the_layers_of_each_target() -> None:
    found = explain(
        Chain().eval(),
        tensor(picture(1, 6, 6))[None],
        target=[1, 0],
        method="hirescam",
        layer=["layer", "halved"],
    )
    candidates = candidates_of(found)
    assert [(each.turn, each.layer) for each in candidates] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [each.map.shape for each in candidates] == [(6, 6), (3, 3)] * 2
    for candidate, explanation in zip(candidates, found, strict=True):
        assert candidate.map is explanation.map
        assert candidate.completeness is explanation.completeness


def test_each_of_several_layers_is_scored_as_it_is_alone() -> None:
    model, image = Chain().eval(), picture(1, 6, 6)
    layers = ["layer", "halved"]
    answer = explain(model, tensor(image)[None], target=[1, 0], method="hirescam", layer=layers)
    metrics = ("deletion", "sensitivity", "stability", "coherency")
    _, together = in_steps(
        model, image, asked(1, 0, layers=layers), candidates_of(answer), metrics, alone()
    )
    assert isinstance(together, list)
    assert len(together) == 4
    for explanation, found in zip(answer, together, strict=True):
        expected = evaluate(
            model,
            tensor(image),
            explanation,
            metrics=metrics,
            options=alone(),
            reading=SIGMOID,
        )
        for name in metrics:
            assert found[name].value == pytest.approx(expected[name].value, abs=1e-6), name


def test_a_fused_map_is_made_again_from_its_layers() -> None:
    model, image = Chain().eval(), picture(1, 6, 6)
    layers = ("layer", "halved")
    (found,) = explain(
        model, tensor(image)[None], target=1, method="hirescam", layer=layers, fuse="max"
    )
    scores = evaluate(
        model,
        tensor(image),
        found,
        metrics=["sensitivity"],
        options=alone(radius=1e-9),
        question=replace(asked(1, layers=layers), fuse="max"),
        reading=SIGMOID,
    )
    assert scores["sensitivity"].value == pytest.approx(0, abs=1e-5)


def promised(
    model: Weighed,
    metrics: tuple[str, ...],
    options: MetricOptions,
    *,
    turns: int = 1,
    maps: int = 1,
) -> tuple[int, int]:
    """Return how many passes were promised and how many images the model has seen, after checking
    that the progress never falls, never exceeds its total, and ends there."""
    image = picture(2, *SIZE)
    heat = explained(model, image).map
    candidates = [
        Candidate(heat + number, turn, 0) for turn in range(turns) for number in range(maps)
    ]
    told, found = in_steps(model, image, asked(1, 0), candidates, metrics, options)
    assert isinstance(found, list)
    (total,) = {each.total for each in told}
    done = [each.done for each in told]
    assert done == sorted(done)
    assert done[0] == 1
    assert done[-1] == total
    return total, model.passes


REGIONAL = MetricOptions(region=REGION)


@pytest.mark.parametrize(
    ("metrics", "total", "ends"),
    [
        # The image as it is, and what the metrics take; then the two ends of curves, which all
        # maps of the image share.
        (("insertion",), 1 + 29, 1),
        (("deletion",), 1 + 29, 1),
        (("insertion", "deletion"), 1 + 58, 2),
        (("road",), 1 + 36, 0),
        (("road_morf",), 1 + 18, 0),
        (("road", "road_morf", "road_lerf"), 1 + 36, 0),
        (("road_lerf", "road"), 1 + 36, 0),
        (("confidence_drop",), 1 + 1, 0),
        (("confidence_drop", "confidence_increase"), 1 + 1, 0),
        (("coherency",), 1 + 1, 0),
        (("complexity",), 1, 0),
        (("adcc",), 1 + 2, 0),
        (("arcc",), 1 + 1 + 16, 0),
        (("arcc", "adcc", "coherency"), 1 + 2 + 16, 0),
        (("coherency", "adcc", "confidence_drop", "complexity"), 1 + 2, 0),
        (("sensitivity",), 1 + 10, 0),
        (("infidelity",), 1 + 32, 0),
        (("energy", "pointing"), 1, 0),
        (("insertion", "deletion", "road", "adcc", "infidelity"), 1 + 58 + 36 + 2 + 32, 2),
    ],
)
def test_the_passes_that_are_promised_are_made(
    metrics: tuple[str, ...], total: int, ends: int
) -> None:
    options = replace(REGIONAL, baselines=())
    assert promised(weighed(2, *SIZE), metrics, options) == (total, total + ends)


@pytest.mark.parametrize(
    ("metrics", "each", "all_maps"),
    [
        # Passes of each map; then those of all together.
        (("deletion",), 29, 1),
        (("insertion", "deletion"), 58, 2),
        (("road",), 36, 0),
        (("confidence_drop",), 1, 0),
        (("infidelity",), 0, 32),
    ],
)
def test_a_baseline_takes_the_passes_of_a_map(
    metrics: tuple[str, ...], each: int, all_maps: int
) -> None:
    model = weighed(2, *SIZE)
    random = METRICS[metrics[0]].random_maps(MetricOptions())
    _, made = promised(model, metrics, MetricOptions())
    assert made == 1 + (1 + 3 + random) * each + all_maps
    _, made = promised(model, metrics, MetricOptions(random_maps=2))
    assert made == 1 + (1 + 3 + 2) * each + all_maps
    _, made = promised(model, metrics, MetricOptions(baselines=("edges",)))
    assert made == 1 + (1 + 1) * each + all_maps


@pytest.mark.parametrize("maps", [1, 2, 3])
def test_the_maps_of_one_target_share_the_baselines(maps: int) -> None:
    """Each has misplaced maps of its own."""
    model = weighed(2, *SIZE)
    _, made = promised(model, ("deletion",), MetricOptions(), maps=maps)
    assert made == 1 + (maps + 3 + FEW_RANDOM_MAPS * maps) * 29 + 1
    _, made = promised(model, ("deletion", "road"), MetricOptions(), maps=maps)
    assert made == 1 + (maps + 3 + FEW_RANDOM_MAPS * maps) * (29 + 36) + 1
    _, made = promised(model, ("infidelity",), MetricOptions(), maps=maps)
    assert made == 1 + 32


def test_each_target_has_baselines_of_its_own() -> None:
    model = weighed(2, *SIZE)
    _, made = promised(model, ("deletion",), MetricOptions(), turns=2)
    assert made == 1 + 2 * ((1 + 3 + FEW_RANDOM_MAPS) * 29 + 1)
    _, made = promised(model, ("infidelity",), MetricOptions(), turns=2, maps=2)
    assert made == 1 + 2 * 32


def test_maps_of_other_sizes_share_all_but_the_misplaced_maps() -> None:
    model, image = weighed(2, *SIZE), picture(2, *SIZE)
    candidates = [Candidate(HEAT), Candidate(HEAT[:2, :3]), Candidate(HEAT[:3, :2])]
    _, found = in_steps(model, image, asked(1), candidates, ["deletion"], MetricOptions())
    assert model.passes == 1 + (3 + 3 + 3 * FEW_RANDOM_MAPS) * 29 + 1
    assert isinstance(found, list)
    compared = [each["deletion"].baselines for each in found]
    for name in ("gaussian", "edges", "uniform"):
        assert len({each[name] for each in compared}) == 1
    assert len({each["random"] for each in compared}) == 3


def test_maps_that_share_their_baselines_score_as_they_do_alone() -> None:
    model, image = weighed(2, *SIZE), picture(2, *SIZE)
    candidates = [Candidate(HEAT), Candidate(-HEAT), Candidate(HEAT[:2, :3])]
    options = MetricOptions(region=REGION)
    _, together = in_steps(model, image, asked(1), candidates, FREE, options)
    assert isinstance(together, list)
    for candidate, found in zip(candidates, together, strict=True):
        _, single = in_steps(model, image, asked(1), [candidate], FREE, options)
        assert single == [found]


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_scores_as_its_map_does(name: Any) -> None:
    model, image = model_and_image()
    values = resize(HEAT, *SIZE)
    heat = misplaced(values, 1, 1) if name == "random" else baseline(name, image.numpy())
    options = MetricOptions(region=REGION, random_maps=1)
    found = evaluate(model, image, HEAT, target=1, metrics=FREE, options=options, reading=SIGMOID)
    expected = evaluate(
        model, image, heat, target=1, metrics=FREE, options=options, reading=SIGMOID
    )
    for metric in FREE:
        if name in METRICS[metric].baselines:
            assert found[metric].baselines[name] == expected[metric].value, metric


def test_chance_is_the_scores_of_misplaced_maps() -> None:
    """Each scores as that map does alone, and the baseline is their mean."""
    model, image = model_and_image()

    def scores(heat: NDArray[np.float32]) -> Scores:
        metrics, options = ["infidelity", "confidence_drop"], MetricOptions(random_maps=3)
        return evaluate(
            model, image, heat, target=1, metrics=metrics, options=options, reading=SIGMOID
        )

    found = scores(HEAT)
    for metric, score in found.items():
        expected = [
            scores(misplaced(resize(HEAT, *SIZE), turn, 3))[metric].value for turn in (1, 2, 3)
        ]
        assert score.chance == tuple(expected)
        assert len({*score.chance}) == 3
        assert score.baselines["random"] == pytest.approx(np.mean(score.chance))


def test_only_the_baselines_that_say_something_are_compared() -> None:
    model, image, explanation = judged()
    options = MetricOptions(region=REGION)
    found = evaluate(model, image, explanation, metrics=ALL, options=options, reading=SIGMOID)
    for name, score in found.items():
        assert tuple(score.baselines) == METRICS[name].baselines
    (ig,) = explain(model, image[None], target=1, method="integratedgradients", budget=4)
    whole = evaluate(model, image, ig, metrics=["completeness"], reading=SIGMOID)
    assert whole["completeness"].baselines == {}
    some = evaluate(
        model,
        image,
        explanation,
        metrics=["deletion", "stability"],
        options=MetricOptions(baselines=("uniform", "random")),
        reading=SIGMOID,
    )
    assert set(some["deletion"].baselines) == {"uniform", "random"}
    assert set(some["stability"].baselines) == set()


def test_the_same_seed_gives_the_same_scores() -> None:
    model, image, explanation = judged()

    def scores(seed: int) -> Scores:
        return evaluate(
            model,
            image,
            explanation,
            metrics=ALL,
            options=MetricOptions(region=REGION, seed=seed),
            reading=SIGMOID,
        )

    first = scores(7)
    torch.manual_seed(1)
    np.random.seed(1)
    assert scores(7) == first
    other = scores(8)
    assert other != first
    changed = {name for name in ALL if other[name].value != first[name].value}
    # The zeros of the map are equal pixels, so the curves have random numbers, too.
    assert changed == {
        "insertion",
        "deletion",
        "road",
        "road_morf",
        "road_lerf",
        "arcc",
        "sensitivity",
        "infidelity",
    }
    assert other["confidence_drop"].baselines == first["confidence_drop"].baselines
    assert other["complexity"].baselines["edges"] == first["complexity"].baselines["edges"]


def test_random_numbers_of_others_are_left_as_they_are() -> None:
    model, image, explanation = judged()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    evaluate(
        model,
        image,
        explanation,
        metrics=ALL,
        options=MetricOptions(region=REGION),
        reading=SIGMOID,
    )
    assert torch.equal(torch.get_rng_state(), before)


def poisoned(times: int) -> Callable[[Tensor], Tensor]:
    """Return a function that fails when it is called for the last of so many times."""
    left = [times]

    def poison(x: Tensor) -> Tensor:
        left[0] -= 1
        if left[0] <= 0:
            raise RuntimeError("out of memory")
        return x

    return poison


@pytest.mark.parametrize("times", [None, 1, 2, 3, 5, 8])
def test_the_model_is_left_as_it_was_found(times: int | None) -> None:
    """After all metrics, and after its own exception in a pass of any of them."""
    model = around(poisoned(10**9))
    (x,) = images(1)
    (explanation,) = explain(model, x[None], target=1, layer="relu2")
    model.train()
    model.relu1.eval()
    model.conv1.weight.requires_grad_(False)
    model.conv1.register_forward_hook(lambda module, args, output: None)
    modes = [each.training for each in model.modules()]
    wants = [each.requires_grad for each in model.parameters()]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    hooks = hook_count(model)
    region = np.eye(8) > 0
    arguments: dict[str, Any] = {"metrics": ALL, "options": MetricOptions(region=region, samples=3)}
    if times is None:
        evaluate(model, x, explanation, **arguments)
    else:
        model.before = poisoned(times)
        with pytest.raises(RuntimeError, match="out of memory"):
            evaluate(model, x, explanation, **arguments)
    assert [each.training for each in model.modules()] == modes
    assert [each.requires_grad for each in model.parameters()] == wants
    assert all(each.grad is None for each in model.parameters())
    assert hook_count(model) == hooks == 1
    assert torch.is_grad_enabled()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)


@pytest.mark.slow
def test_a_model_in_training_scores_as_in_eval_mode() -> None:
    """In training its dropout would make each pass another."""
    model = small()
    (x,) = images(1)
    (explanation,) = explain(model, x[None], target=1, layer="relu2")
    arguments: dict[str, Any] = {
        "metrics": ALL,
        "options": MetricOptions(region=np.eye(8) > 0, samples=3),
    }
    expected = evaluate(model, x, explanation, **arguments)
    model.train()
    assert evaluate(model, x, explanation, **arguments) == expected
    assert model.training


def test_the_image_and_the_map_are_left_as_they_are() -> None:
    model, image, explanation = judged()
    before, heat = image.clone(), explanation.map.copy()
    region = REGION.copy()
    evaluate(
        model,
        image,
        explanation,
        metrics=ALL,
        options=MetricOptions(region=region),
        reading=SIGMOID,
    )
    assert torch.equal(image, before)
    assert image.grad is None
    np.testing.assert_array_equal(explanation.map, heat)
    np.testing.assert_array_equal(region, REGION)


class Shaky(Weighed):
    """Its logit is not finite if the last pixel is black."""

    def forward(self, x: Tensor) -> Tensor:
        found = super().forward(x)
        return torch.where(x[:, 0, -1, -1, None] == 0, torch.nan, found)


def test_an_output_that_is_not_finite_costs_its_metric_alone() -> None:
    model, image = Shaky(drawn(2, *SIZE)).eval(), picture(2, *SIZE)
    told, found = in_steps(
        model,
        image,
        asked(1),
        [Candidate(HEAT)],
        ["deletion", "insertion", "road"],
        MetricOptions(),
    )
    assert isinstance(found, list)
    (scores,) = found
    assert scores["deletion"].value is None
    assert scores["deletion"].details == {}
    assert "not finite" in str(scores["deletion"].warning)
    assert set(scores["deletion"].baselines.values()) == {None}
    plain = Weighed(drawn(2, *SIZE)).eval()
    _, expected = in_steps(
        plain, image, asked(1), [Candidate(HEAT)], ["insertion", "road"], MetricOptions()
    )
    assert isinstance(expected, list)
    for name in ("insertion", "road"):
        assert scores[name] == expected[0][name]
    assert [each.done for each in told] == sorted(each.done for each in told)
    assert all(each.done <= each.total for each in told)
    assert told[-1].done == told[-1].total


def test_an_image_that_the_model_cannot_read_is_the_images_error() -> None:
    model, image = model_and_image()
    dark = image.numpy().astype(np.float64) * np.nan
    told, found = in_steps(model, dark, asked(1), [Candidate(HEAT)], ["deletion"], MetricOptions())
    assert isinstance(found, NonFinite)
    assert told == []
    _, found = in_steps(
        model, picture(2, *SIZE), asked(2), [Candidate(HEAT)], ["deletion"], MetricOptions()
    )
    assert isinstance(found, ClassOutOfRange)


@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_no_pass_has_more_images_than_a_chunk(chunk: int) -> None:
    model, image, explanation = judged()
    expected = evaluate(
        model,
        image,
        explanation,
        metrics=ALL,
        options=replace(REGIONAL, baselines=()),
        reading=SIGMOID,
    )
    model.batches.clear()
    found = evaluate(
        model,
        image,
        explanation,
        metrics=ALL,
        options=replace(REGIONAL, baselines=()),
        chunk=chunk,
        reading=SIGMOID,
    )
    sizes = [len(each) for each in model.batches]
    assert max(sizes) == min(chunk, 32)  # the squares of infidelity are the most at once
    for name in ALL:
        # ROAD's noise is drawn pass by pass.
        most = 5e-3 if "road" in name else 1e-6
        assert found[name].value == pytest.approx(expected[name].value, abs=most), name


@pytest.mark.parametrize("asked_for", [("first", "second"), ("second", "first")])
def test_the_maps_of_changed_images_are_of_the_maps_own_layer(asked_for: tuple[str, str]) -> None:
    """The layers' maps differ in size; the second one's does not feel the noise."""
    weights, image = torch.linspace(-1, 1, 8).reshape(1, 2, 2, 2), tensor(picture(2, 8, 8))
    model = Net(
        lambda x, first, second: (second(first(x)) * weights).flatten(1).cumsum(1)[:, [3, 7]],
        first=nn.Identity(),
        second=nn.AvgPool2d(4),
    )
    question = Question((ClassTarget(1),), "hirescam", asked_for)
    explanations = explain(model, image[None], target=1, method="hirescam", layer=asked_for)
    options = MetricOptions(radius=1e-6, baselines=())
    for each in explanations:
        found = evaluate(
            model, image, each, metrics=["sensitivity"], options=options, question=question
        )["sensitivity"]
        assert found.value is not None
        assert found.value < 1e-4  # of another layer's map it would be about 1


def test_without_names_a_map_is_scored_by_the_usual_metrics_that_can() -> None:
    model, image, explanation = judged()
    assert list(evaluate(model, image, explanation)) == ["insertion", "deletion", "stability"]
    assert list(evaluate(model, image, HEAT, target=np.int64(1))) == ["insertion", "deletion"]


@pytest.mark.parametrize(
    ("metrics", "method"),
    [(["stability"], "hirescam"), (["stability", "deletion"], "occlusion"), (["adcc"], "rise")],
)
def test_the_progress_ends_at_its_total(metrics: list[str], method: str) -> None:
    model, image = model_and_image()
    (explanation,) = explain(model, image[None], target=1, method=method, layer="layer", budget=20)
    question = Question((ClassTarget(1),), method, ("layer",), budget=20)
    told, found = in_steps(
        model, picture(2, *SIZE), question, candidates_of([explanation]), metrics, alone(steps=4)
    )
    assert isinstance(found, list)
    done = [each.done for each in told]
    assert done == sorted(done)
    assert {each.total for each in told} == {told[-1].done}
    if method == "occlusion":
        assert len(set(done)) > 4  # it tells of the passes of each map


def test_chance_does_not_depend_on_the_other_metrics() -> None:
    model, image, explanation = judged()
    options = MetricOptions(baselines=("random",))
    alone_, after = (
        evaluate(model, image, explanation, metrics=metrics, options=options)["coherency"]
        for metrics in (["coherency"], ["sensitivity", "adcc", "coherency"])
    )
    assert alone_.chance == after.chance
    assert len(alone_.chance) == FEW_RANDOM_MAPS


def test_the_noise_of_road_does_not_depend_on_the_size_of_batches() -> None:
    model, image = weighed(2, 5, 6), tensor(picture(2, 5, 6))
    heat = drawn(5, 6, seed=2).astype(np.float32)
    scores = [
        evaluate(model, image, heat, target=1, metrics=["road"], options=alone(), chunk=chunk)
        for chunk in (1, 2, 16)
    ]
    assert len({round(each["road"].value or 0, 6) for each in scores}) == 1

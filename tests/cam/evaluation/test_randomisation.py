"""Cascading randomisation: which weights are random at which stage, and that the model keeps its
own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cam import ClassTarget, Question, explain_batch, explain_in_steps
from cam.errors import CamError, InvalidOption, NonFinite, NotRandomisable
from cam.evaluation.randomisation import Stage, randomised_in_steps, replaced
from cam.explanation import ExplainedImage
from cam.progress import finish
from tests.zoo.convolutional import Small
from tests.zoo.parts import Net
from tests.zoo.transformers import of_tokens


@pytest.fixture
def model() -> Small:
    torch.manual_seed(0)
    return Small().eval()


@pytest.fixture
def image() -> Tensor:
    return torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(1))


def question(method: str = "gradcam", *layers: str) -> Question:
    return Question((ClassTarget(1),), method, layers or ("relu2",))


def run(
    model: nn.Module, image: Tensor, *questions: Question, stages: int = 3, seed: int = 0
) -> list[Stage]:
    answer = partial(explain_batch, model)
    steps = randomised_in_steps(model, image, questions, stages=stages, seed=seed, answer=answer)
    found = finish(steps)
    assert not isinstance(found, CamError)
    return found


def test_the_cascade_begins_with_the_logits_and_ends_with_all(model: Small, image: Tensor) -> None:
    own = {name: each.clone() for name, each in model.state_dict().items()}
    seen: list[set[str]] = []

    def answer(
        images: Tensor, questions: Sequence[Question]
    ) -> Sequence[ExplainedImage | CamError]:
        now = model.state_dict()
        changed = {name for name, each in own.items() if not torch.equal(each, now[name])}
        seen.append({name.partition(".")[0] for name in changed})
        return explain_batch(model, images, questions)

    finish(
        randomised_in_steps(model, image, [question()], stages=3, seed=0, answer=answer),
    )
    assert seen == [{"head"}, {"head", "conv2"}, {"head", "conv2", "conv1"}]


@pytest.mark.parametrize(("stages", "count"), [(1, 1), (2, 2), (3, 3), (9, 3)])
def test_there_are_no_more_stages_than_modules(
    model: Small, image: Tensor, stages: int, count: int
) -> None:
    assert len(run(model, image, question(), stages=stages)) == count


def test_no_stage_is_none(model: Small, image: Tensor) -> None:
    with pytest.raises(InvalidOption, match="stages is 0; it can be 1 or more"):
        run(model, image, question(), stages=0)


def test_weights_are_drawn_with_the_mean_and_deviation_of_their_own(image: Tensor) -> None:
    torch.manual_seed(0)
    head = nn.Linear(2304, 50)
    model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Flatten(), head).eval()
    with torch.no_grad():
        head.weight.add_(5)
    drawn: list[Tensor] = []

    def answer(
        images: Tensor, questions: Sequence[Question]
    ) -> Sequence[ExplainedImage | CamError]:
        drawn.append(head.weight.detach().clone())
        return explain_batch(model, images, questions)

    asked = [question("hirescam", "1")]
    finish(randomised_in_steps(model, image, asked, stages=1, seed=0, answer=answer))
    (random,) = drawn
    own = head.weight
    assert random.mean() == pytest.approx(own.mean().item(), abs=1e-3)
    assert random.std() == pytest.approx(own.std().item(), rel=0.02)
    assert np.corrcoef(random.flatten(), own.detach().flatten())[0, 1] == pytest.approx(0, abs=0.02)


def test_the_seed_decides(model: Small, image: Tensor) -> None:
    asked = replace(question(), signed=True)
    first, again, other = (run(model, image, asked, seed=seed) for seed in (0, 0, 1))
    for (one,), (same,), (different,) in zip(first, again, other, strict=True):
        assert one is not None
        assert same is not None
        assert different is not None
        assert np.array_equal(one, same)
        assert not np.array_equal(one, different)


def test_the_maps_are_those_of_the_changed_model(model: Small, image: Tensor) -> None:
    """Of two methods at two layers, in the order of the questions and of their layers."""
    asked = [question("kpcacam", "relu1", "relu2"), question("eigencam", "relu1", "relu2")]
    (stage,) = run(model, image, *asked, stages=1, seed=3)
    drawn: list[tuple[Tensor, Tensor]] = []

    def answer(
        images: Tensor, questions: Sequence[Question]
    ) -> Sequence[ExplainedImage | CamError]:
        drawn.extend((each, each.data.clone()) for each in model.parameters())
        return explain_batch(model, images, questions)

    finish(randomised_in_steps(model, image, asked, stages=1, seed=3, answer=answer))
    with replaced(model, drawn):
        answers = [explain_batch(model, image[None], [each])[0] for each in asked]
    maps = [
        each.map
        for said in answers
        if isinstance(said, ExplainedImage)
        for each in said.explanations
    ]
    assert [None if each is None else each.shape for each in stage] == [
        (8, 8),
        (4, 4),
        (8, 8),
        (4, 4),
    ]
    for mine, expected in zip(stage, maps, strict=True):
        assert mine is not None
        assert mine == pytest.approx(expected, abs=1e-6)


def test_a_method_of_many_passes_is_asked_of_the_changed_model(model: Small, image: Tensor) -> None:
    (stage,) = run(model, image, question("cam"), question("scorecam"), stages=1)
    drawn: list[tuple[Tensor, Tensor]] = []

    def answer(
        images: Tensor, questions: Sequence[Question]
    ) -> Sequence[ExplainedImage | CamError]:
        drawn.extend((each, each.data.clone()) for each in model.parameters())
        return explain_batch(model, images, questions)

    asked = [question("gradcam")]
    finish(randomised_in_steps(model, image, asked, stages=1, seed=0, answer=answer))
    with replaced(model, drawn):
        said = [
            finish(explain_in_steps(model, image, question(name))) for name in ("cam", "scorecam")
        ]
    for mine, each in zip(stage, said, strict=True):
        assert isinstance(each, ExplainedImage)
        expected = each.explanations[0].map
        assert mine is None if not expected.any() else mine == pytest.approx(expected, abs=1e-6)


def test_weights_of_modules_below_one_that_runs_are_random_too(image: Tensor) -> None:
    """`nn.MultiheadAttention` reads the weights of its projection without running it."""

    model = of_tokens(
        lambda tokens, attention: attention(tokens, tokens, tokens)[0],
        embed=nn.Conv2d(3, 8, 2, 2),
        attention=nn.MultiheadAttention(8, 2, batch_first=True),
        head=nn.Linear(8, 3),
    ).eval()
    own = model.attention.out_proj.weight.detach().clone()
    changed: list[bool] = []

    def answer(
        images: Tensor, questions: Sequence[Question]
    ) -> Sequence[ExplainedImage | CamError]:
        changed.append(not torch.equal(own, model.attention.out_proj.weight))
        return explain_batch(model, images, questions)

    asked = [question("gradcam", "embed")]
    finish(randomised_in_steps(model, image, asked, stages=3, seed=0, answer=answer))
    assert changed == [False, True, True]


def fixed(weights: Tensor) -> Net:
    """A convolution whose weights are a buffer, as a frozen one may have them."""
    return Net(
        lambda x, relu, weights, **buffers: relu(nn.functional.conv2d(x, weights)).mean((2, 3)),
        weights=weights,
        running_mean=torch.randn(4),
        mask=torch.tensor([0.0, -torch.inf, 0.0, -torch.inf]),
        order=torch.arange(4),
        relu=nn.ReLU(),
    ).eval()


def test_buffers_are_weights_but_for_statistics_masks_and_indices(image: Tensor) -> None:
    torch.manual_seed(0)
    model = fixed(torch.randn(4, 3, 2, 2))
    own = {name: each.clone() for name, each in model.state_dict().items()}
    changed: list[set[str]] = []

    def answer(
        images: Tensor, questions: Sequence[Question]
    ) -> Sequence[ExplainedImage | CamError]:
        now = model.state_dict()
        changed.append({name for name, each in own.items() if not torch.equal(each, now[name])})
        return explain_batch(model, images, questions)

    asked = [question("gradcam", "relu")]
    finish(randomised_in_steps(model, image, asked, stages=4, seed=0, answer=answer))
    assert changed == [{"weights"}]
    assert all(torch.equal(own[name], each) for name, each in model.state_dict().items())


@pytest.mark.parametrize(
    "model", [nn.Sequential(nn.AvgPool2d(8), nn.Flatten()), fixed(torch.ones(4, 3, 2, 2))]
)
def test_a_model_without_weights_is_named(model: nn.Module, image: Tensor) -> None:
    with pytest.raises(NotRandomisable, match=f"{type(model).__name__} has no weights that can"):
        run(model.eval(), image, question("gradcam", "relu"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_packed_weights_are_named_with_their_module(model: Small, image: Tensor) -> None:
    """A map that stays because the weights do would seem to show the photo."""
    quantised = torch.ao.quantization.quantize_dynamic(  # type: ignore[no-untyped-call]
        model, {nn.Linear}
    )
    with pytest.raises(NotRandomisable, match=r"weights of module 'head' .* are packed"):
        run(quantised, image, question())


def test_integer_weights_are_named(model: Small, image: Tensor) -> None:
    whole = nn.Parameter(torch.ones(3, dtype=torch.int8), requires_grad=False)
    model.head.register_parameter("packed", whole)
    with pytest.raises(NotRandomisable, match=r"'head.packed' are of type int8"):
        run(model, image, question())


@pytest.mark.parametrize("ended", ["done", "raises"])
def test_a_model_of_inference_mode_gets_its_own_tensors_back(image: Tensor, ended: str) -> None:
    torch.manual_seed(0)
    with torch.inference_mode():
        model = Small().eval()
        model.register_buffer("alias", model.head.weight)  # shared, as tied weights are
    own = dict([*model.named_parameters(), *model.named_buffers()])
    seen: list[bool] = []

    def answer(
        images: Tensor, questions: Sequence[Question]
    ) -> Sequence[ExplainedImage | CamError]:
        seen.append(
            model.head.weight is not own["head.weight"] and model.alias is model.head.weight
        )
        if ended == "raises":
            raise ValueError("no")
        return explain_batch(model, images, questions)

    steps = randomised_in_steps(model, image, [question()], stages=2, seed=0, answer=answer)
    if ended == "raises":
        with pytest.raises(ValueError, match="no"):
            finish(steps)
    else:
        found = finish(steps)
        assert isinstance(found, list)
        (plain,) = explain_batch(model, image[None], [question()])
        assert isinstance(plain, ExplainedImage)
        assert found[-1][0] is None or not np.allclose(found[-1][0], plain.explanations[0].map)
    assert all(seen)
    now = dict([*model.named_parameters(), *model.named_buffers()])
    assert now.keys() == own.keys()
    assert all(now[name] is each for name, each in own.items())


def test_a_model_without_a_map_has_none(model: Small, image: Tensor) -> None:
    def answer(
        images: Tensor, questions: Sequence[Question]
    ) -> Sequence[ExplainedImage | CamError]:
        return [NonFinite("not finite")]

    asked = [question("layercam", "relu1", "relu2")]
    steps = randomised_in_steps(model, image, asked, stages=1, seed=0, answer=answer)
    assert finish(steps) == [[None, None]]


def test_between_two_steps_the_model_has_its_own_weights(model: Small, image: Tensor) -> None:
    own = {name: each.clone() for name, each in model.state_dict().items()}
    asked = [question(), question("scorecam")]
    steps = randomised_in_steps(
        model, image, asked, stages=3, seed=0, answer=partial(explain_batch, model)
    )
    progress = []
    for each in steps:
        progress.append(each.done)
        assert all(torch.equal(own[name], now) for name, now in model.state_dict().items())
    assert progress == sorted(progress)
    assert progress[-1] <= each.total


@pytest.mark.parametrize("ended", ["raises", "closed"])
def test_an_end_before_time_leaves_the_model_as_it_was(
    model: Small, image: Tensor, ended: str
) -> None:
    own = {name: each.clone() for name, each in model.state_dict().items()}

    def answer(
        images: Tensor, questions: Sequence[Question]
    ) -> Sequence[ExplainedImage | CamError]:
        raise ValueError("no")

    steps = randomised_in_steps(model, image, [question()], stages=3, seed=0, answer=answer)
    next(steps)
    if ended == "raises":
        with pytest.raises(ValueError, match="no"):
            next(steps)
    else:
        steps.close()
    assert all(torch.equal(own[name], now) for name, now in model.state_dict().items())
    assert not any(each._forward_pre_hooks for each in model.modules())


def test_replaced_weights_come_back(model: Small) -> None:
    own = model.head.weight.detach().clone()
    zero = torch.zeros_like(own)

    def use() -> None:
        with replaced(model, [(model.head.weight, zero)]):
            assert not model.head.weight.any()
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        use()
    assert torch.equal(model.head.weight, own)


@pytest.mark.parametrize(
    ("asked", "count"),
    [
        (Question((ClassTarget(1),), "layercam", ("relu1", "relu2")), 2),
        (Question((ClassTarget(1),), "refinecam", ("relu1", "relu2")), 1),
        (Question((ClassTarget(1),), "fullgrad", ("relu1", "relu2")), 1),
        (Question((ClassTarget(1),), "layercam", ("relu1", "relu2"), fuse="mean"), 1),
    ],
)
def test_each_question_has_as_many_maps_as_without_an_error(
    model: Small, image: Tensor, asked: Question, count: int
) -> None:
    """A number that is not finite makes an error of each question."""
    (stage,) = run(model, image, asked, stages=1)
    assert len(stage) == count
    (failed,) = run(model, torch.full_like(image, torch.nan), asked, stages=1)
    assert failed == [None] * count

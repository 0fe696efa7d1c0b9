"""How served models' outputs are read: activations, one logit's two classes, tuples."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from starlette.testclient import TestClient

from cam.methods import attention, attnlrp, biases, relevance
from service.core.errors import ConfigError
from service.loading.served_model import load
from service.models.catalog import ModelEntry, read_catalog
from service.settings import Settings
from tests.service.conftest import encoded, running_app, values

FACTORIES = "factory:tests.zoo.factories:"
# A white photo has three channels of 1.
PLAIN: dict[str, Any] = {
    "weights": "none",
    "input_size": 8,
    "mean": (0, 0, 0),
    "std": (1, 1, 1),
}
KEYS = 'weights = "none"\ninput_size = 8\nmean = [0, 0, 0]\nstd = [1, 1, 1]\nlayer = "layer"\n'
MODELS = {
    "binary": ("binary", 'labels = "binary.txt"'),
    "tumour": ("binary", 'labels = "tumour.txt"'),
    "multilabel": ("multilabel", 'activation = "sigmoid"'),
    "softmaxed": ("softmaxed", ""),
    "paired": ("paired", "output = 1"),
    "foreground": ("foreground", 'labels = "binary.txt"'),
}
SURE = 1 / (1 + math.exp(-9))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder: Path = tmp_path_factory.mktemp("reading")
    (folder / "binary.txt").write_text("good\nbad\n")
    (folder / "tumour.txt").write_text("tumour\n")
    (folder / "models.toml").write_text(
        "".join(
            f'[[models]]\nname = "{name}"\nsource = "{FACTORIES}{factory}"\n{KEYS}{more}\n'
            for name, (factory, more) in MODELS.items()
        )
    )
    with running_app(Settings(), read_catalog(folder / "models.toml")) as client:
        yield client


def photo() -> Image.Image:
    """White."""
    return Image.new("RGB", (8, 8), "white")


def ask(client: TestClient, model: str, **parameters: Any) -> tuple[Any, Any]:
    """What is predicted, and the one explanation."""
    image = base64.b64encode(encoded(photo())).decode()
    body = {"instances": [{"image": {"b64": image}}], "parameters": parameters}
    response = client.post(f"/v1/models/{model}:explain", json=body)
    assert response.status_code == 200, response.text
    answer = response.json()
    (prediction,), (explanation,) = answer["predictions"], answer["explanations"]
    return prediction, explanation


@pytest.mark.parametrize(
    ("model", "activation", "reason", "classes", "labels"),
    [
        ("binary", "sigmoid", "the model's output has one logit", 2, ["good", "bad"]),
        ("tumour", "sigmoid", "the model's output has one logit", 2, ["not tumour", "tumour"]),
        ("multilabel", "sigmoid", "it is set in the model's entry", 5, []),
        ("softmaxed", "none", "the model ends in a softmax", 2, []),
        ("paired", "softmax", "the model has several outputs and does not end in", 4, []),
        ("foreground", "sigmoid", "the model's output has one logit", 2, ["good", "bad"]),
    ],
)
def test_a_model_says_its_activation_and_why(
    served: TestClient, model: str, activation: str, reason: str, classes: int, labels: list[str]
) -> None:
    told = served.get(f"/v1/models/{model}").json()
    assert (told["activation"], told["classes"], told["labels"]) == (activation, classes, labels)
    assert told["activation_reason"].startswith(reason)


@pytest.mark.parametrize("method", ["gradcam", "cam", "occlusion", "eigencam", "gradient"])
@pytest.mark.parametrize("model", ["binary", "tumour"])
def test_a_logit_of_minus_nine(served: TestClient, model: str, method: str) -> None:
    predicted, explained = ask(served, model, method=method)
    negative, positive = predicted["classes"]
    assert (negative["index"], positive["index"]) == (0, 1)
    assert negative["label"] == {"binary": "good", "tumour": "not tumour"}[model]
    assert (negative["score"], positive["score"]) == pytest.approx((9, -9), rel=1e-5)
    assert negative["probability"] == pytest.approx(SURE, rel=1e-6)
    assert positive["probability"] == pytest.approx(1 - SURE, rel=1e-3)
    assert explained["target"]["index"] == 0
    assert explained["target"]["probability"] == pytest.approx(SURE, rel=1e-6)


def test_the_positive_class_by_its_name(served: TestClient) -> None:
    _, explained = ask(served, "tumour", target="tumour", method="occlusion", budget=9, signed=True)
    assert explained["target"]["probability"] == pytest.approx(1 - SURE, rel=1e-3)
    # Where a part is hidden, it is likelier that there is one: all of the map is against it.
    assert (values(explained) < 128).all()
    _, explained = ask(served, "tumour", target={"class": "tumour", "of": "probability"})
    assert explained["target"]["score"] == pytest.approx(1 - SURE, rel=1e-3)


@pytest.mark.parametrize(
    ("model", "score", "probability"),
    [("multilabel", math.log(0.51 / 0.49), 0.51), ("softmaxed", 0.51, 0.51)],
)
def test_probabilities_are_the_models_own(
    served: TestClient, model: str, score: float, probability: float
) -> None:
    predicted, explained = ask(served, model, target=0)
    for found in (predicted["classes"][0], explained["target"]):
        assert (found["score"], found["probability"]) == pytest.approx((score, probability))
    _, rise = ask(served, model, target=0, method="rise", budget=4)
    assert rise["target"]["probability"] == pytest.approx(probability)


def test_logits_beside_features(served: TestClient) -> None:
    predicted, explained = ask(served, "paired")
    assert [each["score"] for each in predicted["classes"]] == pytest.approx([24, 18, 6, -12])
    assert explained["target"]["index"] == 3


def test_a_mask_is_where_the_logit_is_above_zero(served: TestClient) -> None:
    """The left quarter is white, the rest black: logits of 0.5 and −0.5."""
    picture = photo()
    picture.paste("black", (2, 0, 8, 8))
    image = base64.b64encode(encoded(picture)).decode()
    body = {
        "instances": [{"image": {"b64": image}}],
        "parameters": {"target": ["bad", "good"], "fit": "squash"},
    }
    answer = served.post("/v1/models/foreground:explain", json=body).json()
    shares = {each["label"]: each["share"] for each in answer["predictions"][0]["segments"]}
    assert shares == {"good": 0.75, "bad": 0.25}
    bad, good = (each["target"] for each in answer["explanations"])
    assert (bad["score"], good["score"]) == pytest.approx((16 * 0.5, 48 * 0.5))
    sure = 1 / (1 + math.exp(-0.5))
    assert (bad["probability"], good["probability"]) == pytest.approx((sure, sure))


@pytest.mark.parametrize(
    ("factory", "given", "words"),
    [
        ("paired", {}, r"returns 2 tensors that could be its logits: 0 of shape \(1, 3\), 1 of"),
        ("paired", {"output": "logits"}, "has no 'logits': it is a tuple with 0, 1"),
        ("binary", {"output": 1}, "is one tensor and has no 1; leave out output"),
        ("binary", {"activation": "softmax"}, "key 'activation': .*one logit is always 1"),
    ],
)
def test_a_mistake_is_named_at_load(factory: str, given: dict[str, Any], words: str) -> None:
    entry = ModelEntry(name="m", source=f"{FACTORIES}{factory}", **PLAIN, **given)
    with pytest.raises(ConfigError, match=words):
        load(entry)


def test_labels_that_are_too_many_say_which_would_do(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("a\nb\nc\n")
    labels = str(tmp_path / "labels.txt")
    entry = ModelEntry(name="m", source=f"{FACTORIES}binary", labels=labels, **PLAIN)
    with pytest.raises(ConfigError, match="2 classes, a negative and a positive one, for its one"):
        load(entry)


def test_one_label_is_too_few_for_two_outputs(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("tumour\n")
    labels = str(tmp_path / "labels.txt")
    entry = ModelEntry(name="m", source=f"{FACTORIES}softmaxed", labels=labels, **PLAIN)
    with pytest.raises(ConfigError, match=r"has 1 label, but the model has 2 classes$"):
        load(entry)


def test_the_fingerprint_knows_the_activation() -> None:
    entries = [
        ModelEntry(name="m", source=f"{FACTORIES}paired", output=output, **PLAIN, activation=each)
        for output, each in ((1, "auto"), (1, "softmax"), (1, "sigmoid"), (0, "softmax"))
    ]
    auto, same, other, features = (load(entry).fingerprint for entry in entries)
    assert auto == same
    assert len({auto, other, features}) == 3


@pytest.mark.parametrize(
    ("factory", "given", "words"),
    [
        ("paired", {"output": 1}, "as logits of 4 classes (softmax)"),
        ("paired", {"output": 1, "kind": "classes"}, None),
        ("paired", {"output": 1, "activation": "softmax"}, None),
        ("paired", {"output": 1, "kind": "value"}, None),
        ("softmaxed", {}, None),  # probabilities
        ("binary", {}, "as logits of 2 classes (sigmoid)"),
        ("foreground", {}, "as logits of 2 classes at each pixel (sigmoid)"),
    ],
)
def test_an_output_that_nothing_names_is_told_as_it_was_read(
    factory: str, given: dict[str, Any], words: str | None
) -> None:
    found = load(ModelEntry(name="m", source=f"{FACTORIES}{factory}", **PLAIN, **given))
    if words is None:
        assert found.unnamed is None
    else:
        assert found.unnamed is not None
        assert words in found.unnamed
        assert "labels, kind or activation of its entry says it" in found.unnamed
    if given.get("kind") == "value":
        assert (found.kind, found.activation) == ("value", "none")


def test_how_it_was_read_stands_in_every_answer(served: TestClient) -> None:
    told = "nothing says what the model's outputs are"
    assert told in " ".join(ask(served, "paired")[1]["warnings"])
    assert told not in " ".join(ask(served, "multilabel")[1]["warnings"])


@pytest.mark.parametrize(
    ("factory", "key", "words"),
    [
        ("gray", "source", "takes images of 1 channel, and photos have 3 (RGB)"),
        ("sized", "input_size", "runs with input_size = 48"),
        ("picky", "source", "fails on an input of shape (1, 3, 8, 8): ValueError: not today"),
        ("in_place", "source", "runs on an input of shape (1, 3, 8, 8), but fails with hooks"),
        ("coder", "activation", "the shape of its input, (3, 8, 8)"),
        ("wrapper", "source", "a YOLO of Ultralytics wraps the network for predictions"),
    ],
)
def test_what_fails_is_named_and_not_the_size(factory: str, key: str, words: str) -> None:
    entry = ModelEntry(name="m", source=f"{FACTORIES}{factory}", **PLAIN)
    with pytest.raises(ConfigError, match=f"key '{key}': .*{re.escape(words)}"):
        load(entry)


def test_a_factory_that_returns_a_module_in_training_mode_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    load(ModelEntry(name="m", source=f"{FACTORIES}in_training", **PLAIN))
    assert "in training mode (dropout, batch norm); it is served in evaluation mode" in caplog.text
    caplog.clear()
    load(ModelEntry(name="m", source=f"{FACTORIES}binary", **PLAIN))
    assert "in training mode" not in caplog.text


def test_a_check_that_raises_makes_its_method_unsuited_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As lrp's did with another version of its library: the whole model was refused."""
    entry = ModelEntry(name="m", source=f"{FACTORIES}binary", **PLAIN)
    usual = load(entry).unsuited

    def raising(*given: object) -> str | None:
        raise ValueError("batch_norm eps must be positive")

    for module, name in (
        (relevance, "ruled"),
        (attnlrp, "require_rules"),
        (attention, "attention_problems"),
        (biases, "require_biases"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, raising)
            found = load(entry).unsuited
        wrong = {method for method, reason in found.items() if "eps must be positive" in reason}
        assert wrong
        assert {key: said for key, said in found.items() if key not in wrong} == {
            key: said for key, said in usual.items() if key not in wrong
        }

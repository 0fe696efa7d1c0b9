"""Image–text models of Hugging Face by their folder: the classes are the entry's prompts."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skimage.data
import torch
from PIL import Image

from service.core.errors import ConfigError
from service.loading.served_model import check, load
from service.models.catalog import ModelEntry, read_catalog
from service.settings import Settings
from tests.service.conftest import running_app, values
from tests.service.live import ROOT, serving
from tests.zoo.image_text import image_processor, image_text_model, tokenizer

PAGE = (ROOT / "docs" / "language.md").read_text(encoding="utf-8").partition("# Answers")[0]
PHOTO = Image.fromarray(skimage.data.coffee())
PROMPTS = 'prompts = ["a cat", "the remote control"]'


def saved(folder: Path, kind: str = "CLIP", *, with_tokenizer: bool = True) -> Path:
    image_text_model(kind).save_pretrained(folder)
    image_processor().save_pretrained(folder)
    if with_tokenizer:
        tokenizer().save_pretrained(folder)
    return folder


def entry(folder: Path, lines: str = PROMPTS) -> ModelEntry:
    file = folder.parent / "models.toml"
    file.write_text(f'[[models]]\nname = "m"\nsource = "hf:{folder.name}"\n{lines}\n')
    (read,) = read_catalog(file)
    return read


@pytest.mark.parametrize(("kind", "activation"), [("CLIP", "softmax"), ("Siglip", "sigmoid")])
def test_prompts_are_the_labels(tmp_path: Path, kind: str, activation: str) -> None:
    served = load(entry(saved(tmp_path / "clip", kind), PROMPTS + '\ntemplates = ["photo of {}"]'))
    assert served.labels.names == ("a cat", "the remote control")
    assert (served.kind, served.activation, served.classes) == ("classes", activation, 2)
    image = torch.randn(1, 3, 64, 64)
    tokens = tokenizer()(
        ["photo of a cat", "photo of the remote control"],
        padding="max_length",
        max_length=16,
        return_tensors="pt",
    )
    theirs = image_text_model(kind)(pixel_values=image, **tokens).logits_per_image
    torch.testing.assert_close(served.module(image), theirs)


@pytest.mark.slow
def test_other_prompts_are_another_model(tmp_path: Path) -> None:
    folder = saved(tmp_path / "clip")
    one, other = (
        load(entry(folder, f'{PROMPTS}\ntemplates = ["{template}"]'))
        for template in ("{}", "a photo of {}")
    )
    assert one.fingerprint != other.fingerprint


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("", "key 'prompts': a CLIPModel needs prompts: its classes, in words"),
        ('prompts = ["a cat", "a cat"]', "key 'prompts': the prompt 'a cat' is there twice"),
        (f'prompts = ["{"cat " * 99}"]', "has 100 tokens; the text encoder reads at most 16"),
        (PROMPTS + '\ntemplates = ["x"]', r"the template 'x' has not one \{\}"),
        ("prompts = []", "key 'prompts': .* is not allowed"),
        (PROMPTS + '\nweights = "a.safetensors"', "has the weights of its folder"),
    ],
)
def test_what_cannot_be_is_a_sentence(tmp_path: Path, lines: str, words: str) -> None:
    folder = saved(tmp_path / "clip")

    def served() -> None:
        read = entry(folder, lines)
        check(read)
        load(read)

    with pytest.raises(ConfigError, match=words):
        served()


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no tokenizer"):
        load(entry(saved(tmp_path / "clip", with_tokenizer=False)))


def test_prompts_are_for_image_text_models(tmp_path: Path) -> None:
    toml = tmp_path / "models.toml"
    toml.write_text(f'[[models]]\nname = "m"\nsource = "timm:resnet18"\n{PROMPTS}\n')
    with pytest.raises(ConfigError, match="key 'prompts': prompts are the classes of image–text"):
        check(read_catalog(toml)[0])


def asked(client: Any, target: Any, name: str = "m", **parameters: Any) -> Any:
    return client.post(
        f"/v1/models/{name}:explain",
        json={
            "instances": [{"image": {"b64": _png()}}],
            "parameters": {"target": target, "size": "layer", "output": "values", **parameters},
        },
    )


@pytest.mark.slow
def test_a_request_asks_for_a_text(tmp_path: Path) -> None:
    resnet = ModelEntry(name="r", source="timm:test_resnet", weights="none")
    with running_app(Settings(), [entry(saved(tmp_path / "clip")), resnet]) as client:
        told = [client.get(f"/v1/models/{name}").json()["takes_text"] for name in ("m", "r")]
        assert told == [True, False]
        answer = asked(
            client,
            [
                {"text": "a cat"},
                "a cat",
                {"text": "a cat", "minus": "the remote control"},
                {"class": "a cat", "minus": "the remote control"},
                {"text": "a dog", "against": True},
            ],
        )
        assert answer.status_code == 200, answer.text
        text, label, contrast, classes, against = answer.json()["explanations"]
        np.testing.assert_array_equal(values(text), values(label))
        assert text["target"]["text"] == text["target"]["label"] == "a cat"
        assert text["target"]["score"] == pytest.approx(label["target"]["score"], rel=1e-4)
        assert "probability" not in text["target"]
        assert contrast["target"]["minus_text"] == "the remote control"
        assert contrast["target"]["score"] == pytest.approx(classes["target"]["score"], rel=1e-3)
        assert against["target"]["against"] is True
        whole, without, told = asked(
            client,
            [
                {"text": "the remote control"},
                {"text": "the control"},
                {"text": "the remote control", "words": True},
            ],
        ).json()["explanations"]
        np.testing.assert_array_equal(values(whole), values(told))
        assert "words" not in whole["target"]
        counted = {one["word"]: one["importance"] for one in told["target"]["words"]}
        assert list(counted) == ["the", "remote", "control"]
        fall = whole["target"]["score"] - without["target"]["score"]
        assert counted["remote"] == pytest.approx(fall, abs=1e-3)
        for method in ("legrad", "occlusion"):
            done = asked(client, {"text": "a dog"}, method=method)
            assert done.status_code == 200, done.text

        for target, status, words in (
            ({"text": "xylophone"}, 422, "knows no word of 'xylophone'"),
            ({"text": "cat " * 100}, 422, "has 101 tokens; the text encoder reads at most 16"),
            ({"text": "cat " * 10_000}, 422, "at most 1000 characters"),
            ({"text": ""}, 422, "at least 1 character"),
            ({"text": "a\x00cat"}, 422, "has control characters"),
            ({"text": "a cat", "minus": "a cat"}, 422, "cannot be contrasted with itself"),
            ({"text": "a cat", "minus": 1}, 422, "minus of a target with text is a text, too"),
            ({"text": "a cat", "class": 1}, 422, "allows no other keys than minus, against"),
            ({"text": "cat", "words": True}, 422, "'cat' has 1 word; the importance of words"),
            ({"class": "a cat", "words": True}, 422, "words belongs to a target with text"),
        ):
            refused = asked(client, target)
            assert refused.status_code == status, (target, refused.text)
            assert words in refused.json()["detail"]
            assert refused.json()["type"].startswith("urn:gradcam-service:invalid-")
        refused = asked(client, {"text": "a cat"}, "r")
        assert refused.status_code == 422
        assert "model 'r' takes no text" in refused.json()["detail"]


def own(client: Any, verb: str, prompts: Any, name: str = "m", **parameters: Any) -> Any:
    return client.post(
        f"/v1/models/{name}:{verb}",
        json={
            "instances": [{"image": {"b64": _png()}}],
            "parameters": {"prompts": prompts, **parameters},
        },
    )


LISTED = ["a dog", "the cat", "a photo of a cat", "to drink from", "control"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["CLIP", "Siglip"])
def test_a_request_has_prompts_of_its_own(tmp_path: Path, kind: str) -> None:
    """Its answers are those of a model whose entry has these prompts."""
    folder = saved(tmp_path / "clip", kind)
    same = entry(folder, f"prompts = {LISTED}").model_copy(update={"name": "same"})
    resnet = ModelEntry(name="r", source="timm:test_resnet", weights="none")
    with running_app(Settings(), [entry(folder), same, resnet]) as client:
        found, expected = own(client, "predict", LISTED), own(client, "predict", None, "same")
        assert found.status_code == 200, found.text
        classes = found.json()["predictions"][0]["classes"]
        assert [one["label"] for one in classes] == [
            one["label"] for one in expected.json()["predictions"][0]["classes"]
        ]
        for one, other in zip(classes, expected.json()["predictions"][0]["classes"], strict=True):
            assert one["probability"] == pytest.approx(other["probability"], rel=1e-4)
        for method in ("gradcam", "legrad", "scorecam", "rise"):
            given: Any = {"method": method, "output": "values", "size": "layer", "budget": 40}
            for target in (None, "a dog", {"class": "a dog", "minus": "the cat"}, ["control", 0]):
                mine = own(client, "explain", LISTED, target=target, **given)
                theirs = own(client, "explain", None, "same", target=target, **given)
                assert mine.status_code == 200, mine.text
                for one, other in zip(
                    mine.json()["explanations"], theirs.json()["explanations"], strict=True
                ):
                    assert one["target"]["label"] == other["target"]["label"]
                    assert one["target"]["score"] == pytest.approx(other["target"]["score"], 1e-3)
        repeated = client.post(
            "/v1/models/m:predict",
            params={"prompts": LISTED[:2]},
            content=base64.b64decode(_png()),
            headers={"content-type": "image/png"},
        )
        assert {one["label"] for one in repeated.json()["predictions"][0]["classes"]} == {
            *LISTED[:2]
        }
        scored = own(client, "explain", LISTED, target="a dog", evaluate=["deletion"])
        assert scored.status_code == 200, scored.text
        assert own(client, "activations", LISTED, target="a dog").status_code == 200
        again = own(client, "predict", None).json()["predictions"][0]["classes"]
        assert {one["label"] for one in again} == {"a cat", "the remote control"}

        alone = own(client, "predict", ["a dog"])
        if kind == "CLIP":
            assert "probability of 'a dog' alone is always 1" in alone.json()["detail"]
            assert alone.json()["pointer"] == "/parameters/prompts"
        else:
            no, yes = sorted(
                alone.json()["predictions"][0]["classes"], key=lambda one: str(one["label"])
            )[::-1]
            both = {one["label"]: one["probability"] for one in classes}
            assert (no["label"], yes["label"]) == ("not a dog", "a dog")
            assert yes["probability"] == pytest.approx(both["a dog"], rel=1e-4)
        for prompts, name, words in (
            (["a dog"] * 2, "m", "the prompt 'a dog' is there twice"),
            (["xylophone", "a dog"], "m", "knows no word of 'xylophone'"),
            ([" ", "a dog"], "m", "a prompt is empty"),
            ([f"{number} cat" for number in range(500)], "m", "at most 100 items"),
            ([], "m", "at least 1 item"),
            (LISTED, "r", "model 'r' takes no prompts"),
        ):
            refused = own(client, "explain", prompts, name)
            assert refused.status_code == 422, refused.text
            assert words in refused.json()["detail"], refused.text
        unknown = own(client, "explain", LISTED, target="a cap")
        assert "the nearest labels are 'the cat'" in unknown.json()["detail"]


@pytest.mark.slow
def test_every_client_explains_a_prompt(tmp_path: Path) -> None:
    entry(saved(tmp_path / "clip"))
    with serving(GRADCAM_MODELS=str(tmp_path / "models.toml")) as (_, http):
        said: Any = http.post(
            "/v1/models/m:explain",
            json={
                "instances": [{"image": {"b64": _png()}}],
                "parameters": {"target": ["a cat", {"class": "the remote control", "minus": 0}]},
            },
        ).json()
        assert {one["label"] for one in said["predictions"][0]["classes"]} == {
            "a cat",
            "the remote control",
        }
        first, second = said["explanations"]
        assert first["target"]["label"] == "a cat"
        assert second["target"]["minus"]["label"] == "a cat"
        unknown = http.post(
            "/v1/models/m:explain",
            json={
                "instances": [{"image": {"b64": _png()}}],
                "parameters": {"target": "a cap"},
            },
        )
        assert unknown.status_code == 422
        assert "a cat" in unknown.json()["detail"]


@pytest.mark.slow
def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/language.md, with a tiny model in place of the one that would need the internet."""
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "clip")
    embedded, toml, laion = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "words.toml").write_text(embedded)
    (words,) = read_catalog(tmp_path / "words.toml")
    assert load(words).labels.names[1] == "a spoon"
    (tmp_path / "models.toml").write_text(re.sub(r'"hf:[^"]*"', '"hf:clip"', toml))
    (read,) = read_catalog(tmp_path / "models.toml")
    assert load(read).labels.names == ("a cat", "a remote control", "a photo")
    (tmp_path / "laion.toml").write_text(laion)
    check(read_catalog(tmp_path / "laion.toml")[0])
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    space: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(block, space)
    assert space["cat"].target.index == 0
    assert space["contrast"].target.minus == 1


def _png() -> str:
    stream = io.BytesIO()
    PHOTO.resize((96, 64)).save(stream, "PNG")
    return base64.b64encode(stream.getvalue()).decode()

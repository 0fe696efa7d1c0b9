"""Vision–language models, served: `:answer` over HTTP, by the command and by the client."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from PIL import Image
from typer.testing import CliRunner

from cam import AnswerOptions, VisionLanguageModel, explain_answer
from cam.answers.methods import METHODS
from service.backend.work import Running
from service.cli.main import cli
from service.client import Client
from service.core.errors import ConfigError
from service.features.answers import ask
from service.features.answers.work import AnswerQuestion
from service.http import reception
from service.loading.served_model import check, load
from service.models.catalog import EMBEDDED, ModelEntry, read_catalog
from service.settings import Settings
from service.sources.embedded.build import SHAPES
from tests.packages import install_example
from tests.scenes import Scene, Thing, make_scene
from tests.service.conftest import encoded, running_app, values
from tests.service.live import ROOT, serving
from tests.service.test_readme import alike
from tests.waiting import at_rest, until
from tests.zoo.language import family

SCENE = Scene(
    (Thing("red", "circle", 0.25, 0.4, 0.16), Thing("blue", "square", 0.75, 0.6, 0.17)),
    "left of",
    80,
)
PICTURE = encoded(Image.fromarray(SCENE.draw(192)))
QUESTION = "What is in the picture?"
SAID = "a red circle left of a blue square on a table"
PAGE = (ROOT / "docs" / "language.md").read_text(encoding="utf-8").partition("# Answers")[2]
AUDITS = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
SHAPES_ENTRY = ModelEntry(name="shapes", source=SHAPES)


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with running_app(Settings(), [SHAPES_ENTRY, EMBEDDED]) as running:
        yield running


def post(client: Any, model: str = "shapes", accept: str = "application/json", **query: Any) -> Any:
    headers = {"Content-Type": "image/png", "Accept": accept}
    path = f"/v1/models/{model}:answer"
    return client.post(path, content=PICTURE, params=query, headers=headers)


@pytest.mark.slow
def test_each_word_lies_where_it_is_seen(client: TestClient) -> None:
    response = post(client, question=QUESTION)
    assert response.status_code == 200, response.text
    (answer,) = response.json()["answers"]
    assert (answer["text"], answer["method"], answer["finished"]) == (SAID, "tam", True)
    words = {word["text"]: word for word in answer["words"]}
    assert [word["text"] for word in answer["words"]] == SAID.split()
    for text, thing in (("red", 0), ("circle", 0), ("blue", 1), ("square", 1)):
        word, mask = words[text], SCENE.things[thing].mask(192)
        away = np.argwhere(mask) - (word["peak"]["y"], word["peak"]["x"])
        assert np.hypot(*away.T).min() <= 192 * 15 / 224, text  # as in the pointing game
        assert word["heatmap"]["shape"] == [12, 12]
        assert word["evidence"] > 0.5
        assert word["from_language"] is False
    assert words["table"]["from_language"] is True
    first = answer["tokens"][0]
    assert first["alternatives"][0]["probability"] == first["probability"]
    assert answer["image_tokens"] == 144
    assert answer["memory_bytes"] > 0


def test_tokens_are_streamed_as_they_are_said(client: TestClient) -> None:
    response = post(client, accept="application/x-ndjson", question=QUESTION)
    lines = [json.loads(line) for line in response.text.splitlines()]
    *tokens, whole = lines
    assert "".join(line["token"]["text"] for line in tokens).strip() == whole["text"] == SAID
    assert [line["number"] for line in tokens] == list(range(len(tokens)))
    assert all(line["heatmap"]["shape"] == [12, 12] for line in tokens)
    late = post(client, accept="application/x-ndjson", question=QUESTION, method="gradcam")
    first, *_, progress, whole = [json.loads(line) for line in late.text.splitlines()]
    assert "heatmap" not in first
    assert progress["method"] == "gradcam"
    assert whole["words"][1]["heatmap"]["shape"] == [12, 12]


def test_a_word_a_phrase_and_the_sheet_are_pictures(client: TestClient) -> None:
    one = post(client, accept="image/png", question=QUESTION, word="Red circle")
    assert Image.open(BytesIO(one.content)).size == (192, 192)
    sheet = Image.open(BytesIO(post(client, accept="image/jpeg", question=QUESTION).content))
    assert sheet.width > 900
    told = post(client, question=QUESTION, word="blue square", output="overlay", size="image")
    (word,) = told.json()["answers"][0]["words"]
    assert (word["text"], word["tokens"]) == ("blue square", 2)
    assert values(word).shape == (192, 192)
    assert Image.open(BytesIO(base64.b64decode(word["overlay"]["data"]))).size == (192, 192)


def test_the_map_of_a_word_is_scored(client: TestClient) -> None:
    query: dict[str, Any] = {"question": QUESTION, "word": "blue", "evaluate": True}
    (good,) = post(client, **query).json()["answers"][0]["words"]
    assert good["scores"]["insertion"] > 0.5 > good["scores"]["deletion"]
    assert "pointing" not in good["scores"]
    rows, columns = np.nonzero(SCENE.things[1].mask(192))
    blue = [int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1]
    around = [blue[0] - 15, blue[1] - 15, blue[2] + 15, blue[3] + 15]
    white = encoded(Image.fromarray(np.uint8(255 * SCENE.things[0].mask(192))))
    for region, hit in (
        ({"box": around}, 1),
        ({"mask": {"b64": base64.b64encode(white).decode()}}, 0),  # the red circle
    ):
        instance = {"image": {"b64": base64.b64encode(PICTURE).decode()}, "region": region}
        body = {"instances": [instance], "parameters": query}
        told = client.post("/v1/models/shapes:answer", json=body).json()
        (word,) = told["answers"][0]["words"]
        assert word["scores"]["pointing"] == hit
        assert (word["scores"]["energy"] > 0.5) is bool(hit)
    (word,) = post(client, **query, region=json.dumps({"box": around})).json()["answers"][0][
        "words"
    ]
    assert word["scores"]["pointing"] == 1


@pytest.mark.slow
def test_every_method_is_answered(client: TestClient) -> None:
    for method in METHODS:
        query: dict[str, Any] = {"question": QUESTION, "word": "blue", "method": method}
        (answer,) = post(client, **query).json()["answers"]
        assert answer["method"] == method
        assert values(answer["words"][0]).max() > 0
        assert len(answer["warnings"]) == (method in ("attention", "rollout"))


def test_the_sheet_of_the_page_is_what_the_service_makes(client: TestClient) -> None:
    made = client.post(
        "/v1/models/shapes:answer",
        params={"question": QUESTION},
        content=(ROOT / "docs" / "shapes.png").read_bytes(),
        headers={"Content-Type": "image/png", "Accept": "image/png"},
    )
    assert alike(made.content, (ROOT / "docs" / "overlays" / "words.png").read_bytes())


def test_a_given_answer_and_several_questions(client: TestClient) -> None:
    image = {"b64": base64.b64encode(PICTURE).decode()}
    response = client.post(
        "/v1/models/shapes:answer",
        json={
            "instances": [
                {"image": image, "id": "a", "answer": "a green cross"},
                {"image": image, "question": "what is left of the blue square?"},
                {"image": image, "question": "what is a dragon?"},
            ],
            "parameters": {"question": QUESTION, "normalize": "none", "alternatives": 0},
        },
    )
    given, left, failed = response.json()["answers"]
    assert (given["id"], given["text"], given["given"]) == ("a", "a green cross", True)
    assert given["tokens"][1]["probability"] < 0.01
    assert given["tokens"][0]["alternatives"] == []
    assert given["words"][0]["heatmap"]["encoding"] == "float32"
    assert left["text"] == "a red circle"
    assert "does not know 'dragon?'" in failed["error"]


def test_http_has_the_librarys_map(client: TestClient) -> None:
    served = load(SHAPES_ENTRY)
    assert isinstance(served.answering, VisionLanguageModel)
    photo = np.asarray(Image.open(BytesIO(PICTURE)).convert("RGB"))
    found = explain_answer(served.answering, photo, QUESTION, AnswerOptions(max_tokens=3))
    (answer,) = post(client, question=QUESTION, max_tokens=3, normalize="none").json()["answers"]
    assert answer["finished"] is False
    assert "cut off after 3 tokens" in answer["warnings"][0]
    for word, mine in zip(answer["words"], found.words, strict=True):
        assert mine.map is not None
        np.testing.assert_allclose(values(word), mine.map, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("query", "status", "sentence"),
    [
        ({}, 422, "question is empty; ask one"),
        ({"question": "  "}, 422, "question is empty"),
        ({"question": "what\x00"}, 422, "has control characters"),
        ({"question": "what is <image>?"}, 422, "which is a special token of the model"),
        ({"question": "what " * 5000}, 422, "at most 1000 characters"),
        ({"question": "what " * 199}, 422, "tokens; the model reads at most 256"),
        ({"question": "is", "method": "scorecam"}, 422, "'tam', 'logits', 'gradcam'"),
        ({"question": "is", "max_tokens": 513}, 422, "max_tokens is '513'"),
        ({"question": "is", "answer": "<eos>"}, 422, "special token"),
        ({"question": QUESTION, "word": "dragon"}, 422, "the answer does not have"),
        ({"question": "is", "evaluate": True}, 422, "evaluate scores the map of one word"),
        ({"question": "is", "method": "eagle"}, 422, "method 'eagle' explains one word; name it"),
        (
            {"question": "is", "region": '{"box": [0, 0, 9, 9]}'},
            422,
            "region is for the scores of a word",
        ),
        (
            {"question": "is", "word": "a", "evaluate": True, "region": '{"box": [0, 0, 9, 999]}'},
            422,
            "the box (0, 0, 9, 999) reaches outside the photo, which has 192 × 192 pixels",
        ),
        ({"question": "is", "colormap": "pink"}, 422, "the colormaps are"),
        ({"question": "is", "layer": "a"}, 422, "there is no parameter 'layer'"),
    ],
)
def test_every_mistake_is_a_sentence(
    client: TestClient, query: dict[str, Any], status: int, sentence: str
) -> None:
    refused = post(client, **query)
    assert refused.status_code == status, refused.text
    assert sentence in refused.json()["detail"]
    assert refused.headers["content-type"] == "application/problem+json"


def test_time_is_left_for_the_passes_of_a_method(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    for module in (ask, reception):
        monkeypatch.setattr(module, "monotonic", lambda: now)
    left: dict[str, float] = {}
    answered = AnswerQuestion.steps

    def noted(work: AnswerQuestion, running: Running) -> Any:
        assert work.until
        left[work.options.method] = work.until - now
        return answered(work, running)

    monkeypatch.setattr(AnswerQuestion, "steps", noted)
    for method in ("tam", "gradcam"):
        assert post(client, question=QUESTION, method=method).status_code == 200
    assert left["gradcam"] == pytest.approx(left["tam"] / 8)


def test_a_long_thin_photo_keeps_its_height(client: TestClient) -> None:
    found = client.post(
        "/v1/models/shapes:answer",
        params={"question": QUESTION},
        content=encoded(Image.new("RGB", (3000, 20))),
        headers={"Content-Type": "image/png"},
    )
    assert found.status_code == 200, found.text


def test_the_region_is_what_is_wrong(client: TestClient) -> None:
    region = '{"box": [0, 0, 9, 999]}'
    refused = post(client, question="is", word="a", evaluate=True, region=region)
    assert refused.json()["pointer"] == "/query/region"


def test_a_model_does_its_own_work_alone(client: TestClient) -> None:
    for verb in ("predict", "explain", "evaluate", "activations"):
        refused = client.post(
            f"/v1/models/shapes:{verb}", content=PICTURE, headers={"Content-Type": "image/png"}
        )
        assert refused.status_code == 422
        assert "ask it at :answer" in refused.json()["detail"]
    refused = post(client, model="efficientnet-lite0", question="a")
    assert refused.status_code == 422
    assert "answers no questions, but predicts classes" in refused.json()["detail"]
    told = client.get("/v1/models/shapes").json()
    assert (told["kind"], told["classes"], told["default_layer"]) == ("answers", 0, None)
    assert not any(method["available"] for method in told["methods"])
    assert client.get("/v1/models/shapes/layers").json() == {"layers": []}


def test_nothing_that_is_said_becomes_markup(client: TestClient) -> None:
    refused = post(client, question="<script>alert(1)</script>")
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.json()["type"] == "urn:gradcam-service:invalid-parameter"
    assert refused.json()["detail"].startswith("the model's tokenizer does not know '<script>")


def saved(folder: Path, name: str = "llava") -> ModelEntry:
    model, processor = family(name)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    file = folder.parent / "models.toml"
    file.write_text(f'[[models]]\nname = "m"\nsource = "hf:{folder.name}"\n')
    (entry,) = read_catalog(file)
    return entry


@pytest.mark.parametrize("name", ["llava", "qwen2.5-vl"])
def test_a_folder_of_hugging_face(tmp_path: Path, name: str) -> None:
    entry = saved(tmp_path / "model", name)
    check(entry)
    with running_app(Settings(), [entry]) as client:
        response = post(client, model="m", question="what is in the picture ?", max_tokens=4)
        assert response.status_code == 200, response.text
        (answer,) = response.json()["answers"]
        assert len(answer["tokens"]) <= 4


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ('prompts = ["a cat"]', "key 'prompts'"),
        ('layer = "layers.1"', "key 'layer': a model that answers questions takes no layer"),
        ('labels = "imagenet"', "takes no labels"),
    ],
)
def test_entries_that_mean_nothing_are_refused(tmp_path: Path, lines: str, sentence: str) -> None:
    saved(tmp_path / "model")
    file = tmp_path / "models.toml"
    file.write_text(file.read_text() + lines + "\n")
    (entry,) = read_catalog(file)
    with pytest.raises(ConfigError, match=sentence):
        check(entry)


def test_a_folder_without_a_processor_is_refused(tmp_path: Path) -> None:
    entry = saved(tmp_path / "model")
    (tmp_path / "model" / "processor_config.json").unlink()
    (tmp_path / "model" / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match="has no processor that can be used"):
        load(entry)


def test_the_command_writes_a_sheet(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text(f'[[models]]\nname = "s"\nsource = "{SHAPES}"\n')
    (tmp_path / "scene.png").write_bytes(PICTURE)
    options = ["--models", str(tmp_path / "models.toml"), "--output", str(tmp_path / "out")]
    command = ["answer", str(tmp_path / "scene.png"), "--question", QUESTION, *options]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 0, done.output
    assert SAID in " ".join(done.output.split())
    assert "language" in done.output
    with Image.open(tmp_path / "out" / "scene.tam.png") as sheet:
        assert sheet.width > 900
    written = json.loads((tmp_path / "out" / "scene.tam.json").read_text())
    assert written["text"] == SAID
    assert any(word["from_language"] for word in written["words"])
    failed = CliRunner().invoke(cli, [*command, "--word", "dragon"])
    assert failed.exit_code == 1
    assert "dragon" in failed.output


def audited(folder: Path, *options: str, photos: int = 20) -> Any:
    (folder / "photos").mkdir()
    rng = np.random.default_rng(5)
    for number in range(photos):
        drawn = Image.fromarray(make_scene(rng).draw(96))
        (folder / "photos" / f"{number}.png").write_bytes(encoded(drawn))
    (folder / "models.toml").write_text(f'[[models]]\nname = "s"\nsource = "{SHAPES}"\n')
    files = ["--models", str(folder / "models.toml"), "--output", str(folder / "out")]
    gradcam = Path(sys.executable).with_name("gradcam")
    command: list[str | Path] = [
        gradcam,
        "audit",
        folder / "photos",
        "--question",
        QUESTION,
        *files,
        *options,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


@pytest.mark.slow
def test_an_audit_finds_the_method_that_auto_means(tmp_path: Path) -> None:
    done = audited(tmp_path, "--method", "gradcam", "--method", "logits", "--method", "attention")
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stderr.split())
    assert "Recommended: logits: it is better than gradcam on the mean of 20 photos." in said
    found = json.loads((tmp_path / "out" / "audit.json").read_text())
    insertion = {arm["method"]: arm["scores"]["insertion"]["mean"] for arm in found["arms"]}
    assert insertion["logits"] > insertion["gradcam"]
    assert found["arms"][2]["points"] is None  # attention knows no word
    file = tmp_path / "models.toml"
    file.write_text(file.read_text() + 'audit = "out/audit.json"\n')
    with serving(GRADCAM_MODELS=str(file)) as (_, http):
        (answer,) = post(http, "s", question=QUESTION, method="auto").json()["answers"]
        assert answer["method"] == "logits"
        told = http.get("/v1/models/s").json()
        assert told["audited"]["method"] == "logits"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--method", "scorecam"], "'scorecam'"),
        (["--method", "auto"], "'auto' is what an audit finds"),
        (["--most", "3"], "--most is 3; an audit needs 20 photos or more"),
        (["--model", "other"], "other"),
    ],
)
def test_audits_that_are_refused(tmp_path: Path, options: list[str], sentence: str) -> None:
    done = audited(tmp_path, *options, photos=1)
    assert done.returncode > 0
    assert sentence in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_the_runtime_of_an_entry_does_not_matter() -> None:
    """So an audit fits, whatever the settings say."""
    one, other = (
        load(SHAPES_ENTRY.model_copy(update={"runtime": name})) for name in ("torch", "auto")
    )
    assert one.weights == other.weights


def test_auto_needs_an_audit(client: TestClient) -> None:
    refused = post(client, question="is", method="auto")
    assert refused.status_code == 422
    assert "has no audit, so method 'auto' means none" in refused.json()["detail"]


@pytest.mark.slow
def test_processes_stream_and_stop_when_the_caller_leaves(tmp_path: Path) -> None:
    """Through the engine's own process: tokens cross one by one, and a caller that leaves ends the
    generation, which occlusion would otherwise continue for dozens of passes."""
    (tmp_path / "models.toml").write_text(f'[[models]]\nname = "shapes"\nsource = "{SHAPES}"\n')
    with serving(GRADCAM_MODELS=str(tmp_path / "models.toml")) as (_, http):
        with Client(str(http.base_url)) as client:
            answer = client.answer(PICTURE, QUESTION, word="red circle")
            assert answer.text == SAID
            assert [word.text for word in answer.words] == ["red circle"]
        lines = post(http, accept="application/x-ndjson", question=QUESTION).text.splitlines()
        assert len(lines) == len(SAID.split()) + 1

        def told(pattern: str) -> float:
            return sum(map(float, re.findall(rf"(?m)^{pattern} (\S+)", http.get("/metrics").text)))

        def passes() -> float:
            return told(r'gradcam_batch_size_count\{model="shapes"\}')

        def answered() -> float:
            return told(r"gradcam_requests_total\{.*:answer.*\}")

        path, headers = "/v1/models/shapes:answer", {"Content-Type": "image/png"}
        headers["Accept"] = "application/x-ndjson"
        query = {"question": QUESTION, "method": "occlusion", "answer": "a red circle " * 20}
        before, begun = answered(), passes()
        with (
            httpx2.Client(base_url=str(http.base_url)) as leaving,
            leaving.stream("POST", path, content=PICTURE, params=query, headers=headers) as stream,
        ):
            next(stream.iter_lines())
        until(lambda: answered() > before)  # it is known that the caller has left
        # It ends before all 125 passes are made, of which the last 64 are occlusion's.
        assert at_rest(passes, 1.5) - begun < 100


def test_the_page_says_what_the_table_of_methods_says() -> None:
    (row,) = re.findall(r"(?m)^\| `method` \| (.*?);", PAGE)
    list_of_methods = PAGE.partition("**Methods.**")[2].partition("\n\nOn ")[0]
    told = re.split(r"\n- ", list_of_methods)[1:]
    assert row == ", ".join(f"`{name}`" for name in METHODS)
    for one, (name, method) in zip(told, METHODS.items(), strict=True):
        words = " ".join(one.split())
        assert words.startswith(f"`{name}`")
        assert method.passes == 1 or f"{method.passes} passes" in words
        assert ("backward pass" in words) == bool(method.graded)
        assert ("does not depend on the word" in words) == (method.depends_on == "place")
        author, year = re.findall(r"^\w+|\b\d{4}\b", method.paper)[:2] or ("", "")
        assert author in words
        assert year in words
    (named,) = re.findall(r"([^.]*) are\s+measured only if `--method` names them", AUDITS)
    assert {*re.findall(r"`(\w+)`", named)} == {
        n for n, each in METHODS.items() if not each.audited
    }


@pytest.mark.slow
def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/answers-in-words.md from a model's name to a map of a word, with the embedded model."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    (toml, *_) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "models.toml").write_text(toml)
    command = re.search(r"gradcam (answer .*)", PAGE.replace("\\\n", ""))
    assert command
    words = [word.strip("'\"") for word in re.findall(r"'[^']*'|\"[^\"]*\"|\S+", command[1])]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.output
    space: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(block, space)
    assert space["phrase"].map.shape == (12, 12)


@pytest.mark.slow
def test_a_method_of_a_users_package_is_served(tmp_path: Path) -> None:
    install_example(tmp_path, "language.md", "## A method of your own")
    file = tmp_path / "models.toml"
    file.write_text(f'[[models]]\nname = "shapes"\nsource = "{SHAPES}"\n')
    asked: dict[str, Any] = {"question": QUESTION, "answer": "a red circle", "method": "cosine"}
    with serving("--models", str(file), PYTHONPATH=str(tmp_path)) as (_, http):
        told = post(http, accept="application/x-ndjson", **asked, normalize="none")
        lines = [json.loads(line) for line in told.text.splitlines()]
        wrong = post(http, **asked | {"method": "sine"})
        document = http.get("/openapi.json").json()["components"]["schemas"]
        with Client(str(http.base_url)) as client:  # which has no such package
            answer = client.answer(PICTURE, **asked)
    model = load(SHAPES_ENTRY).answering
    assert isinstance(model, VisionLanguageModel)
    question = model.ask(np.asarray(Image.open(BytesIO(PICTURE)).convert("RGB")), QUESTION)
    with torch.no_grad():
        image = model.read(question)[0].hidden[question.image]
    for line, token in zip(lines[:-1], model.tokens_of(question, "a red circle"), strict=True):
        said = model.head.weight[token]
        cosine = ((image @ said) / (image.norm(dim=1) * said.norm())).clamp(min=0)
        np.testing.assert_allclose(values(line).ravel(), cosine.detach(), rtol=1e-4, atol=1e-6)
    assert answer.method == lines[-1]["method"] == "cosine"
    assert document["AnswerMethodName"]["enum"][-1] == "cosine"
    assert document["WantedAnswerMethod"]["enum"][-2:] == ["cosine", "auto"]
    assert "'eagle', 'cosine' or 'auto'" in wrong.json()["detail"]

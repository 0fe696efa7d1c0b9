"""`:evaluate` and `:explain?evaluate=…`: scores of maps, over HTTP and across processes."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from io import BytesIO
from typing import Any

import httpx2
import numpy as np
import pytest
from PIL import Image

from cam import METRICS
from cam.drawing.placement import Box
from cam.evaluation.chance import interval
from cam.evaluation.metrics import MetricOptions, Score
from service.core import schemas
from service.features.evaluate.judge import options_of
from service.features.evaluate.parameters import EvaluateParameters
from service.features.evaluate.schemas import Evaluation
from service.features.evaluate.sent_map import InvalidMap, map_on_input
from service.features.evaluate.summary import summarise
from service.models.preprocessing import ModelInput
from service.pipeline.evaluation import describe_scores
from tests.service.conftest import CAT, MODEL, encoded
from tests.service.http.test_bad_input import check

URL = f"{MODEL}:evaluate"
PNG = {"content-type": "image/png"}


def npy(values: Any) -> str:
    file = BytesIO()
    np.save(file, values, allow_pickle=True)
    return base64.b64encode(file.getvalue()).decode()


def b64(image: bytes) -> str:
    return base64.b64encode(image).decode()


@pytest.fixture(scope="session")
def small(photos: dict[int, Image.Image]) -> bytes:
    return encoded(photos[CAT].resize((90, 60)))


@pytest.mark.contract
def test_the_usual_metrics_stand_beside_the_baselines(client: httpx2.Client, cat: bytes) -> None:
    answer = client.post(f"{URL}?steps=3&fit=squash", content=cat, headers=PNG)
    assert answer.status_code == 200, answer.text
    assert "evaluate" in answer.headers["server-timing"]
    (found,) = answer.json()["evaluations"]
    assert (found["method"], found["target"]["index"]) == ("gradcam", CAT)
    assert list(found["scores"]) == ["insertion", "deletion", "stability"]
    for name, score in found["scores"].items():
        assert score["better"] == METRICS[name].better
        assert score["convention"] == METRICS[name].convention(MetricOptions(steps=3))
        assert set(score["baselines"]) == set(METRICS[name].baselines)
        assert "better than" in score["verdict"]
    deletion, stability = found["scores"]["deletion"], found["scores"]["stability"]
    curve = deletion["details"]["curve"]
    assert len(curve) == 4
    assert curve[0] == pytest.approx(found["target"]["probability"], abs=1e-5)
    area = (sum(curve) - curve[0] / 2 - curve[-1] / 2) / 3
    assert deletion["value"] == pytest.approx(area, abs=1e-9)
    views = stability["details"]
    assert set(views) == {"flip", "crop", "jpeg"}
    assert stability["value"] == pytest.approx(np.mean(list(views.values())))
    again = client.post(f"{URL}?steps=3&fit=squash", content=cat, headers=PNG)
    assert again.json() == answer.json()


def test_each_map_of_each_instance_is_scored(client: httpx2.Client, small: bytes) -> None:
    image = {"b64": b64(small)}
    body = {
        "instances": [{"image": image, "id": "a"}, {"image": image, "target": [3, 285]}],
        "parameters": {
            "metrics": ["adcc", "complexity"],
            "method": ["gradcam", "layercam"],
            "baselines": [],
        },
    }
    answer = client.post(URL, json=body).json()
    told = [
        (each["instance"], each["method"], each["target"]["index"])
        for each in answer["evaluations"]
    ]
    first = told[0][2]
    assert told == [
        *((0, "gradcam", first), (0, "layercam", first)),
        *((1, "gradcam", 3), (1, "gradcam", 285), (1, "layercam", 3), (1, "layercam", 285)),
    ]
    assert [each["method"] for each in answer["summary"]] == ["gradcam", "layercam"]
    for method in answer["summary"]:
        values = [
            each["scores"]["adcc"]["value"]
            for each in answer["evaluations"]
            if each["method"] == method["method"]
        ]
        assert method["scores"]["adcc"]["maps"] == 3
        assert method["scores"]["adcc"]["value"] == pytest.approx(np.mean(values))
        assert 0 < method["adcc_of_means"] < 1


def test_lines_tell_how_far_it_is(client: httpx2.Client, small: bytes) -> None:
    asked = f"{URL}?metrics=deletion&steps=6&baselines=random"
    answer = client.post(asked, content=small, headers={**PNG, "accept": "application/x-ndjson"})
    *steps, last = [json.loads(line) for line in answer.text.splitlines()]
    done = [each["progress"]["done"] for each in steps]
    # The image itself, and five pictures between the ends for the map and for 7 misplaced ones.
    assert {each["progress"]["total"] for each in steps} == {41}
    assert done == sorted(done)
    assert max(done) <= 41
    assert set(last["scores"]) == {"deletion"}


@pytest.mark.contract
def test_a_map_from_elsewhere(client: httpx2.Client, cat: bytes) -> None:
    asked = {"metrics": ["deletion", "energy"], "steps": 4, "baselines": [], "fit": "squash"}
    region = {"box": [0, 0, 225, 300]}
    values = np.zeros((300, 451), np.float64)
    values[:, 100:200] = 1
    left, right = np.zeros((224, 224), np.float32), np.zeros((224, 224), np.float32)
    left[:, :100], right[:, 120:] = 1, 1
    instances = [
        {"image": {"b64": b64(cat)}, "map": {"b64": npy(each)}, "region": region}
        for each in (values, left, right)
    ]
    answer = client.post(URL, json={"instances": instances, "parameters": asked})
    assert answer.status_code == 200, answer.text
    found = answer.json()["evaluations"]
    assert all("method" not in each and "layer" not in each for each in found)
    energies = [each["scores"]["energy"]["value"] for each in found]
    assert energies == [pytest.approx(1, abs=1e-3), 1, 0]
    assert len({each["scores"]["deletion"]["value"] for each in found}) == 3


def test_the_same_map_sent_back_has_the_same_score(client: httpx2.Client, cat: bytes) -> None:
    parameters: dict[str, Any] = {"fit": "squash", "target": CAT}
    made = client.post(
        f"{MODEL}:explain?size=model&output=values&fit=squash&target={CAT}",
        content=cat,
        headers={**PNG, "accept": "application/x-npy"},
    ).content
    image = {"b64": b64(cat)}
    asked: dict[str, Any] = {
        "metrics": ["deletion", "road"],
        "steps": 3,
        "percentages": [50],
        "baselines": [],
    }
    bodies = [
        {"instances": [instance], "parameters": parameters | asked}
        for instance in ({"image": image}, {"image": image, "map": {"b64": b64(made)}})
    ]
    scores = [client.post(URL, json=body).json()["evaluations"][0]["scores"] for body in bodies]
    for name in ("deletion", "road"):
        ours, theirs = (each[name]["value"] for each in scores)
        assert ours == pytest.approx(theirs, abs=2e-3)  # rounding may exchange equal pixels


def test_an_explanation_has_its_scores(client: httpx2.Client, small: bytes) -> None:
    asked = f"{MODEL}:explain?evaluate=complexity,stability&evaluate=complexity"
    answer = client.post(asked, content=small, headers=PNG).json()
    (explanation,) = answer["explanations"]
    assert list(explanation["scores"]) == ["complexity", "stability"]
    plain = client.post(f"{MODEL}:explain", content=small, headers=PNG).json()
    assert "scores" not in plain["explanations"][0]
    sizes = []
    for query in ("output=panel", "output=panel&evaluate=complexity,stability"):
        picture = client.post(
            f"{MODEL}:explain?{query}", content=small, headers={**PNG, "accept": "image/png"}
        )
        with Image.open(BytesIO(picture.content)) as panel:
            sizes.append(panel.height)
    assert sizes[1] > sizes[0]  # two more lines


@pytest.mark.parametrize(
    ("query", "status", "kind", "words"),
    [
        ("metrics=beauty", 422, "invalid-parameter", "the metrics are insertion, deletion"),
        ("metrics=", 422, "invalid-parameter", "at least 1 item"),
        ("metrics=energy", 422, "unsuited-metric", "needs `region`"),
        ("steps=0", 422, "invalid-parameter", "steps is '0'"),
        ("steps=coarse", 422, "invalid-parameter", "'fine'"),
        ("percentages=10,100", 422, "invalid-parameter", "less than 100"),
        ("baselines=zebra", 422, "invalid-parameter", "'edges'"),
        ("radius=0", 422, "invalid-parameter", "greater than 0"),
        ("squares=1", 422, "invalid-parameter", "from 2 to 1000"),
        ("region={}", 422, "invalid-parameter", "box or mask"),
        ("region={", 422, "invalid-parameter", "a JSON object"),
        ('region={"mask":{"b64":"!"}}', 422, "invalid-region", "the region's mask is not"),
        ('region={"box":[0,0,9999,9]}', 422, "invalid-region", "outside the photo"),
        ('region={"box":[9,0,3,9]}', 422, "invalid-parameter", "left < right"),
        ('target={"against":true}', 422, "unexplainable", "probability"),
        (
            'target={"layer":"blocks.6","channel":1}&layer=blocks.2',
            422,
            "unexplainable",
            "probability",
        ),
        ("map=rubbish", 422, "invalid-parameter", "object"),
        ("colour=red", 422, "unknown-parameter", "metrics"),
    ],
)
def test_a_wrong_parameter_is_named(
    client: httpx2.Client, small: bytes, query: str, status: int, kind: str, words: str
) -> None:
    answer = client.post(f"{URL}?{query}", content=small, headers=PNG)
    assert (answer.status_code, answer.json()["type"].rpartition(":")[2]) == (status, kind)
    assert words in answer.json()["detail"]


@pytest.mark.parametrize(
    ("values", "more", "kind", "words"),
    [
        (np.ones((7, 7)), {}, "invalid-map", "60 × 90"),
        (np.ones((60, 90, 3)), {}, "invalid-map", "60 × 90"),
        (np.full((60, 90), np.nan), {}, "invalid-map", "NaN"),
        (np.ones((60, 90), complex), {}, "invalid-map", "complex"),
        (np.array([[print]]), {}, "invalid-map", "object"),
        (np.ones((60, 90)), {"metrics": ["stability"]}, "unsuited-metric", "infidelity"),
        (np.ones((60, 90)), {"metrics": ["completeness"]}, "unsuited-metric", "how the map"),
        (np.ones((60, 90)), {"target": [1, 2]}, "invalid-map", "one target"),
    ],
)
def test_a_wrong_map_is_refused(
    client: httpx2.Client, small: bytes, values: Any, more: dict[str, Any], kind: str, words: str
) -> None:
    body = {
        "instances": [{"image": {"b64": b64(small)}, "map": {"b64": npy(values)}}],
        "parameters": {"metrics": ["deletion"], "steps": 2, "baselines": [], **more},
    }
    answer = client.post(URL, json=body)
    assert answer.status_code == 422
    assert answer.json()["type"].rpartition(":")[2] == kind
    assert words in answer.json()["detail"]
    assert answer.json()["pointer"].startswith(("/instances/0/map", "/parameters/"))


def test_no_map_but_bytes(client: httpx2.Client, small: bytes) -> None:
    for sent in ("!", b64(b"rubbish"), b64(b"\x93NUMPY\x01\x00"), npy(np.ones(9))[:40]):
        instance = {"image": {"b64": b64(small)}, "map": {"b64": sent}}
        answer = client.post(
            URL, json={"instances": [instance], "parameters": {"metrics": ["deletion"]}}
        )
        assert answer.status_code == 422
        assert "not a NumPy .npy file" in answer.json()["detail"]


@pytest.mark.parametrize("header", ["{'descr': ('a'\n", '"""abc', "{'descr': ()}"])
def test_a_header_that_numpy_fails_to_parse(
    client: httpx2.Client, small: bytes, header: str
) -> None:
    sent = header.encode().ljust(118) + b"\n"
    file = b"\x93NUMPY\x01\x00" + len(sent).to_bytes(2, "little") + sent
    instance = {"image": {"b64": b64(small)}, "map": {"b64": b64(file)}}
    body = {"instances": [instance], "parameters": {"metrics": ["deletion"]}}
    answer = client.post(URL, json=body)
    assert answer.status_code == 422
    assert "not a NumPy .npy file" in answer.json()["detail"]


def test_a_map_over_a_photo_of_any_length() -> None:
    photo = Image.new("RGB", (40_000, 4))
    values = np.zeros((4, 40_000), np.uint8)
    values[:, 20_000:] = 1
    found = map_on_input(npy(values), photo, seen(8, 8, Box(0, 0, 40_000, 4)))
    np.testing.assert_allclose(found[2:6, [0, 1, 6, 7]], np.tile([0, 0, 1, 1], (4, 1)), atol=1e-2)


def test_a_map_of_the_photos_size_lies_on_the_photo() -> None:
    """Also where the model's input has the same size, and is a crop."""
    values = np.arange(64, dtype=np.float32).reshape(8, 8)
    found = map_on_input(npy(values), Image.new("RGB", (8, 8)), seen(8, 8, Box(2, 2, 6, 6)))
    assert found.min() > values[1, 1]
    assert found.max() < values[6, 6]


@pytest.mark.contract
def test_one_instance_that_fails_leaves_the_others(client: httpx2.Client, small: bytes) -> None:
    body = {
        "instances": [{"image": {"b64": b64(small)}}, {"image": {"b64": b64(b"no image")}}],
        "parameters": {"metrics": ["complexity"]},
    }
    good, bad = client.post(URL, json=body).json()["evaluations"]
    assert good["scores"]["complexity"]["value"] > 0
    assert bad["problem"]["status"] == 422


def seen(width: int, height: int, box: Box) -> ModelInput:
    return ModelInput(np.zeros((height, width, 3), np.uint8), box, b"digest")


def test_a_map_over_the_photo_is_read_where_the_model_sees_it() -> None:
    photo = Image.new("RGB", (8, 4))
    values = np.arange(32, dtype=np.float32).reshape(4, 8)
    # The model's input is the photo's right half, pixel by pixel.
    found = map_on_input(npy(values), photo, seen(4, 4, Box(4, 0, 8, 4)))
    np.testing.assert_allclose(found, values[:, 4:])
    # A border of two pixels lies around the photo.
    found = map_on_input(npy(values), photo, seen(12, 8, Box(-2, -2, 10, 6)))
    np.testing.assert_allclose(found[2:6, 2:10], values)
    assert not found[:2].any()
    assert not found[:, :2].any()
    # At half the size, a pixel stands for four.
    even = np.full((4, 8), 3, np.int16)
    np.testing.assert_allclose(map_on_input(npy(even), photo, seen(4, 2, Box(0, 0, 8, 4))), 3)
    with pytest.raises(InvalidMap, match="4 × 8"):
        map_on_input(npy(values.T), photo, seen(4, 4, Box(4, 0, 8, 4)))


def test_a_region_is_put_on_the_input() -> None:
    photo = Image.new("RGB", (8, 8))
    parameters = EvaluateParameters.model_validate({"region": {"box": [2, 0, 6, 4]}})
    options = options_of(parameters, photo, seen(4, 4, Box(0, 0, 8, 8)), max_pixels=100)
    expected = np.zeros((4, 4), bool)
    expected[:2, 1:3] = True
    assert options.region is not None
    np.testing.assert_array_equal(options.region, expected)


def test_a_value_that_json_cannot_hold_is_left_out() -> None:
    scores = {"infidelity": Score(float("inf")), "energy": Score(None, warning="it is constant")}
    found = describe_scores(scores, MetricOptions())
    assert found["infidelity"].value is None
    assert found["infidelity"].warning == "the value is not finite"
    assert found["energy"].warning == "it is constant"


def test_the_mean_of_adcc_and_the_adcc_of_means() -> None:
    def evaluation(instance: int, coherency: float, complexity: float, drop: float) -> Any:
        parts = {"coherency": coherency, "complexity": complexity, "confidence_drop": drop}
        value = 3 / (1 / coherency + 1 / (1 - complexity) + 1 / (1 - drop))
        score = schemas.Score(value=value, better="higher", convention="", details=parts)
        return Evaluation(
            instance=instance,
            method="gradcam",
            layer="a",
            target=schemas.ExplainedTarget(score=1),
            scores={"adcc": score},
        )

    (found,) = summarise([evaluation(0, 1.0, 0.5, 0.0), evaluation(1, 0.5, 0.5, 0.5)])
    assert found.scores["adcc"].maps == 2
    assert found.scores["adcc"].value == pytest.approx((0.75 + 0.5) / 2)
    assert found.adcc_of_means == pytest.approx(3 / (1 / 0.75 + 1 / 0.5 + 1 / 0.75))
    assert summarise([evaluation(0, 1.0, 0.5, 0.0)]) == []  # one image has no mean


@pytest.mark.parametrize(
    ("gap", "expected"),
    [
        (lambda n: 0.01 + 0.001 * n, "better than an edge detector"),
        (lambda n: 0.002 + 0.02 * (-1) ** n, "no better than an edge detector"),
        (lambda n: -0.01 - 0.001 * n, "worse than an edge detector"),
    ],
)
def test_several_photos_are_compared_photo_by_photo(
    gap: Callable[[int], float], expected: str
) -> None:
    """The photos differ much more from each other."""

    def score(number: int) -> schemas.Score:
        value = number / 10
        baselines: dict[str, float | None] = {"edges": value - gap(number), "uniform": 9.0}
        return schemas.Score(value=value, better="higher", convention="", baselines=baselines)

    target = schemas.ExplainedTarget.model_construct(score=0.0)
    evaluations = [
        Evaluation.model_construct(
            instance=number,
            method="gradcam",
            layer="l",
            target=target,
            scores={"insertion": score(number)},
        )
        for number in range(10)
    ]
    (found,) = summarise(evaluations)
    mean = found.scores["insertion"]
    assert mean.verdict == expected
    assert mean.low is not None
    assert mean.high is not None
    assert mean.value == pytest.approx(0.45)
    assert mean.low < 0.45 < mean.high


@pytest.mark.parametrize("photos", [3, 5, 8, 19])
def test_over_few_photos_chance_is_seldom_taken_for_a_difference(photos: int) -> None:
    """Differences around 0: at most one mean in twenty is called better or worse, or half as many
    again by the chance of 1,000 trials."""
    rng = np.random.default_rng(photos)
    told = 0
    for gaps in rng.normal(size=(1000, photos)):
        found = interval(gaps.tolist())
        assert found
        assert found.low is not None
        assert found.high is not None
        told += found.low > 0 or found.high < 0
    assert told <= 75
    for few in ([1.0], [1.0, 2.0]):
        alone = interval(few)
        assert alone
        assert (alone.low, alone.high) == (None, None)
    sure = interval([1.0, 2.0, 3.0])
    assert sure
    # 2 ± t · s / √n with t = 4.303 for two degrees of freedom, s = 1
    assert (sure.low, sure.high) == pytest.approx((2 - 2.4841, 2 + 2.4841), abs=1e-3)


def test_a_score_says_among_how_many_random_maps_it_is() -> None:
    scores = {"complexity": Score(0.1, {"random": 0.5}, chance=(0.5,) * 59)}
    found = describe_scores(scores, MetricOptions())["complexity"]
    assert (found.random_maps, found.percentile) == (59, 98.3)
    assert found.verdict == "better than chance"


def test_reasons_are_refused(client: httpx2.Client, cat: bytes) -> None:
    response = client.post(
        URL,
        params={"reasons": "2"},
        content=cat,
        headers=PNG,
    )
    check(response, 422, "invalid-parameter", "reasons is 2", "of the photo itself")

"""`gradcam audit`: planted truths are found, it goes on where it stopped, and mistakes are told."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from service.cli.main import main
from service.core.errors import ConfigError
from service.features.audit.plan import Plan, plan_of
from service.features.audit.run import (
    RECORDS,
    REPORT,
    SUMMARY,
    Estimate,
    chosen,
    fitting,
    in_words,
    seconds_of,
)
from service.pipeline.parameters import Parameters
from tests.service.features.audit.photos import catalog, photos, square_photo
from tests.service.rpc.fake import info

METHODS = ("gradcam", "hirescam", "layercam", "eigencam")


def audit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str
) -> tuple[int, str]:
    """Run the command; return its exit code and what it printed."""
    monkeypatch.setattr("sys.argv", ["gradcam", "audit", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    code = ended.value.code
    assert isinstance(code, int)
    return code, capsys.readouterr().err


def methods(*names: str) -> list[str]:
    return [word for name in names or METHODS for word in ("--method", name)]


def summary(output: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((output / SUMMARY).read_text())
    return found


class Page(HTMLParser):
    """Notes the tags and addresses of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]


@pytest.mark.slow
def test_a_model_that_looks_at_one_corner_is_named_with_the_corner(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Grad-CAM is wrong of this model, and HiResCAM right: the audit finds both. Killed in the
    middle, it goes on and has the same numbers."""
    source, output = photos(tmp_path / "photos", 24), tmp_path / "audit"
    words = (str(source), "--output", str(output), "--model", "corner", *methods())
    words = (*words, "--models", catalog(tmp_path))
    code, said = audit(capsys, monkeypatch, *words)
    assert code == 0, said
    assert "The model looks at one place of every photo" in said
    found = summary(output)
    by_name = {each["method"]: each for each in found["arms"]}
    assert by_name["hirescam"]["points"]["mean"] > by_name["gradcam"]["points"]["mean"]
    assert found["recommendation"]["method"] in ("hirescam", "layercam")
    (place,) = [each["place"] for each in found["findings"] if each["place"]]
    assert place == {"left": 0, "top": 0, "right": 0.25, "bottom": 0.25}
    assert by_name["hirescam"]["shows_the_model"] is True
    right, wrong = (by_name[name]["localisation"]["2"] for name in ("hirescam", "gradcam"))
    assert right["photos"] >= 5  # only in the corner cell does the model find the class
    assert right["mean"] > wrong["mean"]

    whole = (output / RECORDS).read_bytes()
    records = whole.split(b"\n")[:-1]
    assert len(records) == 24
    kept = b"\n".join(records[:9]) + b"\n" + records[9][:100]  # killed while it wrote the tenth
    (output / RECORDS).write_bytes(kept)
    (output / SUMMARY).unlink()
    code, said = audit(capsys, monkeypatch, *words)
    assert code == 0, said
    again = summary(output)
    for each in (*found["arms"], *again["arms"]):
        del each["milliseconds"]
    assert again["arms"] == found["arms"]
    code, said = audit(capsys, monkeypatch, *words, "--most", "21")
    assert code == 2
    assert "holds an audit with photos 24, and this one has 21" in " ".join(said.split())
    assert (output / RECORDS).read_bytes().startswith(b"\n".join(records[:9]) + b"\n")

    page = Page()
    text = (output / REPORT).read_text()
    page.feed(text)
    assert {"table", "svg", "img", "h1"} <= page.tags
    assert not page.tags & {"script", "iframe", "link rel"}
    assert all(each.startswith(("data:", "#")) for each in page.addresses)
    for words_of_it in ("corner", "hirescam@features", "Adebayo", "Böhle", "Petsiuk", "Limits"):
        assert words_of_it in text
    assert found["fingerprint"] in text


@pytest.mark.slow
def test_repeated_audits_agree_and_never_recommend_a_map_without_a_class(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a trained model of two classes, which stands in grids though it has no four. The white
    square, which is in each photo and says nothing, is what a map without a class shows."""
    source, found = photos(tmp_path / "photos", 20, square_photo), []
    words = ("--model", "squares", *methods("eigencam", "gradcam", "elementwise"))
    words = (*words, "--evaluate", "deletion")
    for number in range(3):
        output = tmp_path / f"audit{number}"
        given = (str(source), "--output", str(output), *words, "--models", catalog(tmp_path))
        code, said = audit(capsys, monkeypatch, *given)
        assert code == 0, said
        found.append(summary(output))
    first = found[0]
    assert first["why_none"] is None
    best = first["recommendation"]
    by_name = {(each["method"], each["layer"]): each for each in first["arms"]}
    blind = {method for (method, _), each in by_name.items() if each["class_blind"]}
    assert "eigencam" in blind
    assert best["method"] not in blind
    recommended, without = by_name[best["method"], best["layer"]], by_name["eigencam", "last"]
    assert without["other_class"]["grid"]["mean"] == pytest.approx(1)
    assert recommended["localisation"]["2"]["photos"] >= 20
    assert recommended["localisation"]["2"]["low"] > 0.5 > without["localisation"]["2"]["high"]
    assert not [each["kind"] for each in first["findings"] if "photo for grids" in each["kind"]]
    for other in found[1:]:
        assert other["recommendation"] == best
        assert other["findings"] == first["findings"]


@pytest.mark.slow
def test_a_model_that_ignores_the_photo_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = photos(tmp_path / "photos", 20), tmp_path / "audit"
    words = (str(source), "--output", str(output), "--model", "ignoring", *methods())
    code, said = audit(capsys, monkeypatch, *words, "--models", catalog(tmp_path))
    assert code == 0, said
    assert "The model ignores the photo: it gives class" in said
    found = summary(output)
    assert found["findings"][0]["kind"] == "ignores the photo"
    empty = [each["arms"] for each in found["findings"] if each["kind"] == "no map"]
    assert empty == [["gradcam@features", "hirescam@features", "layercam@features"]]
    assert "Recommended" not in said
    assert "No method can be recommended" in (output / REPORT).read_text()


@pytest.mark.slow
def test_labels_broken_photos_and_hostile_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A photo that cannot be measured costs only itself, and names are shown as text."""
    source = photos(tmp_path / "photos", 21)
    (source / "005.png").write_bytes(b"broken")
    (source / "006.png").rename(source / "<script>alert(1)</script>.png".replace("/", "∕"))
    names = sorted(each.name for each in source.iterdir())
    table = tmp_path / "photos.csv"
    rows = [f'"photos/{name}",{number % 6}' for number, name in enumerate(names)]
    table.write_text("path,target\n" + "\n".join(rows) + "\n")
    output = tmp_path / "audit"
    words = (str(table), "--output", str(output), "--model", "corner", *methods("hirescam"))
    code, said = audit(capsys, monkeypatch, *words, "--models", catalog(tmp_path))
    assert code == 1, said
    found = summary(output)
    assert found["photos"] == 20
    (failed,) = found["failed"]
    assert failed["item"] == "photos/005.png"
    records = [json.loads(line) for line in (output / RECORDS).read_text().splitlines()]
    by_number = {each["index"]: each for each in records}
    assert all(each["target"] == number % 6 for number, each in by_number.items())
    assert all(each["asked"] for each in records)
    text = (output / REPORT).read_text()
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert found["recommendation"] is None
    assert "only hirescam@features was measured, and there is nothing to compare it with" in text


@pytest.mark.slow
def test_photos_that_all_fail_have_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = photos(tmp_path / "photos", 20), tmp_path / "audit"
    for each in source.iterdir():
        each.write_bytes(b"broken")
    words = (str(source), "--output", str(output), "--model", "corner", *methods())
    code, said = audit(capsys, monkeypatch, *words, "--models", catalog(tmp_path))
    assert code == 1
    told = " ".join(said.split())
    assert "No photo could be measured. 000.png: " in told
    assert "No method can be recommended: no photos were measured" in told
    assert "No photo could be measured. 000.png: " in (output / REPORT).read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "there are 3 photos; an audit needs 20 or more"),
        (("--method", "gradcamm"), "there is no method 'gradcamm'"),
        (("--evaluate", "beauty"), "there is no metric 'beauty'"),
        (("--model", "none"), "there is no model 'none'"),
        (("--most", "5"), "--most is 5; an audit needs 20 photos or more"),
        (("--within", "soon"), "'soon' is not a duration; it is a number and s, m or h"),
        (("--within", "0s"), "'0s' is not a duration"),
    ],
)
def test_mistakes_are_told_before_the_first_photo(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    sentence: str,
) -> None:
    source, output = photos(tmp_path / "photos", 3), tmp_path / "audit"
    given = (str(source), "--output", str(output), "--models", catalog(tmp_path), *words)
    code, said = audit(capsys, monkeypatch, *given)
    assert code == 2
    assert sentence in said
    assert not output.exists()


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ('{"class": 1, "against": true}', "an audit explains one class of each photo"),
        ('{"class": 1, "minus": 2}', "an audit explains one class of each photo"),
        ('{"layer": "features", "channel": 1}', "an audit explains one class of each photo"),
        ("{", "target"),
    ],
)
def test_a_row_whose_target_is_more_than_a_class_is_named(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    target: str,
    sentence: str,
) -> None:
    photos(tmp_path / "photos", 20)
    quoted = target.replace('"', '""')
    rows = [f'photos/{n:03}.png,"{quoted if n == 7 else 1}"' for n in range(20)]
    table = tmp_path / "photos.csv"
    table.write_text("path,target\n" + "\n".join(rows) + "\n")
    given = (str(table), "--output", str(tmp_path / "audit"), "--models", catalog(tmp_path))
    code, said = audit(capsys, monkeypatch, *given)
    assert code == 2
    told = " ".join(said.split())
    assert "the row of 'photos/007.png': " in told
    assert sentence in told


def test_a_folder_of_a_batch_is_not_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = photos(tmp_path / "photos", 20), tmp_path / "out"
    output.mkdir()
    (output / "run.json").write_text('{"model": "corner"}')
    given = (str(source), "--output", str(output), "--models", catalog(tmp_path))
    code, said = audit(capsys, monkeypatch, *given)
    assert code == 2
    assert re.search(r"out holds a batch; take\s+another folder", said)


def test_of_many_photos_one_of_each_part_is_measured() -> None:
    names = [str(number) for number in range(10)]
    assert chosen(names, 10) == names
    assert [int(name) // 5 for name in chosen(names, 2)] == [0, 1]
    assert chosen(names, 4) == chosen(names, 4)
    assert len(chosen(names, 1)) == 1


@pytest.mark.parametrize("period", [2, 3, 5])
def test_the_photos_of_a_folder_that_alternates_are_of_all_classes(period: int) -> None:
    names = [f"{number:04}-{number % period}" for number in range(period * 40)]
    classes = [name[-1] for name in chosen(names, 40)]
    assert chosen(names, 40) == sorted(chosen(names, 40))
    assert all(classes.count(str(each)) > 40 / period / 3 for each in range(period))


@pytest.mark.parametrize(
    ("duration", "seconds"), [("90s", 90), ("10m", 600), ("1h", 3600), ("1.5h", 5400)]
)
def test_a_duration_is_a_number_with_a_unit(duration: str, seconds: float) -> None:
    assert seconds_of(duration) == seconds


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.2, "1 s"), (119, "119 s"), (600, "10 min"), (9000, "2.5 h")]
)
def test_a_time_is_told_in_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words


def fitted(within: float, **parameters: Any) -> Plan:
    """Return the plan of at most 100 photos that fits, if a pass takes a second."""
    parameters = {"evaluate": ["deletion"], "layer": "layer", **parameters}
    plan = plan_of(replace(info("m"), method_layers={}), Parameters(**parameters), 100)
    return fitting(plan, Estimate(1.0), within, free="method" not in parameters)


def passes(plan: Plan) -> int:
    numbers = range(plan.total)
    return sum(sum(plan.passes(sanity=plan.is_for_sanity(number)).values()) for number in numbers)


def test_as_many_photos_and_methods_are_measured_as_fit_into_the_time() -> None:
    """First fewer photos, then, at twenty of them, fewer methods, those without a class first."""
    whole = fitted(1e9)
    assert whole.total == 100
    assert {"gradcam", "eigencam"} <= {*whole.methods}
    half = fitted(passes(whole) / 2)
    assert half.methods == whole.methods
    assert 40 <= half.total < 60
    assert passes(half) <= passes(whole) / 2 < passes(replace(half, total=half.total + 1)) + 500
    few = fitted(passes(whole) / 8)
    assert few.total >= 20
    assert 3 <= len(few.methods) < len(whole.methods)
    assert "eigencam" not in few.methods
    assert passes(few) <= passes(whole) / 8


def test_a_time_that_is_too_short_is_refused_with_the_least_one() -> None:
    named = {"method": ["gradcam", "layercam"]}
    least = passes(replace(fitted(1e9, **named), total=20))
    assert fitted(least, **named).total == 20
    with pytest.raises(ConfigError) as raised:
        fitted(least - 1, **named)
    assert str(raised.value).startswith(
        f"20 photos and 2 methods take about {in_words(least)}, which is more than"
    )


@pytest.mark.slow
def test_an_audit_tells_its_time_first_and_goes_on_with_the_photos_that_it_chose(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = photos(tmp_path / "photos", 24), tmp_path / "audit"
    words: tuple[str, ...] = (
        str(source),
        "--output",
        str(output),
        "--model",
        "corner",
        "--evaluate",
        "deletion",
    )
    words = (*words, *methods("gradcam", "hirescam", "elementwise"), "--models", catalog(tmp_path))
    code, said = audit(capsys, monkeypatch, *words, "--within", "0.01s")
    assert code == 2
    assert "20 photos and 3 methods take about" in " ".join(said.split())
    assert not output.exists()
    monkeypatch.setattr("service.features.audit.run.Estimate.of", lambda self, plan: plan.total)
    code, said = audit(capsys, monkeypatch, *words, "--within", "21s")
    assert code == 0, said
    told = said.splitlines()
    assert told[0] == "24 photos; loading the model."
    assert told[2].startswith("21 photos, 3 methods at layers: at most about 21 s (")
    assert summary(output)["photos"] == 21
    kept = (output / RECORDS).read_bytes().split(b"\n")[:8]
    (output / RECORDS).write_bytes(b"\n".join(kept) + b"\n")
    monkeypatch.setattr("service.features.audit.run.Estimate.of", lambda self, plan: 2 * plan.total)
    code, said = audit(capsys, monkeypatch, *words, "--within", "21s")
    assert code == 0, said
    assert summary(output)["photos"] == 21

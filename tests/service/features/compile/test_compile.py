"""`gradcam compile`: what it writes is what the next start loads, and what it cannot is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cam.runtimes.compiled import FastPath
from cam.runtimes.packaged import PackagedPath
from service.cli.main import main
from service.core.disk_cache import DiskCache
from service.core.errors import ConfigError
from service.features.compile.packages import compile_packages
from service.loading.served_model import load
from service.models.catalog import read_catalog
from service.runtimes.paths import offers
from service.runtimes.warming import warm_paths
from service.settings import Settings

ENTRY = """
[[models]]
name = "tiny"
source = "factory:tests.zoo.factories:tiny"
weights = "none"
kind = "classes"
input_size = 8
max_batch = 2
device = "cpu"
mode = "fast"
"""


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRADCAM_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "models.toml"
    file.write_text(ENTRY)
    return file


def compiled(models: Path, monkeypatch: pytest.MonkeyPatch, *given: str) -> int | str | None:
    monkeypatch.setattr("sys.argv", ["gradcam", "compile", *given, "--models", str(models)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang")), reason="needs a compiler")
def test_the_next_start_runs_what_was_compiled(
    models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not compiled(models, monkeypatch, "tiny")
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(", ")[0] for line in said] == [
        f"tiny: batches of {size} on cpu" for size in (1, 2)
    ]
    cache = DiskCache(models.parent / "cache")
    (entry,) = read_catalog(models)
    # The service fills these in, and they may differ between the copies of a model.
    for more in ({}, {"runtime": "torch", "layout": "contiguous"}):
        form = entry.model_copy(update=more)
        model = load(form, cache)
        found = offers(form, model)
        path = found[0].path
        assert isinstance(path, PackagedPath)
        assert path.sizes == (1, 2)
    warm = warm_paths(model, found)
    assert warm is not None
    assert warm.path is path
    assert warm.fidelities["gradcam"].enough
    larger = entry.model_copy(update={"max_batch": 4})
    left = offers(larger, load(larger, cache))
    assert left
    assert not any(isinstance(each.path, PackagedPath) for each in left)


@pytest.mark.parametrize(
    ("given", "changed", "words"),
    [
        (["dog"], {}, "there is no model 'dog'; there are tiny"),
        (["tiny", "--size", "3"], {}, "--size is 3; it can be 1 … 2"),
        (["tiny", "--size", "0"], {}, "--size is 0; it can be 1 … 2"),
        (["tiny"], {'"fast"': '"auto"'}, 'mode = "fast" in its entry allows other maps'),
        pytest.param(
            ["tiny"],
            {"factories:tiny": "factories:vit", "size = 8": "size = 64"},
            "linear behind the mean of a layer",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_cannot_be_compiled_is_refused(
    given: list[str],
    changed: dict[str, str],
    words: str,
    models: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = models.read_text()
    for old, new in changed.items():
        text = text.replace(old, new)
    models.write_text(text)
    assert compiled(models, monkeypatch, *given) == 2
    assert words in capsys.readouterr().err


@pytest.mark.contract
def test_without_a_cache_or_a_compiler_it_says_so(
    models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(FastPath, "package", lambda path, shape: 1 / 0)
    (entry,) = read_catalog(models)
    model = load(entry, DiskCache(models.parent / "cache"))
    with pytest.raises(ConfigError, match="ahead of time: division by zero"):
        list(compile_packages(entry, model, [2]))
    monkeypatch.setattr(FastPath, "package", lambda path, shape: b"code")
    assert list(compile_packages(entry, model, [2])) == [(2, 4)]
    with pytest.raises(ConfigError, match="file of 0 MB cannot be kept: GRADCAM_CACHE names the"):
        list(compile_packages(entry, load(entry), [2]))
    monkeypatch.setenv("GRADCAM_CACHE", "off")
    assert compiled(models, monkeypatch, "tiny") == 2
    assert "GRADCAM_CACHE is off" in capsys.readouterr().err
    assert Settings().cache is None

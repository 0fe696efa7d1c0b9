"""Files of models that are damaged, that are not files, or that this user may not read."""

from __future__ import annotations

import io
import os
import pickle
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from service.core.errors import ConfigError
from service.loading.served_model import check, load
from service.models.catalog import ModelEntry, read_catalog

STATE = {"weight": torch.ones(300)}
NOBODY = 65534


def entry(**given: object) -> ModelEntry:
    plain = {"source": "factory:tests.zoo.factories:tiny", "input_size": 8, "weights": "none"}
    return ModelEntry.model_validate({"name": "m", **plain, **given})


def saved(*, is_zip: bool) -> bytes:
    buffer = io.BytesIO()
    torch.save(STATE, buffer, _use_new_zipfile_serialization=is_zip)
    return buffer.getvalue()


def other_zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("x.txt", "hi")
    return buffer.getvalue()


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 3\n"
NEEDED = "what is needed is a state dict"


@pytest.mark.parametrize(
    ("ending", "content", "words"),
    [
        (".pt", b"\x80\x02.", NEEDED),
        (".pth", b"abc", rf"it begins with b'abc', which torch.save never writes; {NEEDED}"),
        (".bin", b"", "it is empty"),
        (".pt", saved(is_zip=True)[:500], f"perhaps because it is cut off: .*{NEEDED}"),
        (".pt", saved(is_zip=False)[:200], f"perhaps because it is cut off: .*{NEEDED}"),
        (".pt", other_zip(), NEEDED),
        (".pt", pickle.dumps(3), NEEDED),
        (".pt", b"\x80\x02" + b"(" * 100_000 + b".", NEEDED),
        (".ckpt", b"<!DOCTYPE html>", "it begins with b'<!DOCTYP', which torch.save never writes"),
        (".pt", POINTER, "it is a pointer of Git LFS in place of the file; run git lfs pull"),
        (".safetensors", POINTER, "it is a pointer of Git LFS in place of the file"),
        (".safetensors", b"", "it is empty"),
        (".safetensors", save(STATE)[:5], f"perhaps because it is cut off: .*{NEEDED}"),
        (".safetensors", save(STATE)[:20], f"perhaps because it is cut off: .*{NEEDED}"),
        (".safetensors", save(STATE)[:-4], f"perhaps because it is cut off: .*{NEEDED}"),
        (".safetensors", b"\xff" * 8 + b"{}", f"perhaps because it is cut off: .*{NEEDED}"),
    ],
)
def test_a_damaged_checkpoint_is_named_with_its_model_and_what_is_needed(
    tmp_path: Path, ending: str, content: bytes, words: str
) -> None:
    file = tmp_path / f"w{ending}"
    file.write_bytes(content)
    named = rf"model 'm': key 'weights': {file}: it cannot be read.*{words}"
    with pytest.raises(ConfigError, match=named):
        load(entry(weights=str(file)))


@pytest.mark.parametrize("kind", ["directory", "FIFO"])
@pytest.mark.parametrize("key", ["weights", "labels", "audit", "reference", "source"])
def test_what_is_not_a_file_is_refused_at_once(tmp_path: Path, key: str, kind: str) -> None:
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    path = folder / "model.safetensors" if key == "source" else tmp_path / "it.pt"
    path.mkdir() if kind == "directory" else os.mkfifo(path)
    given = {key: f"hf:{folder}" if key == "source" else str(path)}
    if key == "source" and kind == "directory":
        pytest.skip("transformers ignores a folder of this name")
    told = "it is a directory" if kind == "directory" else "it is not a regular file"
    with pytest.raises(ConfigError, match=rf"model 'm': key '{key}': {path}.* {told}"):
        check(entry(**given).of_file(tmp_path / "models.toml"))


def test_a_catalog_that_is_a_fifo_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "models.toml")
    with pytest.raises(ConfigError, match=r"models\.toml: cannot be read: it is not a regular"):
        read_catalog(tmp_path / "models.toml")


@contextmanager
def another_user() -> Iterator[None]:
    """Files of mode 0600 that this test has written cannot be read within the block."""
    if os.geteuid():
        pytest.skip("only root can become another user")
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("ending", [".safetensors", ".pt"])
def test_a_checkpoint_that_only_its_owner_may_read_says_so(ending: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        file = Path(name) / f"w{ending}"
        file.write_bytes(save(STATE) if ending == ".safetensors" else saved(is_zip=True))
        file.chmod(0o600)
        words = (
            f"{file}: it cannot be read: Permission denied: it belongs to user 0 with mode 0600, "
            f"and the service runs as user {NOBODY}; safetensors and transformers write files that "
            r"only their owner may read, so allow others to read it \(chmod a\+r\)"
        )
        with another_user(), pytest.raises(ConfigError, match=words):
            check(entry(weights=str(file)))
        Path(name).chmod(0o700)
        with another_user(), pytest.raises(ConfigError, match="Permission denied to a folder"):
            check(entry(weights=str(file)))

"""Image–text models of open_clip: their own logits and preprocessing, or the entry is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import open_clip
import pytest
import torch

from service.core.errors import ConfigError
from service.loading.served_model import check, load
from service.models.catalog import ModelEntry, read_catalog
from service.settings import Settings
from tests.service.conftest import running_app
from tests.service.sources.test_image_text import PHOTO, PROMPTS, asked
from tests.zoo.image_text import open_clip_config, open_clip_model, tokenizer

pytestmark = pytest.mark.slow

SCALED = {"size": 64, "mean": [0.1, 0.2, 0.3], "std": [0.5, 0.4, 0.3], "resize_mode": "squash"}


@pytest.fixture(autouse=True)
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """open_clip knows two tiny models, and weights of one, which are a file."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    tokenizer().save_pretrained(tmp_path / "words")
    configs = {kind: open_clip_config(kind) for kind in ("CLIP", "SigLIP")}
    configs["SigLIP"]["text_cfg"]["hf_tokenizer_name"] = str(tmp_path / "words")
    for kind, config in configs.items():
        monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, f"tiny-{kind}", config)
    torch.save({"state_dict": open_clip_model("CLIP")[0].state_dict()}, tmp_path / "clip.pt")
    tags = {"mine": {"file": str(tmp_path / "clip.pt"), **SCALED}, "openai": {"quick_gelu": True}}
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, "tiny-CLIP", tags)


def entry(folder: Path, lines: str, kind: str = "CLIP") -> ModelEntry:
    file = folder / "models.toml"
    file.write_text(f'[[models]]\nname = "m"\nsource = "open_clip:tiny-{kind}"\n{lines}\n')
    (read,) = read_catalog(file)
    return read


@pytest.mark.parametrize("weights", ["mine", "clip.pt"])
def test_weights_are_a_name_or_a_file(tmp_path: Path, weights: str) -> None:
    served = load(entry(tmp_path, f'{PROMPTS}\nweights = "{weights}"'))
    assert served.labels.names == ("a cat", "the remote control")
    assert (served.activation, served.takes_text) == ("softmax", True)
    model, words = open_clip_model("CLIP")
    image = torch.randn(1, 3, 64, 64)
    expected, _ = model.get_logits(image, words(["a cat", "the remote control"]))
    torch.testing.assert_close(served.module(image), expected)


def test_the_preprocessing_is_the_models_own(tmp_path: Path) -> None:
    own = load(entry(tmp_path, f'{PROMPTS}\nweights = "mine"')).preprocessing
    assert (own.mean, own.std, own.crop_fit) == ((0.1, 0.2, 0.3), (0.5, 0.4, 0.3), "squash")
    usual = load(entry(tmp_path, f'{PROMPTS}\nweights = "none"'))
    model = open_clip.create_model("tiny-CLIP")
    theirs = open_clip.transform.image_transform_v2(
        open_clip.transform.PreprocessCfg(**model.visual.preprocess_cfg), is_train=False
    )
    pixels = np.array(usual.preprocessing.apply(PHOTO, "crop").pixels)[None]
    torch.testing.assert_close(usual.normalise(pixels)[0], theirs(PHOTO), atol=1e-5, rtol=1e-5)


def test_random_weights_have_a_seed(tmp_path: Path) -> None:
    one, same, other = (
        load(entry(tmp_path, f'{PROMPTS}\nweights = "none"\nseed = {seed}')) for seed in (1, 1, 2)
    )
    assert one.fingerprint == same.fingerprint != other.fingerprint


def test_siglip_has_a_bias(tmp_path: Path) -> None:
    served = load(entry(tmp_path, f'{PROMPTS}\nweights = "none"', "SigLIP"))
    assert served.activation == "sigmoid"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ('weights = "none"', "key 'prompts': open_clip:tiny-CLIP needs prompts"),
        (
            PROMPTS,
            "'default' is neither a name of weights of tiny-CLIP.*'mine', 'openai', and 'none'",
        ),
        (f'{PROMPTS}\nweights = "laion"', "'laion' is neither a name of weights .*must end in"),
        (f'{PROMPTS}\nweights = "no.pt"', "'no.pt' is neither a name of weights .*No such file"),
        (f'{PROMPTS}\nweights = "openai"', "with QuickGELU; name open_clip:tiny-CLIP-quickgelu"),
        (f'{PROMPTS}\nweights = "mine"\nsha256 = "{"0" * 64}"', "key 'sha256': it is for a file"),
        (f'{PROMPTS}\nweights = "clip.pt"\nsha256 = "{"0" * 64}"', "key 'weights': .*SHA-256"),
        (f'prompts = ["{"cat " * 99}"]\nweights = "none"', "has 101 tokens; .* at most 16"),
        (f'{PROMPTS}\nweights = "none"\ninput_size = 48', "key 'source': CLIP fails on an image"),
    ],
)
def test_what_cannot_be_is_a_sentence(tmp_path: Path, lines: str, words: str) -> None:
    def served() -> None:
        read = entry(tmp_path, lines)
        check(read)
        load(read)

    with pytest.raises(ConfigError, match=words):
        served()


def test_an_unknown_model_has_near_names(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"open_clip has no model 'tiny-CLIB'.*e.g. tiny-CLIP"):
        check(entry(tmp_path, PROMPTS).model_copy(update={"source": "open_clip:tiny-CLIB"}))


def test_without_its_package_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.sources.open_clip.build.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"install the extra 'open-clip'"):
        check(entry(tmp_path, PROMPTS))


def test_requests_explain_it(tmp_path: Path) -> None:
    served = entry(tmp_path, f'{PROMPTS}\nweights = "mine"')
    with running_app(Settings(), [served]) as client:
        for method in ("gradcam", "legrad", "chefer", "rollout", "reciprocam"):
            answer = asked(client, ["a cat", {"text": "a spoon"}], method=method)
            assert answer.status_code == 200, answer.text

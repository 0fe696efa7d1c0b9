"""`gradcam init`: what it finds out about a checkpoint, and says that it does not know."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import torchvision
from PIL import Image
from torch import nn
from typer.testing import CliRunner, Result

from service.cli.main import cli
from service.core.errors import ConfigError
from service.features.init.index import likeness, made, sketch, sketches, sources
from service.features.init.photos import Photos, read_photos
from service.features.init.setup import set_up
from service.features.init.trial import Setting, Trials
from service.loading.served_model import load
from service.loading.sources import Built, build
from service.models.catalog import ModelEntry, read_catalog
from service.models.preprocessing import Preprocessing
from tests.service.live import ROOT
from tests.zoo.parts import Net, means

CLASSES = ("blue", "green", "red")


def init(*words: object) -> Result:
    return CliRunner().invoke(cli, ["init", *map(str, words)], catch_exceptions=False)


def saved(model: nn.Module, folder: Path, name: str = "best.pth", prefix: str = "") -> Path:
    state = {prefix + key: value for key, value in model.state_dict().items()}
    torch.save(state, folder / name)
    return folder / name


def resnet(classes: int = 3) -> nn.Module:
    torch.manual_seed(2)
    model: nn.Module = timm.create_model("test_resnet", num_classes=classes)
    return model


def written(file: Path) -> ModelEntry:
    (entry,) = read_catalog(file)
    return entry


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos in a folder for each class, of 48 × 48 pixels: one channel is bright."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for number in range(36):
        pixels = rng.integers(0, 120, (48, 48, 3), dtype=np.uint8)
        pixels[..., 2 - number % 3] += 100
        file = folder / CLASSES[number % 3] / f"{number}.png"
        file.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(file)
    return folder


def bright(x: torch.Tensor) -> torch.Tensor:
    """Logits for blue, green and red: how bright the channels are of an input of 48 × 48 pixels,
    whose values are 0 to 255 in the order blue, green, red. Of other sizes it knows nothing."""
    if x.shape[-1] < 40:
        raise RuntimeError("the input is too small")
    return means(x) / 20 * (x.shape[-1] == 48)


@pytest.mark.contract
@pytest.mark.parametrize("prefix", ["", "module.", "net.backbone.", "_orig_mod."])
def test_the_architecture_and_the_classes(tmp_path: Path, prefix: str) -> None:
    model = resnet(classes=5)
    file = saved(model, tmp_path, prefix=prefix)
    done = init(file)
    assert done.exit_code == 0, done.output
    entry = written(tmp_path / "models.toml")
    assert (entry.name, entry.source, entry.weights) == ("best", "timm:test_resnet", "best.pth")
    images = torch.randn(2, 3, 96, 96)
    served = build(entry, None).module.eval()
    torch.testing.assert_close(served(images), model.eval()(images))
    text = (tmp_path / "models.toml").read_text()
    assert "# sure: it has the names and shapes of all tensors\nsource" in text
    assert "# not known: the file does not name its 5 classes" in text


def test_a_replaced_head_is_likely_until_photos_tell(tmp_path: Path) -> None:
    model = resnet()
    model.fc = nn.Sequential(nn.Dropout(), nn.Linear(96, 3))
    init(saved(model, tmp_path))
    text = (tmp_path / "models.toml").read_text()
    assert re.search(r"# likely: .*'fc.1' is loaded as 'fc', .* usually are dropout", text)


def test_equal_tensors_and_other_outputs_are_not_known(tmp_path: Path) -> None:
    """timm has EfficientNet-B0 with two paddings, and with blur, of the same tensors."""
    torch.manual_seed(0)
    file = saved(timm.create_model("efficientnet_b0", num_classes=4), tmp_path)
    asked: list[str] = []

    def ask(question: str, proposed: str) -> str:
        asked.append(question)
        return "timm:tf_efficientnet_b0" if "Which" in question else proposed

    source, *_ = set_up(file, None, None).findings
    assert (source.value, source.surety) == ("timm:efficientnet_b0", "not known")
    assert "timm:tf_efficientnet_b0" in source.why
    source, *_ = set_up(file, None, ask).findings
    assert (source.value, source.surety) == ("timm:tf_efficientnet_b0", "sure")
    assert source.why.endswith("and you said so")
    assert len(asked) == 2
    assert "timm:efficientnet_b0, timm:tf_efficientnet_b0" in asked[0]
    assert asked[1] == "Height and width of the model's input in pixels?"


def built(module: nn.Module) -> Built:
    statistics = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    return Built(module, Preprocessing(224, 224, 256, *statistics, Image.Resampling.BILINEAR))


@pytest.mark.contract
def test_photos_tell_the_size_the_values_and_the_order_of_channels(photos: Path) -> None:
    """Three things that are right only together, by hand."""
    outcome = Trials(built(Net(bright)), read_photos(str(photos), 10**6), 30).outcome()
    assert outcome.setting == Setting(48, "0 to 255", "bgr")
    assert (outcome.score.right, outcome.own, outcome.knows) == (1.0, Setting(224, ""), True)
    assert outcome.own_score.right == pytest.approx(1 / 3)
    assert outcome.is_complete


def surer(x: torch.Tensor) -> torch.Tensor:
    """As `bright`, and a little surer of an input of 64 × 64 pixels."""
    return bright(x) if x.shape[-1] != 64 else means(x) / 19


def test_a_size_is_that_of_the_photos_if_another_is_not_clearly_better(photos: Path) -> None:
    outcome = Trials(built(Net(surer)), read_photos(str(photos), 10**6), 30).outcome()
    assert (outcome.setting.size, outcome.score.right) == (48, 1.0)


def gray(x: torch.Tensor) -> torch.Tensor:
    """Logits of the mean of the channels, in any order: of what is red and what is blue it knows
    nothing, and is a little surer of it the other way round."""
    red, _, blue = means(x).unbind(1)
    sure = 10 + (blue > red) * 0.5
    return torch.stack([sure, torch.zeros_like(sure), torch.zeros_like(sure)], 1)


def test_a_setting_that_makes_the_model_surer_and_not_more_often_right_is_not_taken(
    photos: Path,
) -> None:
    seen = read_photos(str(photos), 10**6)
    one = Photos(seen.images, [0] * len(seen.images), seen.classes, seen.side)
    outcome = Trials(built(Net(gray)), one, 30).outcome()
    assert (outcome.setting, outcome.score.right) == (outcome.own, 1.0)


def test_photos_that_tell_nothing_change_nothing(photos: Path) -> None:
    torch.manual_seed(3)
    outcome = Trials(built(resnet()), read_photos(str(photos), 10**6), 3).outcome()
    if not outcome.knows:
        assert outcome.score.right < 0.6
    constant = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 3))
    nn.init.zeros_(constant.get_parameter("2.weight"))
    outcome = Trials(built(constant), read_photos(str(photos), 10**6), 3).outcome()
    assert (outcome.setting, outcome.knows) == (outcome.own, False)


def test_a_size_that_all_photos_have_is_likely(photos: Path, tmp_path: Path) -> None:
    done = init(saved(resnet(classes=5), tmp_path), "--photos", photos / "red")
    assert "The photos are not in a folder for each class" in " ".join(done.output.split())
    text = (tmp_path / "models.toml").read_text()
    assert (
        "# likely: all photos are 48 × 48; the architecture's own is 160\ninput_size = 48" in text
    )


def test_folders_that_are_not_the_classes(photos: Path, tmp_path: Path) -> None:
    done = init(saved(resnet(classes=5), tmp_path), "--photos", photos)
    words = "in 3 folders, and the model has 5 classes"
    assert words in " ".join(done.output.split())
    assert not (tmp_path / "best.labels.txt").exists()


def test_labels_and_paths_start_at_the_written_file(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.features.init.setup.TRIAL_SECONDS", 2.0)
    (tmp_path / "served").mkdir()
    file = saved(resnet(), tmp_path, "my model (2).pt")
    shutil.copytree(photos, tmp_path / "my photos")
    catalog = tmp_path / "served" / "m.toml"
    done = init(file, "--photos", tmp_path / "my photos", "--output", catalog)
    step = f"gradcam batch '{tmp_path}/my photos' --output maps --report report.html"
    assert f"  {step} --models {catalog}\n" in done.output, "what one does with photos is next"
    entry = written(catalog)
    assert (entry.name, entry.weights) == ("my-model-2", "../my model (2).pt")
    assert entry.labels
    assert entry.path(entry.labels).read_text().split() == [*CLASSES]
    build(entry, None)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: nn.LSTM(20, 30), "it has 4 tensors, and none is that of a convolution"),
        (
            lambda: nn.Sequential(nn.Conv2d(3, 7, 5), nn.Flatten(), nn.LazyLinear(4)),
            "no architecture of torchvision or timm has its tensors, such as '0.weight'",
        ),
        (
            lambda: _two_layers(),
            r"nearest architecture is torchvision:resnet18, .* unknown .*\('resnet18', weights=",
        ),
    ],
)
def test_what_no_architecture_is(tmp_path: Path, make: Callable[[], nn.Module], words: str) -> None:
    model = make()
    if isinstance(model, nn.Sequential):
        model(torch.zeros(1, 3, 16, 16))
    with pytest.raises(ConfigError, match=re.compile(words, re.DOTALL)):
        init(saved(model, tmp_path))
    assert not (tmp_path / "models.toml").exists()


def _two_layers() -> nn.Module:
    model: nn.Module = torchvision.models.resnet18()
    model.fc = nn.Sequential(nn.Linear(512, 9), nn.ReLU(), nn.Linear(9, 3))
    return model


def test_what_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no .*none\.pth"):
        init(tmp_path / "none.pth")
    (tmp_path / "words.pth").write_text("weights")
    with pytest.raises(ConfigError, match=r"begins with b'weights', which torch\.save never"):
        init(tmp_path / "words.pth")
    file = saved(resnet(), tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="has no images"):
        init(file, "--photos", tmp_path / "empty")
    (tmp_path / "models.toml").touch()
    with pytest.raises(ConfigError, match="is there already; --output names another file"):
        init(file)


def test_what_fails_leaves_nothing_behind(photos: Path, tmp_path: Path) -> None:
    file = saved(resnet(), tmp_path)
    for words, said in (
        (("--name", "a b/c"), "it has letters, digits"),
        (("--output", tmp_path / "none" / "m.toml"), "there is no folder"),
    ):
        with pytest.raises(ConfigError, match=said):
            init(file, *words)
    (tmp_path / "best.labels.txt").write_text("mine\n")
    with pytest.raises(ConfigError, match="is there already, with other labels"):
        init(file, "--photos", photos)
    assert (tmp_path / "best.labels.txt").read_text() == "mine\n"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["best.labels.txt", "best.pth"]
    odd = saved(resnet(), tmp_path, 'a\n"b".pth')
    init(odd)
    assert written(tmp_path / "models.toml").weights == 'a\n"b".pth'


def test_tensors_beside_the_model_are_named(tmp_path: Path) -> None:
    """A backbone whose classifier stands beside it: the backbone alone is not the model."""
    model = nn.Module()
    model.backbone, model.classifier = resnet(classes=40), nn.Linear(40, 4)
    assert "gradcam batch" not in init(saved(model, tmp_path)).output, "no photos are known"
    text = (tmp_path / "models.toml").read_text()
    assert re.search(r"# likely: .*; 2 other tensors are left out, such as 'classifier", text)


def test_one_logit_has_the_labels_of_two_folders(photos: Path, tmp_path: Path) -> None:
    folder = tmp_path / "two"
    folder.mkdir()
    for each in CLASSES[:2]:
        shutil.copytree(photos / each, folder / each)
    init(saved(resnet(classes=1), tmp_path), "--photos", folder)
    entry = written(tmp_path / "models.toml")
    assert (tmp_path / "best.labels.txt").read_text().split() == ["blue", "green"]
    assert load(entry).labels.names == ("blue", "green")


def test_a_folder_of_hugging_face_and_a_graph(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text('{"model_type": "vit"}')
    (tmp_path / "mine" / "model.safetensors").touch()
    for number, place in enumerate((tmp_path / "mine", tmp_path / "mine" / "model.safetensors")):
        init(place, "--output", tmp_path / f"{number}.toml", "--name", "mine")
        assert written(tmp_path / f"{number}.toml").source == "hf:mine"
        text = (tmp_path / f"{number}.toml").read_text()
        assert "# not known: " in text
        assert "put its preprocessor_config.json beside it" in text
    file = saved(resnet(), tmp_path / "mine")  # which is not transformers' beside its config.json
    init(file, "--output", tmp_path / "2.toml")
    assert written(tmp_path / "2.toml").source == "timm:test_resnet"
    (tmp_path / "net.onnx").touch()
    init(tmp_path / "net.onnx")
    assert written(tmp_path / "models.toml").source == "onnx:net.onnx"


@pytest.mark.contract
def test_the_index_is_that_of_the_installed_versions() -> None:
    known = sketches()
    unknown = [source.partition(":") for source in sources() if source not in known]
    # Other tests add models of their own to timm's registry.
    own = [name for _, _, name in unknown if timm.model_entrypoint(name).__module__[:5] == "timm."]
    assert not own, "python -m service.features.init.index"
    for source in ("torchvision:regnet_y_16gf", "timm:resnet26t", "timm:vit_base_mci_224"):
        module = made(source)
        assert module is not None
        assert (sketch(module.state_dict()) == known[source]).all(), source


def test_a_sketch_estimates_the_share_of_equal_tensors() -> None:
    one = {f"layer{n}.weight": torch.empty(n) for n in range(200)}
    half = {name: value for n, (name, value) in enumerate(one.items()) if n % 2}
    other = {f"head{n}.weight": torch.empty(n) for n in range(100)}
    assert likeness(sketch(one), sketch(one)) == 1
    assert likeness(sketch(one), sketch({f"model.{n}": v for n, v in one.items()})) < 1
    assert 0.2 <= likeness(sketch(one), sketch(half)) <= 0.8
    assert likeness(sketch(one), sketch(other)) < 0.2


@pytest.mark.slow
def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/your-model.md, from training to the report."""
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "your-model.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(code, {})
    said = []
    for line in re.findall(r"```sh\ngradcam (.*?)\n```", page)[:3]:
        done = CliRunner().invoke(cli, line.split(), catch_exceptions=False)
        assert done.exit_code == 0, done.output
        said.append(done.output)
    entry = written(Path("models.toml"))
    assert (entry.source, entry.input_size) == ("torchvision:resnet18", 64)
    assert entry.mean == entry.std == (0.5, 0.5, 0.5)
    report = Path("report.html").read_text()
    assert "Predicted as named" in report
    assert len([*Path("explanations").iterdir()]) == 1

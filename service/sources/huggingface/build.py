"""Models of Hugging Face, from an entry to a classifier, a segmenter or a detector."""

from __future__ import annotations

from functools import partial

from cam import PromptClassifier
from service.loading.sources import Answering, Built
from service.models.catalog import ModelEntry
from service.sources.huggingface.answering import check_answering, load_answering
from service.sources.huggingface.models import (
    answers,
    check_place,
    class_of,
    config_of,
    labels_of,
    module_of,
    place_of,
    prepared,
)
from service.sources.prompts import image_text


def check(entry: ModelEntry, what: str) -> None:
    kind = check_place(entry, what)
    if kind and answers(kind):
        check_answering(entry)


def answering(entry: ModelEntry, what: str) -> Answering | None:
    place = place_of(entry, what)
    if not answers(class_of(entry, config_of(entry, place))):
        return None
    return partial(load_answering, entry, place)


def build(entry: ModelEntry, what: str, classes: int | None) -> Built:
    place = place_of(entry, what)
    config = config_of(entry, place)
    preprocessing = prepared(entry, place)
    module = module_of(entry, place, config, classes)
    if isinstance(module, PromptClassifier):
        return image_text(entry, module, preprocessing)
    labels = labels_of(entry, config) if classes is None else ()
    return Built(module, preprocessing, labels)

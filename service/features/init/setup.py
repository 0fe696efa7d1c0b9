"""Finding out how a checkpoint can be served."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from cam.counts import counted
from cam.errors import CamError
from service.core.errors import ConfigError
from service.core.logs import quiet
from service.features.init.architectures import Match, SearchResult, search
from service.features.init.entry import EntryValue, Surety
from service.features.init.photos import Photos
from service.features.init.trial import (
    RANGES,
    TrialResult,
    Trials,
    clearly_best,
    logits,
    takes,
    tried,
)
from service.loading.sources import Built, build
from service.loading.weights import State, WeightsError, read_shapes
from service.models.catalog import CATALOG, ModelEntry

MOST: Final = 8
"""Largest number of architectures with the file's tensors that are computed and compared."""
TRIAL_SECONDS: Final = 30.0
"""About how long photos are tried."""
EQUAL: Final = 1e-4
"""Largest difference of outputs that are equal, as a share of the largest output."""
WEIGHTS_OF_TRANSFORMERS: Final = re.compile(r"(model|pytorch_model)\b.*\.(safetensors|bin)$")
PROCESSOR: Final = "preprocessor_config.json"
GRAPHS: Final = {".onnx": "onnx", ".xml": "openvino"}
Ask = Callable[[str, str], str]
"""Asks a question with a proposed answer, and returns the answer."""


@dataclass(frozen=True, eq=False)
class Choice:
    """Architectures with equal outputs, of which the first is taken."""

    names: tuple[str, ...]
    match: Match
    built: Built
    output: Tensor
    """Its logits for one input of noise, float32 (1, classes)."""


@dataclass(frozen=True)
class SetUp:
    """What was found out about a file."""

    findings: list[EntryValue]
    labels: tuple[str, ...] = ()
    """Labels to write into a file."""
    said: str = ""
    """A sentence about photos that did not help."""


def set_up(file: Path, photos: Photos | None, ask: Ask | None) -> SetUp:
    """Find out how a file of weights can be served.

    Args:
        ask: asks the user what cannot be known; None if there is nobody to ask.

    Raises:
        ConfigError: if the file is not one of weights, or if no architecture has its tensors.
    """
    if file.suffix in GRAPHS:
        kind = GRAPHS[file.suffix]
        why = f"the file is a whole network; see docs/onnx.md for what an {kind}: entry can state"
        return SetUp([EntryValue("source", f"{kind}:{file.name}", "sure", why)])
    if config := _config_beside(file):
        folder = "." if file.is_file() else file.name
        why = f"{config} says that it is a model of transformers"
        surety: Surety = "sure"
        if not config.with_name(PROCESSOR).exists():
            surety = "not known"
            why += f"; put its {PROCESSOR} beside it, without which it cannot be served"
        return SetUp([EntryValue("source", f"hf:{folder}", surety, why)])
    try:
        state = read_shapes(file)
    except WeightsError as error:
        raise ConfigError(f"{file}: {error}") from None
    found = search(state)
    if not found.matches:
        raise ConfigError(f"{file}: {_why_none(state, found)}")
    choices = _choices(file, found.matches)
    if not choices:
        names = ", ".join(match.source for match in found.matches[:MOST])
        raise ConfigError(f"{file}: its tensors are those of {names}, which cannot be loaded")
    return _of_choices(file, found, choices, photos, ask)


def _of_choices(
    file: Path,
    found: SearchResult,
    choices: Sequence[Choice],
    photos: Photos | None,
    ask: Ask | None,
) -> SetUp:
    classes = choices[0].output.shape[1]
    judged = photos if photos and len(photos.classes) == classes else None
    outcome = Trials(choices[0].built, judged, TRIAL_SECONDS).outcome() if judged else None
    chosen, told = 0, ""
    if outcome and outcome.knows and len(choices) > 1:
        # Models with the same tensors were trained with the same preprocessing.
        scores = [tried(each.built, outcome.setting, outcome.photos) for each in choices]
        best = clearly_best(scores)
        chosen, told = best or 0, "" if best is None else "it is right more often on the photos"
    if not told and len(choices) > 1 and ask:
        names = [choice.match.source for choice in choices]
        answer = ask(f"Which one is it: {', '.join(names)}?", names[chosen])
        if answer in names:
            chosen, told = names.index(answer), "you said so"
    choice = choices[chosen]
    findings = [_source(choice, choices, found, outcome, told)]
    findings.append(EntryValue("weights", file.name, "sure", "the file"))
    labels, finding = _labels(file, classes, photos, outcome)
    findings.append(finding)
    findings += _preprocessing(choice.built, photos, outcome, ask)
    return SetUp(findings, labels, _said(classes, photos, outcome))


def _config_beside(file: Path) -> Path | None:
    """Return the config.json of a Hugging Face model, if a folder, or a file that is named as
    transformers names weights, belongs to one."""
    if not file.is_dir() and not WEIGHTS_OF_TRANSFORMERS.match(file.name):
        return None
    config = (file if file.is_dir() else file.parent) / "config.json"
    try:
        held = json.loads(config.read_text())
    except (OSError, ValueError):
        return None
    return config if isinstance(held, dict) and "model_type" in held else None


def _why_none(state: State, found: SearchResult) -> str:
    """Return why nothing fits, and what can be done, as half a sentence."""
    if not any(value.ndim == 4 for value in state.values()):
        return (
            f"it has {counted(len(state), 'tensor')}, and none is that of a convolution, so it is "
            "not an image model of torchvision or timm; a factory can serve any other module that "
            'takes images (source = "factory:package.module:function")'
        )
    if found.nearest is None:
        return (
            "no architecture of torchvision or timm has its tensors, such as "
            f"{next(iter(state))!r}; for a model of transformers, put its config.json beside it; "
            'for a network of your own, use source = "factory:package.module:function"'
        )
    return (
        f"the nearest architecture is {found.nearest}, and {found.why}; a detector or segmenter of "
        "torchvision is named in models.toml (docs/detectors.md); if you changed the layers, "
        "a function that builds the changed model can be served:\n\n"
        f"{_factory(found.nearest)}\n"
        'source = "factory:model:make" in models.toml, with the folder of model.py in PYTHONPATH'
    )


def _factory(source: str) -> str:
    library, _, name = source.partition(":")
    made = (
        f"timm.create_model({name!r})"
        if library == "timm"
        else f"torchvision.models.get_model({name!r}, weights=None)"
    )
    return (
        f"  # model.py\n  import {library}\n\n  def make():\n      model = {made}\n"
        "      ...  # change it as you did before training\n      return model\n"
    )


def _choices(file: Path, matches: Sequence[Match]) -> list[Choice]:
    """Return the architectures with the file's tensors, one for all whose outputs are equal.

    torchvision's come first, then the ones with the shortest names."""
    ordered = sorted(matches, key=lambda each: (each.source.startswith("timm"), len(each.source)))
    choices: list[Choice] = []
    for match in ordered[:MOST]:
        entry = ModelEntry(name="model", source=match.source, weights=file.name)
        try:
            with quiet(build.__module__):  # it warns of the head, of which the finding speaks
                built = build(entry.of_file(file.parent / CATALOG), None)
            side = choices[0].built.preprocessing.width if choices else built.preprocessing.width
            output = _output(built, side if takes(built, side) else built.preprocessing.width)
        except (ConfigError, CamError, RuntimeError, ValueError):
            continue
        for number, former in enumerate(choices):
            if _is_equal(output, former.output):
                choices[number] = replace(former, names=(*former.names, match.source))
                break
        else:
            choices.append(Choice((match.source,), match, built, output))
    return choices


def _output(built: Built, side: int) -> Tensor:
    noise = torch.Generator().manual_seed(0)
    return logits(built, torch.randn((1, 3, side, side), generator=noise))


def _is_equal(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    return bool((one - other).abs().max() <= EQUAL * one.abs().max())


def _source(
    choice: Choice,
    choices: Sequence[Choice],
    found: SearchResult,
    outcome: TrialResult | None,
    told: str,
) -> EntryValue:
    surety: Surety = "sure"
    why = "it has the names and shapes of all tensors"
    if len(choice.names) > 1:
        why += f"; {', '.join(choice.names[1:])} would give the same outputs"
    others = [each.match.source for each in choices if each is not choice]
    if others and told:
        why += f"; {', '.join(others)} would give others, and {told}"
    elif others:
        # torchvision's are by far the most common.
        surety = "likely" if choice.match.source.startswith("torchvision:") else "not known"
        why = f"{', '.join(others)}, too, would fit the tensors, and give other outputs; "
        why += "the photos do not tell" if outcome else "photos in folders (--photos) may tell"
    elif len(found.matches) > MOST or not found.is_complete:
        surety = "likely"
        why += "; not all architectures with such tensors were compared"
    if left := choice.match.left_out:
        surety = "likely" if surety == "sure" else surety
        rest = counted(len(left), "other tensor is", "other tensors are")
        why += f"; {rest} left out, such as {left[0]!r}"
    head = choice.match.head
    if head and not (outcome and outcome.knows):
        surety = "likely" if surety == "sure" else surety
        why += (
            f"; {head.given!r} is loaded as {head.own!r}, and layers without weights around it, "
            "which usually are dropout, are not in the file"
        )
    return EntryValue("source", choice.match.source, surety, why)


def _labels(
    file: Path, classes: int, photos: Photos | None, outcome: TrialResult | None
) -> tuple[tuple[str, ...], EntryValue]:
    if photos and len(photos.classes) == classes:
        why = "the folders of the photos in the order of their names, as ImageFolder counts them"
        surety: Surety = "likely" if outcome and outcome.knows else "not known"
        names = tuple(" ".join(name.split()) for name in photos.classes)
        return names, EntryValue("labels", f"{file.stem}.labels.txt", surety, why)
    if classes == 1000:
        return (), EntryValue("labels", "imagenet", "likely", "there are 1000 classes")
    why = (
        f"the file does not name its {counted(classes, 'class', 'classes')}: write one per line "
        "into a file"
    )
    return (), EntryValue("labels", None, "not known", why)


def _preprocessing(
    built: Built, photos: Photos | None, outcome: TrialResult | None, ask: Ask | None
) -> list[EntryValue]:
    own = min(built.preprocessing.height, built.preprocessing.width)
    if outcome and outcome.knows:
        return _tried(outcome)
    size = own
    surety: Surety = "not known"
    why = f"{own} is the architecture's own; photos in a folder for each class (--photos) tell more"
    if photos and photos.side and photos.side != own and takes(built, photos.side):
        size, surety = photos.side, "likely"
        why = f"all photos are {size} × {size}; the architecture's own is {own}"
    if ask:
        answer = ask("Height and width of the model's input in pixels?", str(size))
        if answer.isdigit() and takes(built, int(answer)):
            size, surety, why = int(answer), "sure", "you said so"
    manner = f"{_mean(built)} is the source's own"
    return [
        EntryValue("input_size", size if size != own else None, surety, why),
        EntryValue("mean", None, "not known", manner),
    ]


def _mean(built: Built) -> str:
    mean, std = (
        ", ".join(f"{value:.3g}" for value in each)
        for each in (built.preprocessing.mean, built.preprocessing.std)
    )
    return f"mean {mean} and std {std}"


def _tried(outcome: TrialResult) -> list[EntryValue]:
    best, own = outcome.setting, outcome.own
    photos = counted(len(outcome.photos.images), "photo is", "photos are")
    right = f"{outcome.score.right:.0%} of {photos} right"
    surety: Surety = "sure" if outcome.is_complete else "likely"
    if best == own:
        said = f"{right}, and no other setting that was tried is clearly better"
        return [EntryValue("input_size", None, surety, said)]
    why = f"{right}; with the source's own preprocessing at {own.size} it is "
    why += f"{outcome.own_score.right:.0%}"
    findings = [EntryValue("input_size", best.size, surety, why)]
    if best.range:
        values: dict[str, Any] = RANGES[best.range]
        for key in ("mean", "std"):
            findings.append(EntryValue(key, list(values[key]), surety, f"{best.range}; {right}"))
        if values.get("byte_range"):
            findings.append(EntryValue("value_range", "0-255", surety, f"{best.range}; {right}"))
    if best.order == "bgr":
        findings.append(EntryValue("channel_order", "bgr", surety, right))
    return findings


def _said(classes: int, photos: Photos | None, outcome: TrialResult | None) -> str:
    """Return a sentence about photos that did not help; "" if they did."""
    if photos and photos.classes and len(photos.classes) != classes:
        return (
            f"The photos are in {counted(len(photos.classes), 'folder')}, and the model has "
            f"{counted(classes, 'class', 'classes')}, so what it says of the photos was not "
            "compared."
        )
    if photos and not photos.classes:
        return "The photos are not in a folder for each class, so their classes are not known."
    if outcome and not outcome.knows:
        return (
            f"The model is right about {outcome.score.right:.0%} of "
            f"{counted(len(outcome.photos.images), 'photo')}, which may be chance: perhaps its "
            "classes are not in the order of the folders' names."
        )
    return ""

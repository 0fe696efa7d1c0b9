"""Where models come from: the kinds of sources, and what builds the models of each.

Nothing here needs torch: functions are named by their places and imported when a model is built.

A package may add sources: each entry point of the group `gradcam.sources` is a `Source`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from cam.extensions import added
from cam.methods.method import Function

GROUP: Final = "gradcam.sources"
"""The group of entry points whose objects are further sources."""
NAMED: Final = "[A-Za-z0-9._-]+"
PLACE: Final = r"[^\x00-\x1f]+"


@dataclass(frozen=True, kw_only=True)
class Source:
    """One kind of source. An entry names it as `NAME:WHAT`."""

    name: str
    what: str = NAMED
    """Regular expression of what follows the colon."""
    told: str
    """What may be written, for people, in the middle of a sentence."""
    build: Function
    """Takes the entry (`service.models.catalog.ModelEntry`), what follows the colon, and the number
    of classes of the head, None for the source's own; returns a `service.loading.sources.Built`.
    What it raises about the entry is made by `entry.mistake`."""
    check: Function
    """Takes the entry and what follows the colon, and finds the model without building it, or
    raises the mistake."""
    library: str | None = None
    """Package that takes seconds to import, and makes the models."""
    takes_prompts: bool = False
    """Whether an entry may name prompts, which are then the classes."""
    own_weights: bool = False
    """Whether `weights` of an entry names weights of the source, and not a file."""
    anything: bool = False
    """Whether its models may return anything; those of libraries return scores of classes."""
    is_code: bool = False
    """Whether it names the operator's own code. Its head is as the code makes it, what was found
    out about a model is not kept for the next start, and a folder with a model may not name it."""
    is_graph: bool = False
    """Whether it names the file of a network, which OpenVINO runs on the CPU."""


_HOME: Final = "service.loading.sources"
_BUILT_IN: Final = {
    source.name: source
    for source in (
        Source(
            name="embedded",
            told="`embedded:efficientnet-lite0`, `embedded:efficientnet-lite0-prompts`, "
            "`embedded:shapes`",
            build=f"{_HOME}:embedded",
            check=f"{_HOME}:is_embedded",
            library="timm",
        ),
        Source(
            name="torchvision",
            told="`torchvision:NAME`",
            build=f"{_HOME}:of_torchvision",
            check=f"{_HOME}:dense_of_torchvision",
            library="torchvision",
        ),
        Source(
            name="timm",
            told="`timm:NAME`",
            build=f"{_HOME}:of_timm",
            check=f"{_HOME}:known_to_timm",
            library="timm",
        ),
        Source(
            name="open_clip",
            told="`open_clip:NAME`",
            build=f"{_HOME}:of_open_clip",
            check="service.loading.openclip:check_model",
            takes_prompts=True,
            own_weights=True,
        ),
        Source(
            name="hf",
            what=PLACE,
            told="`hf:FOLDER` (from the TOML file's folder) or `hf:NAME` (on the hub) of a Hugging "
            "Face model",
            build=f"{_HOME}:of_huggingface",
            check=f"{_HOME}:check_huggingface",
            takes_prompts=True,
        ),
        Source(
            name="onnx",
            what=PLACE,
            told="`onnx:FILE.onnx` (from the TOML file's folder)",
            build=f"{_HOME}:of_graph",
            check=f"{_HOME}:graph_file",
            anything=True,
            is_graph=True,
        ),
        Source(
            name="openvino",
            what=PLACE,
            told="`openvino:FILE.xml` (from the TOML file's folder)",
            build=f"{_HOME}:of_graph",
            check=f"{_HOME}:graph_file",
            anything=True,
            is_graph=True,
        ),
        Source(
            name="factory",
            what="[A-Za-z0-9_.]+:[A-Za-z0-9_]+",
            told="`factory:package.module:function`, your own function that returns a module",
            build=f"{_HOME}:of_factory",
            check=f"{_HOME}:function_of",
            anything=True,
            is_code=True,
        ),
    )
}


def _problem(source: Source) -> str | None:
    try:
        re.compile(source.what)
    except re.error as error:
        return f"its `what` is not a regular expression: {error}"
    return None


SOURCES: Final = _BUILT_IN | {
    source.name: source for source in added(GROUP, Source, __name__, _BUILT_IN, _problem)
}
"""Name of a kind of source → the source."""


def source_of(text: str) -> tuple[Source, str]:
    """Return the source that an entry names, and what follows the colon."""
    name, _, what = text.partition(":")
    return SOURCES[name], what


def told_of(*, graphs: bool) -> str:
    """Return what may be written as a source, for people.

    Args:
        graphs: whether networks in files are among them.
    """
    *first, last = (each.told for each in SOURCES.values() if graphs or not each.is_graph)
    return f"{', '.join(first)}, or {last}"


PATTERN: Final = "|".join(f"^{re.escape(name)}:{source.what}$" for name, source in SOURCES.items())

"""What the service knows of a runtime without loading it: a faster way to compute a model's maps
than the unchanged model in PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cam.methods.method import Function


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """One way to compute maps at a model's default layer."""

    name: str
    """What entries, answers and the log call it. All that PyTorch runs is `torch`."""
    told: str
    """What an entry may write to have it, for people."""
    path: Function
    """Takes the model (`service.loading.served_model.ServedModel`), the paths that runtimes before
    it in the list have made, the `dtype` in which it may compute, the `sizes` of batches, and the
    model's `head` and `reading`. Returns its `cam.passes.compiled_path.CompiledPath`, or None if it
    has none for the model."""
    problem: Function | None = None
    """Takes the entry and the device. Returns why it cannot run such models, as half a sentence, or
    None. Without it, it can run all."""
    title: str = "PyTorch"
    """Its name in a sentence."""
    packages: tuple[str, ...] = ()
    """Distributions whose versions decide what it does."""
    least_seconds: float = 0.0
    """If the exact path takes less time for all the images, and no entry names the runtime, it is
    only used if an earlier start has prepared it."""
    is_kept: bool = False
    """Whether its judgement is kept for the next start."""

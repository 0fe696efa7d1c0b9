"""The methods that explain the tokens of an answer by passes of their own."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from cam.answers.answer import AnswerMethod, AnswerProgress
from cam.answers.image_tokens import on_photo
from cam.answers.vision_language import Asked, Photo, VisionLanguageModel
from cam.drawing.heatmap import Float
from cam.errors import ModelError

Maps = Generator[AnswerProgress, None, list[Float]]
Passes = Callable[[VisionLanguageModel, Asked, Sequence[int]], Maps]
CELLS: Final = 8
"""Rows and columns of the parts of the photo that occlusion takes away."""


def gradcam(model: VisionLanguageModel, asked: Asked, tokens: Sequence[int]) -> Maps:
    """Grad-CAM at the input of the middle block of the language model (Selvaraju et al. 2017),

        relu(Σ_d α_d h_nd),   α_d = mean over the image tokens n of ∂y / ∂h_nd,

    for the logit y of each token, with the hidden states h_n of the image tokens. One pass of the
    whole answer, and one backward pass for each token from there on.
    """
    blocks = _blocks(model)
    seen: list[Tensor] = []

    def watch(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        hidden = given[0] if given else named["hidden_states"]
        seen.append(hidden.detach().requires_grad_())
        if given:
            return (seen[0], *given[1:]), named
        return given, {**named, "hidden_states": seen[0]}

    handle = blocks[len(blocks) // 2].register_forward_pre_hook(watch, with_kwargs=True)
    try:
        with torch.enable_grad():
            read, _ = model.read(asked, tokens, use_cache=False)
    finally:
        handle.remove()
    states = seen[0].detach()[0, asked.image].float()
    maps: list[Float] = []
    for number, token in enumerate(tokens):
        (gradient,) = torch.autograd.grad(
            read.logits[number, token], seen[0], retain_graph=number + 1 < len(tokens)
        )
        weights = gradient[0, asked.image].float().mean(0)
        maps.append(on_photo((states @ weights).relu().cpu().numpy(), asked.tiles))
        yield AnswerProgress(number + 1, len(tokens), "gradcam")
    return maps


def attention(model: VisionLanguageModel, asked: Asked, tokens: Sequence[int]) -> Maps:
    """The mean attention of all heads and blocks from the place where each token is said to the
    image tokens: a baseline, which knows nothing of the token itself. One pass of the whole answer
    with materialised attention."""
    with _eager(model), torch.no_grad():
        _, output = model.read(asked, tokens, use_cache=False, output_attentions=True)
    kept = [weights for weights in output.attentions or () if weights is not None]
    if not kept:
        raise ModelError(f"a {type(model.model).__name__} returns no attention weights")
    mean = torch.stack([weights[0].float().mean(0) for weights in kept]).mean(0)
    yield AnswerProgress(1, 1, "attention")
    from_there = mean[asked.length - 1 : asked.length - 1 + len(tokens)][:, asked.image]
    return [on_photo(row, asked.tiles) for row in from_there.cpu().numpy()]


def occlusion(model: VisionLanguageModel, asked: Asked, tokens: Sequence[int]) -> Maps:
    """How much less probable each token is without a part of the photo (Zeiler and Fergus, ECCV
    2014, section 4.2): relu(log p(token | photo) − log p(token | photo with the part blurred)), for
    each cell of a grid on the photo. One pass for each cell; it needs no gradients and no hidden
    states.
    """
    photo = asked.photo
    height, width = photo.shape[:2]
    rows, columns = min(CELLS, height), min(CELLS, width)
    without = blurred(photo)
    whole = likely(model, asked, tokens)
    falls = np.zeros((len(tokens), rows, columns), np.float32)
    for number in range(rows * columns):
        row, column = divmod(number, columns)
        part = (
            slice(row * height // rows, (row + 1) * height // rows),
            slice(column * width // columns, (column + 1) * width // columns),
        )
        changed = photo.copy()
        changed[part] = without[part]
        left = likely(model, model.with_photo(asked, changed), tokens)
        falls[:, row, column] = np.maximum(whole - left, 0)
        yield AnswerProgress(number + 1, rows * columns, "occlusion")
    return list(falls)


OWN_PASSES: Final[Mapping[AnswerMethod, Passes]] = {
    "gradcam": gradcam,
    "attention": attention,
    "occlusion": occlusion,
}
"""Method → the passes that it makes once the answer is there. The maps of other methods come from
the passes that make the answer."""


def blurred(photo: Photo) -> Photo:
    """Return the photo blurred until nothing is left but its mean colour. Of a less blurred one, a
    model still tells colours, and where they are."""
    mean = photo.reshape(-1, 3).mean(0)
    return np.full_like(photo, np.rint(mean))


def likely(model: VisionLanguageModel, asked: Asked, tokens: Sequence[int]) -> Float:
    """Return the log-probability of each token, float32 (T,)."""
    with torch.no_grad():
        read, _ = model.read(asked, tokens, use_cache=False)
    rows = read.logits[:-1].log_softmax(-1)
    found: Float = rows[torch.arange(len(tokens)), list(tokens)].cpu().numpy()
    return found


def _blocks(model: VisionLanguageModel) -> nn.ModuleList:
    """Return the blocks of the language model.

    Raises:
        ModelError: if they are not found.
    """
    text = model.model.config.get_text_config()
    found = [
        module
        for name, module in model.model.named_modules()
        if isinstance(module, nn.ModuleList)
        and len(module) == text.num_hidden_layers
        and name.endswith("layers")
        and "vision" not in name
    ]
    if not found:
        raise ModelError(f"the blocks of the {type(model.model).__name__} were not found")
    return found[-1]


@contextmanager
def _eager(model: VisionLanguageModel) -> Iterator[None]:
    """Let the model materialise its attention within the block."""
    before = model.model.config._attn_implementation
    model.model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.model.set_attn_implementation(before)

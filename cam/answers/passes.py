"""The methods that explain the tokens of an answer by passes of their own."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from cam.answers.answer import AnswerProgress
from cam.answers.image_tokens import on_photo
from cam.answers.methods import Blocks
from cam.answers.vision_language import Asked, Photo, VisionLanguageModel
from cam.drawing.placement import Float
from cam.errors import ModelError
from cam.methods.relevance_rules import RelevanceRules

GROUP: Final = 8
"""Number of tokens that LeGrad explains in one step; other answers take their turns between two."""
Maps = Generator[AnswerProgress, None, list[Float]]
CELLS: Final = 8
"""Rows and columns of the parts of the photo that occlusion takes away."""
EAGLE_CELLS: Final = 6
"""Rows and columns of the parts of the photo that EAGLE chooses from."""
FOUND: Final = 16
"""Number of parts that EAGLE finds."""
RANKED: Final = 5
"""EAGLE tries all parts at the first of so many steps."""
SCOPE: Final = 10
"""Number of parts that EAGLE tries at the other steps."""


def gradcam(model: VisionLanguageModel, asked: Asked, tokens: Sequence[int]) -> Maps:
    """Grad-CAM at the input of the middle block of the language model (Selvaraju et al. 2017),

        relu(Σ_d α_d h_nd),   α_d = mean over the image tokens n of ∂y / ∂h_nd,

    for the logit y of each token, with the hidden states h_n of the image tokens. One pass of the
    whole answer, and one backward pass for each token from there on.
    """
    block = _blocks(model)[_middle(model)]
    return _weighted("gradcam", model, asked, tokens, block, lambda h, g: h @ g.mean(0))


def hirescam(model: VisionLanguageModel, asked: Asked, tokens: Sequence[int]) -> Maps:
    """HiResCAM at the input of the middle block of the language model (Draelos and Carin 2020):
    relu(Σ_d h_nd · ∂y / ∂h_nd), in the passes of `gradcam`."""
    block = _blocks(model)[_middle(model)]
    return _weighted("hirescam", model, asked, tokens, block, _product)


def attnlrp(model: VisionLanguageModel, asked: Asked, tokens: Sequence[int]) -> Maps:
    """AttnLRP of the language model (Achtibat et al., ICML 2024): relu(Σ_d h_nd · ∂y / ∂h_nd) for
    the image tokens n as the first block reads them, where the gradient is that of the rules for
    language models (ε): see `cam.methods.relevance_rules`. One pass of the whole answer, and one
    backward pass for each token through all blocks.

    Raises:
        MethodUnsuited: if the model has an operation without a rule.
    """
    return _weighted("attnlrp", model, asked, tokens, _blocks(model)[0], _product, by_rules=True)


def _product(states: Tensor, slopes: Tensor) -> Tensor:
    return (states * slopes).sum(1)


def _middle(model: VisionLanguageModel) -> int:
    """Return the number of the middle block of those that make keys and values of their own. The
    last blocks of Gemma 4 read those of an earlier one, so nothing that they make of the image
    tokens reaches an answer."""
    shared = getattr(model.model.config.get_text_config(), "num_kv_shared_layers", None) or 0
    return (len(_blocks(model)) - shared) // 2


def _weighted(
    method: str,
    model: VisionLanguageModel,
    asked: Asked,
    tokens: Sequence[int],
    block: nn.Module,
    weighted: Callable[[Tensor, Tensor], Tensor],
    *,
    by_rules: bool = False,
) -> Maps:
    """Make each token's map (N,) of the image tokens' states (N, D) at the input of a block, and
    their gradient."""
    seen: list[Tensor] = []
    with ExitStack() as scope:
        scope.enter_context(torch.enable_grad())
        scope.enter_context(_inputs(block, seen))
        if by_rules:
            rules = scope.enter_context(RelevanceRules(model.model))
        read, _ = model.read(asked, tokens)
    if by_rules:
        rules.require_all()
    states = seen[0].detach()[0, asked.image].float()
    maps: list[Float] = []
    for number, token in enumerate(tokens):
        (slopes,) = torch.autograd.grad(
            read.logits[number, token], seen[0], retain_graph=number + 1 < len(tokens)
        )
        heat = weighted(states, slopes[0, asked.image].float()).relu()
        maps.append(on_photo(heat.cpu().numpy(), asked.tiles))
        yield AnswerProgress(number + 1, len(tokens), method)
    return maps


def legrad(model: VisionLanguageModel, asked: Asked, tokens: Sequence[int]) -> Maps:
    """LeGrad on the language model (Bousselham et al., ICCV 2025, section 3.2),

        mean over blocks l and heads of relu(∂y_l / ∂A_l),   y_l = w_c · norm(h_l),

    for the attention A_l of block l from the place where the token c is said to the image tokens,
    and the logit y_l that the block's output h_l at that place would give: the model's last norm
    and the output embedding w_c of the token. Each gradient goes through one block only. One pass
    of the whole answer with materialised attention for each `GROUP` tokens, and one backward pass
    for each token and block.
    """
    blocks = _blocks(model)
    norm = _norm(model, blocks)
    said_at = list(enumerate(tokens, start=asked.length - 1))
    heat = torch.zeros(len(tokens), len(asked.image), device=model.device)
    group: list[tuple[int, int]] = []
    seen: list[Tensor] = []
    weights: list[Tensor] = []

    def measure(block: nn.Module, given: object, output: Any) -> Any:
        hidden = output[0] if isinstance(output, tuple) else output
        said = model.head(norm(hidden[0, [place for place, _ in group]]))
        attended = weights.pop()
        for logits, (place, token) in zip(said, group, strict=True):
            (slopes,) = torch.autograd.grad(logits[token], attended, retain_graph=True)
            rise = slopes[0, :, place, asked.image].float().relu().mean(0)
            heat[place - asked.length + 1] += rise
        seen.clear()
        return (hidden.detach(), *output[1:]) if isinstance(output, tuple) else hidden.detach()

    for first in range(0, len(tokens), GROUP):
        group = said_at[first : first + GROUP]
        with ExitStack() as stack:
            stack.enter_context(_attentions(model, blocks, weights.append))
            for block in blocks:
                stack.enter_context(_inputs(block, seen))
                stack.callback(block.register_forward_hook(measure).remove)
            with torch.enable_grad():
                model.read(asked, tokens)
        yield AnswerProgress(first + len(group), len(tokens), "legrad")
    return [on_photo(row, asked.tiles) for row in (heat / len(blocks)).cpu().numpy()]


def chefer(model: VisionLanguageModel, asked: Asked, tokens: Sequence[int]) -> Maps:
    """The rules of Chefer et al. (ICCV 2021, equations 5 and 6) where the tokens of both modalities
    attend to each other: from R = I before the first block,

        R ← R + Ā_l R,   Ā_l = mean over the heads of relu(∂y / ∂A_l ⊙ A_l),

    for the attention A_l of block l and the logit y of each token; R at the place where the token
    is said, for the image tokens. One pass of the whole answer whose attention is kept, and one
    backward pass for each token through all blocks.
    """
    blocks = _blocks(model)
    weights: list[Tensor] = []
    with ExitStack() as scope:
        scope.enter_context(torch.enable_grad())
        scope.enter_context(_attentions(model, blocks, weights.append))
        scope.enter_context(_inputs(blocks[0], []))
        read, _ = model.read(asked, tokens)
    maps: list[Float] = []
    for number, token in enumerate(tokens):
        slopes = torch.autograd.grad(
            read.logits[number, token], weights, retain_graph=number + 1 < len(tokens)
        )
        row = torch.zeros(weights[0].shape[-1], device=model.device)
        row[asked.length - 1 + number] = 1
        # One row of the product from its left is cheaper than the product of matrices.
        for attended, slope in zip(reversed(weights), reversed(slopes), strict=True):
            row += row @ (attended.detach()[0] * slope[0]).float().relu().mean(0)
        maps.append(on_photo(row[asked.image].cpu().numpy(), asked.tiles))
        yield AnswerProgress(number + 1, len(tokens), "chefer")
    return maps


def attention(model: VisionLanguageModel, asked: Asked, tokens: Sequence[int]) -> Maps:
    """The mean attention of all heads and blocks from the place where each token is said to the
    image tokens: a baseline, which knows nothing of the token itself. One pass of the whole answer
    with materialised attention."""
    blocks = _blocks(model)
    rows = torch.zeros(len(tokens), len(asked.image), device=model.device)
    said = slice(asked.length - 1, asked.length - 1 + len(tokens))

    def add(weights: Tensor) -> None:
        rows.add_(weights[0].float().mean(0)[said][:, asked.image], alpha=1 / len(blocks))

    with _attentions(model, blocks, add), torch.no_grad():
        model.read(asked, tokens)
    yield AnswerProgress(1, 1, "attention")
    return [on_photo(row, asked.tiles) for row in rows.cpu().numpy()]


def rollout(model: VisionLanguageModel, asked: Asked, tokens: Sequence[int]) -> Maps:
    """Attention rollout (Abnar and Zuidema, ACL 2020): the product over the blocks of ½ A + ½ I,
    for the mean A of their heads, from the place where each token is said to the image tokens. A
    baseline, which knows nothing of the token itself. One pass of the whole answer with
    materialised attention."""
    blocks = _blocks(model)
    length = asked.length + len(tokens)
    flows = torch.eye(length, device=model.device)

    def follow(weights: Tensor) -> None:
        torch.lerp(flows, weights[0].float().mean(0) @ flows, 0.5, out=flows)

    with _attentions(model, blocks, follow), torch.no_grad():
        model.read(asked, tokens)
    yield AnswerProgress(1, 1, "rollout")
    rows = flows[asked.length - 1 : length - 1][:, asked.image]
    return [on_photo(row, asked.tiles) for row in rows.cpu().numpy()]


def occlusion(model: VisionLanguageModel, asked: Asked, tokens: Sequence[int]) -> Maps:
    """How much less probable each token is without a part of the photo (Zeiler and Fergus, ECCV
    2014, section 4.2): relu(log p(token | photo) − log p(token | photo with the part blurred)), for
    each cell of a grid on the photo. One pass for each cell; it needs no gradients and no hidden
    states.
    """
    photo, without = asked.photo, blurred(asked.photo)
    whole = likely(model, asked, tokens)
    parts = _cells(photo, CELLS)
    falls = np.zeros((len(tokens), len(parts)), np.float32)
    for number, part in enumerate(parts):
        left = likely(model, model.with_photo(asked, _mixed(photo, without, [part])), tokens)
        falls[:, number] = np.maximum(whole - left, 0)
        yield AnswerProgress(number + 1, len(parts), "occlusion")
    return list(falls.reshape(len(tokens), CELLS, CELLS))


def eagle(
    model: VisionLanguageModel, asked: Asked, tokens: Sequence[int], word: slice
) -> Generator[AnswerProgress, None, Float]:
    """EAGLE (Chen et al., "Where MLLMs Attend and What They Rely On", CVPR 2026): the parts of the
    photo that say a word, in the order of a greedy search for the set S that maximises

        F(S) = p(word | photo with S alone) + 1 − p(word | photo without S),

    sufficiency and necessity, where p is the mean probability of the word's tokens after the tokens
    before them, and what is not there has the photo's mean colour. The part k of the order has the
    value −Σ_{i ≤ k} |F(S_i) − F(S_{i-1})|, scaled to 0 … 1 over the parts that were found.

    As in the authors' code, all parts that are left are tried at every `RANKED`-th step, and at the
    others the `SCOPE` that were best then. The parts are the cells of a grid, where the authors
    take superpixels, and the search ends after `FOUND` parts; the others are 0. Two passes for each
    set, 470 in all; it needs no gradients and no hidden states.

    Args:
        word: the word's tokens among those of the answer.

    Returns:
        float32 (h, w).
    """
    photo, without = asked.photo, blurred(asked.photo)
    parts = _cells(photo, EAGLE_CELLS)

    def mean(changed: Photo) -> float:
        said = likely(model, model.with_photo(asked, changed), tokens)
        return float(np.exp(said[word]).mean())

    def objective(found: Sequence[int]) -> float:
        some = [parts[number] for number in found]
        return mean(_mixed(without, photo, some)) + 1 - mean(_mixed(photo, without, some))

    left, found = list(range(len(parts))), list[int]()
    tried = [
        len(left) - step if step % RANKED == 0 else min(SCOPE, len(left) - step)
        for step in range(FOUND)
    ]
    value, done, falls = objective([]), 0, [0.0]
    for number in tried:
        values: dict[int, float] = {}
        for part in left[:number]:
            values[part] = objective([*found, part])
            done += 1
            yield AnswerProgress(done, sum(tried), "eagle")
        if number == len(left):
            left.sort(key=lambda part: -values[part])
        best = max(values, key=lambda part: values[part])
        left.remove(best)
        found.append(best)
        falls.append(falls[-1] - abs(values[best] - value))
        value = values[best]
    heat = np.zeros(len(parts), np.float32)
    first, last = falls[1], falls[-1]
    if first > last:
        heat[found] = (np.array(falls[1:]) - last) / (first - last)
    return heat.reshape(EAGLE_CELLS, EAGLE_CELLS)


def number_of(model: VisionLanguageModel, blocks: Blocks) -> int:
    """Return how many blocks of the language model are meant.

    Raises:
        ModelError: if they are not found.
    """
    if isinstance(blocks, int):
        return blocks
    return len(_blocks(model)) - (_middle(model) if blocks == "later" else 0)


def blurred(photo: Photo) -> Photo:
    """Return the photo blurred until nothing is left but its mean colour. Of a less blurred one, a
    model still tells colours, and where they are."""
    mean = photo.reshape(-1, 3).mean(0)
    return np.full_like(photo, np.rint(mean))


def likely(model: VisionLanguageModel, asked: Asked, tokens: Sequence[int]) -> Float:
    """Return the log-probability of each token, float32 (T,)."""
    with torch.no_grad():
        read, _ = model.read(asked, tokens, by_prefix=True)
    return log_probabilities(read.logits[:-1], tokens)


def log_probabilities(logits: Tensor, tokens: Sequence[int]) -> Float:
    """Return the log-probability of each token by its logits (T, V) or (V,), float32 (T,).

    Raises:
        ModelError: if one is not finite.
    """
    rows = logits.view(len(tokens), -1).log_softmax(-1)
    found: Float = rows[torch.arange(len(tokens)), list(tokens)].cpu().numpy()
    if not np.isfinite(found).all():
        raise ModelError("the logits of the model are not finite, so no token has a probability")
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


def _norm(model: VisionLanguageModel, blocks: nn.ModuleList) -> nn.Module:
    """Return the norm between the last block and the output embedding.

    Raises:
        ModelError: if it is not found.
    """
    for module in model.model.modules():
        if any(child is blocks for child in module.children()):
            for name in ("norm", "final_layernorm", "final_layer_norm"):
                if isinstance(found := getattr(module, name, None), nn.Module):
                    return found
    raise ModelError(f"the last norm of the {type(model.model).__name__} was not found")


@contextmanager
def _inputs(block: nn.Module, seen: list[Tensor]) -> Iterator[None]:
    """Collect the hidden states (1, n, D) that go into a block within the `with` block, as leaves
    of the graph of gradients."""

    def watch(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        hidden = given[0] if given else named["hidden_states"]
        seen.append(hidden.detach().requires_grad_())
        if given:
            return (seen[-1], *given[1:]), named
        return given, {**named, "hidden_states": seen[-1]}

    handle = block.register_forward_pre_hook(watch, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _attentions(
    model: VisionLanguageModel, blocks: nn.ModuleList, note: Callable[[Tensor], object]
) -> Iterator[None]:
    """Let the model materialise its attention within the `with` block, and note the weights
    (1, heads, n, n) of each of its blocks as they are made, so that none is kept.

    Raises:
        ModelError: if a block has no attention that returns its weights.
    """

    def take(module: nn.Module, given: object, output: Any) -> None:
        weights = output[1] if isinstance(output, tuple) and len(output) > 1 else None
        if not isinstance(weights, Tensor):
            raise ModelError(f"the {type(module).__name__} returns no attention weights")
        note(weights)

    attentions = [getattr(block, "self_attn", None) for block in blocks]
    if not all(isinstance(one, nn.Module) for one in attentions):
        raise ModelError(f"a block of the {type(model.model).__name__} has no self_attn")
    before = model.model.config._attn_implementation
    with ExitStack() as stack:
        stack.callback(model.model.set_attn_implementation, before)
        model.model.set_attn_implementation("eager")
        for one in attentions:
            assert one is not None
            stack.callback(one.register_forward_hook(take).remove)
        yield


def _cells(photo: Photo, side: int) -> list[tuple[slice, slice]]:
    """Return the cells of a grid of `side` rows and columns on the photo, row by row."""
    height, width = photo.shape[:2]
    return [
        (
            slice(row * height // side, (row + 1) * height // side),
            slice(column * width // side, (column + 1) * width // side),
        )
        for row in range(side)
        for column in range(side)
    ]


def _mixed(photo: Photo, other: Photo, parts: Sequence[tuple[slice, slice]]) -> Photo:
    """Return the photo with parts of another one."""
    mixed = photo.copy()
    for part in parts:
        mixed[part] = other[part]
    return mixed
